"""Runs a case: checks its results, measures, and draws one run."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field

import torch

from bench.cases import Case
from bench.check import LIMITS, relative_rms
from bench.operators import OPERATORS, WORKERS
from bench.pictures import draw
from bench.progress import say
from tilelink.analysis.placement import placed
from tilelink.emulator import Operation
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.layout import CPU_HEAP


@dataclass(frozen=True)
class Measured:
    """The result of a case. `makespans` (in memory operations) and `seconds` have one figure a run, the largest of all
    ranks; they are empty if a result is wrong. `error`: any other failure."""

    case: Case
    rel_rms: float | None = None
    makespans: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()
    files: tuple[str, ...] = ()
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and self.rel_rms is not None and self.rel_rms <= LIMITS[self.case.dtype]


def measure(case: Case) -> Measured:
    """Runs a case once for each of its seeds, in this process. Only the first run is searched for races and drawn."""
    try:
        measured = _measure(case)
    except Exception as e:  # a race, a deadlock, a kernel that fails: this case is wrong, and the other cases go on
        traceback.print_exc()
        measured = Measured(case, error=f"{type(e).__name__}: {e}")
    if not measured.ok:
        say(f"{case.name}: WRONG")
    return measured


def _measure(case: Case) -> Measured:
    operator, form = OPERATORS[case.op], case.form
    say(f"{case.name}: begins")
    inputs = operator.inputs(case.sizes, case.world, getattr(torch, case.dtype))
    right = operator.reference(inputs, case.sizes)
    heap = _heap_bytes(case, inputs)
    worst = 0.0
    makespans: list[int] = []
    seconds: list[float] = []
    files: tuple[str, ...] = ()
    for seed in case.seeds:
        first = not makespans
        watch = _Watch(keep=first)
        # Ranks take turns at every access: if a rank ran far ahead in its turn, readers of its words would seem late.
        world = CpuWorld(
            case.world, sms=WORKERS, heap_bytes=heap, seed=seed, races=first, observer=watch, switch="memory"
        )
        start = time.perf_counter()
        results = world.run(lambda group: operator.call(form, inputs[group.rank], group, case.sizes))
        took = time.perf_counter() - start
        worst = max(worst, relative_rms(results, right))
        if worst > LIMITS[case.dtype]:
            return Measured(case, worst)
        say(f"{case.name}: seed {seed} is right, after {took:.1f} s")
        makespans.append(watch.last)
        seconds.append(took)
        if first:
            files = draw(case, watch.operations)
    return Measured(case, worst, tuple(makespans), tuple(seconds), files)


@dataclass
class _Watch:
    """Watches every memory operation: keeps the time of the last one, and all operations if they are to be drawn."""

    keep: bool
    last: int = 0
    operations: list[Operation] = field(default_factory=list)

    def __call__(self, operation: Operation) -> None:
        self.last = max(self.last, operation.time)
        if self.keep:
            self.operations.append(operation)


def _heap_bytes(case: Case, inputs: list[tuple[torch.Tensor, ...]]) -> int:
    """Returns heap bytes with room for published inputs and for the buffers of any program, in each of two slots."""
    all_events = (step.events(case.sizes, case.world, case.dtype) for step in case.form)
    buffers = max(placed(events.program, events.sizes, word=8).data_bytes for events in all_events)
    return CPU_HEAP + 2 * sum(rank[0].nbytes for rank in inputs) + 2 * buffers
