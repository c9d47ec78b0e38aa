"""Mutants of primitives, and how they are judged: in runs of programs that use them all, those for GPUs with a stand-in
for their assembly; then by the gates."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType

from tests.backend.waiting import behaviour
from tests.modules import importable, text_of
from tests.verification.mutants import primitives, tools
from tests.verification.mutants.equivalents import SAME_PTX, of_primitive
from tests.verification.mutants.job import Answer, Job
from tests.verification.mutants.mutant import Mutant, mutants
from tests.verification.mutants.of_kernels import right
from tests.verification.mutants.stand_ins import stand_in
from tests.verification.mutants.subjects import Subject, named
from tests.verification.mutants.tools import EXECUTION, GATES, TRACE
from tilelink.backend.targets import AMD, CPU, CUDA, PORTABLE, TARGETS, Target, polling

LEVEL = "primitive"
RUNS = tuple((1, 3, seed) for seed in range(4))
"""Slots, calls in a row, seed."""
ON_TWO_SLOTS = tuple((2, 5, seed) for seed in range(4))
AT_ONCE = dataclasses.replace(CPU, name="cpu that polls at once, and takes pieces", wide_polls=True, warp_size=2)
RUN = (
    ("all_gather_matmul push", CPU), ("lower_rows push", CPU), ("all_gather_matmul pull", CPU),
    ("matmul_reduce_scatter push", CPU), ("matmul_reduce_scatter push", AT_ONCE), ("all_gather_matmul pieces", AT_ONCE),
)  # fmt: skip
"""Subjects in which each primitive matters: inputs that are published, signals in vain, several notifiers; waits for
several words, which CPU ranks do not have but for tests."""
COMPILED = (
    "all_gather_matmul push", "all_gather_matmul pull", "all_gather_matmul pieces", "matmul_reduce_scatter push",
)  # fmt: skip
PTX = ((32, 64), ("gpu", "sys"), ("one", "all", "first"), (True, False), (False, True), (True, False))
"""Arguments of `polling`."""
ON_GPU = dataclasses.replace(
    TARGETS["sm_90"], name="portable on sm_90", module=PORTABLE, descriptors=False, multicast=False
)
MODULES: dict[str, Target] = {PORTABLE: ON_GPU, CUDA: TARGETS["sm_90"], AMD: TARGETS["gfx942"],
                              f"{PORTABLE.rpartition('.')[0]}.polling": TARGETS["sm_90"]}  # fmt: skip
"""The modules, with the target whose gates see them."""


def jobs() -> Iterator[Job]:
    """All mutants of the modules of primitives."""
    for name in MODULES:
        for mutant in mutants(text_of(name), primitives.OPERATORS):
            yield Job(LEVEL, name.rpartition(".")[2], mutant, text_of(name), partial(judge, name, mutant))


def judge(name: str, mutant: Mutant) -> Answer:
    """What finds a mutant."""
    short, text = name.rpartition(".")[2], mutant.of(text_of(name))
    try:
        runnable = text if name == PORTABLE else stand_in(short, text)
        answer = _executed(loaded(f"{short}_run", runnable), mutant) if runnable else None
        if answer is not None:
            return answer
        edited = loaded(name, text)
    except Exception as e:
        return Answer(GATES, f"it can't be imported: {type(e).__name__}: {e}")
    if name.endswith(".polling") and (waited := _waits(sys.modules["edited_polling"])) is not None:
        return waited
    for subject in (named(name) for name in COMPILED):
        target = MODULES[name]
        new = _gates(subject, target, name, edited) - _known(subject, target)
        if new:
            return Answer(GATES, "; ".join(sorted(new)))
    return Answer("", "", of_primitive(short, text_of(name), mutant))


def _executed(primitives: ModuleType, mutant: Mutant) -> Answer | None:
    """What runs of the programs find."""
    for name, target in RUN:
        subject = named(name)
        for slots, calls, seed in RUNS if mutant.kind != "slot" else (*RUNS, *ON_TWO_SLOTS):
            expected = right(subject)
            expected = dataclasses.replace(expected, calls=calls, results=[[r[0]] * calls for r in expected.results])
            ran = tools.run(
                subject, subject.program, primitives=primitives, slots=slots, calls=calls, seed=seed, target=target
            )
            if said := tools.execution(ran, expected):
                return Answer(EXECUTION, said)
            if target is CPU and (said := tools.trace(ran)):  # which knows waits for one word after the other
                return Answer(TRACE, said)
    return None


def _waits(edited: ModuleType) -> Answer | None:
    """What the PTX of waits shows when a stand-in executes it."""
    try:
        if all(edited.polling.fn(*form) == polling.polling.fn(*form) for form in product(*PTX)):
            return Answer("", "", SAME_PTX)
        pairs = zip(behaviour(polling), behaviour(edited), strict=True)
        differs = next((theirs for mine, theirs in pairs if mine != theirs), None)
    except Exception as e:
        return Answer(EXECUTION, f"the PTX of a wait can't be made or executed: {type(e).__name__}: {e}")
    return differs and Answer(EXECUTION, f"the PTX of a wait does something else: {differs}")


def loaded(name: str, text: str) -> ModuleType:
    """A copy of a module with another text; and of what imports from it, where that is the module of a target."""
    folder = Path(tempfile.mkdtemp(prefix="mutant_"))
    sys.path.insert(0, str(folder))
    short = importable(folder, text, f"edited_{name.rpartition('.')[2]}")
    module = import_module(short)
    if name.endswith(".polling"):
        module = import_module(importable(folder, text_of(CUDA).replace(name, short), "edited_cuda"))
    return module


def _gates(subject: Subject, target: Target, name: str, edited: ModuleType) -> set[str]:
    module = CUDA if name.endswith(".polling") else name
    said = tools.gates(subject, subject.program, lambda text: text.replace(module, edited.__name__), target)
    return set(said.split("; "))


@cache
def _known(subject: Subject, target: Target) -> set[str]:
    """What the gates say as it is: tiles are small, and a portable wait is two atomics."""
    return set(tools.gates(subject, subject.program, target=target).split("; "))
