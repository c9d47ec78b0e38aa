"""What finds a mutant, tool by tool: the frontend, the check, the execution, the trace, the gates.

Each function returns what was found in words, "" where nothing was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from tests.verification.mutants.subjects import Subject
from tilelink.backend import cache
from tilelink.backend.lower import Lowered, lower_at
from tilelink.backend.targets import TARGETS, Target, portable
from tilelink.emulator import Operation
from tilelink.emulator.interpreter import suspended
from tilelink.errors import TileLinkError, TraceMismatchError
from tilelink.frontend.sizes import Sizes
from tilelink.inspect.compile import CompileError, compiled
from tilelink.inspect.gates import judge
from tilelink.programs.program import Program
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.prepare import Prepared
from tilelink.runtime.trace import align

FRONTEND, CHECK, EXECUTION, TRACE, GATES = TOOLS = ("frontend", "check", "execution", "trace", "gates")
CALLS = 2
"""In a row, on one slot: what the end of a run leaves behind shows in the next."""
Edit = Callable[[str], str]


class MutatedWorld(CpuWorld):
    """Runs kernels whose source, or whose primitives, were edited."""

    def __init__(self, *arguments: Any, kernel: Edit, primitives: ModuleType = portable, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.kernel, self.primitives = kernel, primitives
        self.edited: dict[Prepared, Prepared] = {}
        self.unedited, self.lane.prepare = self.lane.prepare, self.prepare  # type: ignore[method-assign]

    def prepare(self, arguments: Any) -> Prepared:
        prepared = self.unedited(arguments)
        if prepared not in self.edited:
            source = self.kernel(prepared.lowered.source).replace(portable.__name__, self.primitives.__name__)
            lowered = dataclasses.replace(prepared.lowered, source=source)
            with suspended():
                self.edited[prepared] = dataclasses.replace(prepared, lowered=lowered, module=cache.load(lowered))
        return self.edited[prepared]


def same(source: str) -> str:
    return source


@dataclasses.dataclass
class Ran:
    """What came of some calls: results by rank and call, or the error; and all that was done to memory."""

    calls: int
    results: list[Any]
    error: BaseException | None
    operations: list[Operation]
    world: MutatedWorld


def run(
    subject: Subject,
    program: Program,
    *,
    kernel: Edit = same,
    primitives: ModuleType = portable,
    calls: int = CALLS,
    slots: int = 1,
    **options: Any,
) -> Ran:
    """Calls a program some times in a row on all ranks."""
    operations: list[Operation] = []
    world = MutatedWorld(
        subject.world, kernel=kernel, primitives=primitives, per_node=subject.per_node, sms=subject.sms, slots=slots,
        heap_bytes=2 << 20, signal_bytes=8 << 10, observer=operations.append, **options,
    )  # fmt: skip
    parts = subject.parts(program)
    schedule = subject.in_tiles(program)
    operands = [subject.operands(program, rank) for rank in range(subject.world)]

    def on_rank(group: Any) -> list[Any]:
        return [program(**operands[group.rank], schedule=schedule, group=group, parts=parts) for _ in range(calls)]

    try:
        results, error = world.run(on_rank), None
    except Exception as e:
        results, error = [], e
    return Ran(calls, results, error, operations, world)


def execution(ran: Ran, right: Ran) -> str:
    """Races, what gets stuck, what leaves its memory; results that differ from those of what is right; and signals that
    are not zero in the end."""
    if ran.error is not None:
        return f"{type(ran.error).__name__}: {ran.error}"
    for rank, (mine, theirs) in enumerate(zip(ran.results, right.results, strict=True)):
        for call, (these, those) in enumerate(zip(map(_flat, mine), map(_flat, theirs), strict=True)):
            for a, b in zip(these, those, strict=True):
                if not torch.equal(a, b):
                    wrong = int((a != b).sum())
                    return f"WrongResult: rank {rank}, call {call}: {wrong} of {b.numel()} elements differ"
    for rank, slot, at in ran.world.lane.signals_left():
        return f"SignalsLeft: rank {rank}, slot {slot}: not zero after the last run, {at} bytes from the first"
    return ""


def _flat(results: Any) -> list[torch.Tensor]:
    """The outputs of a call, of which there may be several."""
    return [results] if isinstance(results, torch.Tensor) else [x for r in results for x in _flat(r)]


def trace(ran: Ran) -> str:
    """Where what was done to memory is not what the program's events say."""
    for prepared in ran.world.lane.prepared.values():
        for call in range(ran.calls):
            record = ran.world.groups[0].recent.get(call)  # of what the device alone knew
            known = prepared if record is None else record.counted
            try:
                align(known.events, ran.operations, f"{prepared.program.name} run {call}")
            except TraceMismatchError as e:
                return f"TraceMismatchError: {e}"
    return ""


def frontend(subject: Subject, program: Program) -> str:
    """What reading the program, binding it with its schedule, and unrolling it refuse."""
    try:
        program.unroll(
            subject.in_tiles(program), world=subject.world, per_node=subject.per_node, dtypes=subject.types(program),
            **subject.sizes(program),
        )  # fmt: skip
    except TileLinkError as e:
        return f"{type(e).__name__}: {e}"
    return ""


def check(subject: Subject, program: Program) -> list[str]:
    """The findings of the check, and its notes on what looks unintended."""
    found = program.check(
        subject.in_tiles(program), world=subject.world, per_node=subject.per_node, sms=subject.sms,
        dtypes=subject.types(program), **subject.sizes(program),
    )  # fmt: skip
    return [str(f).partition("\n")[0] for f in found.findings] + [f"note: {n.partition(' (')[0]}" for n in found.notes]


def gates(subject: Subject, program: Program, edit: Edit = same, target: Target = TARGETS["gfx942"]) -> str:
    """What the gates find in the kernels of a program, compiled for a GPU, once their source was edited."""
    lowered, sizes = lowered_for(subject, program, target)
    edited = dataclasses.replace(lowered, source=edit(lowered.source))
    try:
        return "; ".join(judge(edited, compiled(edited, sizes)).findings)
    except CompileError as e:
        return f"CompileError: {e}"


def lowered_for(subject: Subject, program: Program, target: Target) -> tuple[Lowered, Sizes]:
    """A program on one node, with the sizes of its subject, lowered for a target."""
    bound = subject.bound(program)
    sizes = Sizes.of(bound, subject.world, subject.sizes(program))
    return lower_at(bound, sizes, target), sizes
