"""Mutants of lowered kernels, and how they are judged: executed, traced, compiled; if nothing shows, at other sizes and
on two slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

from tests.verification.mutants import kernels, tools
from tests.verification.mutants.equivalents import of_kernel
from tests.verification.mutants.job import Answer, Job
from tests.verification.mutants.mutant import Mutant, mutants
from tests.verification.mutants.subjects import Subject, subjects
from tests.verification.mutants.tools import EXECUTION, GATES, TRACE, Ran
from tilelink.backend.targets import TARGETS

LEVEL = "kernel"
SEEDS = range(3)
MORE_SEEDS = range(12)
"""Of mutants of a credit: they show only where a rank is a run ahead of another one, which few schedules have."""
GPU = TARGETS["gfx942"]
"""Its kernels have the source of those for CPUs, but for the module of primitives."""


def jobs() -> Iterator[Job]:
    """All mutants of the lowered kernels of all subjects."""
    for subject in subjects():
        yield from of(subject)


def of(subject: Subject) -> Iterator[Job]:
    """All mutants of the lowered kernels of a subject."""
    for mutant in _mutants(source(subject)):
        yield Job(LEVEL, str(subject), mutant, source(subject), partial(judge, subject, mutant))


def judge(subject: Subject, mutant: Mutant) -> Answer:
    """What finds a mutant."""
    rans: list[tuple[Ran, Ran]] = []
    for sized, slots in dict.fromkeys(((subject, 1), (subject.larger, 1), (subject, 2))):
        edit = _same_change(mutant, source(subject), source(sized))
        seeds = MORE_SEEDS if mutant.kind in ("credit", "slot") else SEEDS
        for seed in seeds if edit else ():
            ran = tools.run(sized, sized.program, kernel=edit, seed=seed, calls=slots + 1, slots=slots)
            if said := tools.execution(ran, right(sized, slots=slots)):
                return Answer(EXECUTION, said)
            if said := tools.trace(ran):
                return Answer(TRACE, said)
            rans.append((ran, right(sized, seed, slots)))
    lowered, _ = tools.lowered_for(subject, subject.program, GPU)
    edit = _same_change(mutant, source(subject), lowered.source)
    if edit:
        before = set(tools.gates(subject, subject.program).split("; "))
        if new := set(tools.gates(subject, subject.program, edit).split("; ")) - before:
            return Answer(GATES, "; ".join(sorted(new)))
    return Answer("", "", of_kernel(mutant, source(subject), right(subject), rans))


@cache
def right(subject: Subject, seed: int = 0, slots: int = 1) -> Ran:
    """A subject as it is, run."""
    ran = tools.run(subject, subject.program, seed=seed, calls=slots + 1, slots=slots)
    if ran.error is not None:
        raise ran.error
    return ran


@cache
def source(subject: Subject) -> str:
    """The lowered source of a subject."""
    (prepared,) = right(subject).world.lane.prepared.values()
    return prepared.lowered.source


@cache
def _mutants(text: str) -> list[Mutant]:
    return mutants(text, kernels.OPERATORS)


def _same_change(mutant: Mutant, here: str, there: str) -> Callable[[str], str] | None:
    """The change in another lowering of a program; None where it has no such place."""
    if here == there:
        return mutant.of

    def alike(text: str) -> list[Mutant]:
        return [m for m in _mutants(text) if (m.kind, m.what) == (mutant.kind, mutant.what)]

    return alike(there)[alike(here).index(mutant)].of if len(alike(there)) == len(alike(here)) else None
