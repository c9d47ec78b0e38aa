"""Exploring what ranks of a world run: lowered programs in Triton's interpreter, several calls in a row; or anything
else, such as hand-written kernels, and calls of programs one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from tilelink.analysis.check.findings import Finding
from tilelink.analysis.events import NOTIFY, WRITE
from tilelink.analysis.placement import bytes_on, placed, shape_on
from tilelink.analysis.unroll import DEFAULT_SMS, unroll
from tilelink.emulator import Execution
from tilelink.emulator.beside import Beside
from tilelink.errors import MachineMemoryError, Site, TileLinkError, WorldError
from tilelink.frontend.ir import Copy, TileProgram, walk
from tilelink.frontend.schedule import Schedule
from tilelink.frontend.sizes import Sizes
from tilelink.programs.given import at_sizes
from tilelink.programs.program import Program
from tilelink.runtime.cpu.world import CpuGroup, CpuWorld
from tilelink.tools.explore.findings import Advice, findings_of
from tilelink.tools.explore.oracle import check_event_count
from tilelink.tools.explore.trial import Outcome, Residency, Result, Subject, Trial, poison

LEAST_HEAP, CONTROL = 1 << 16, 1 << 14
MOST_BYTES = 8 << 30
"""The most bytes of the tensors of all ranks, which are in one process."""
LOW, HIGH = -2, 3
"""The range of operands: sums of small integers are exact in any order, so results can be compared bit for bit."""


class World(Protocol):
    """A `KernelWorld` or a `CpuWorld`."""

    latest: Execution | None

    def run(self, function: Any, /) -> Sequence[Any]: ...


Make = Callable[..., tuple[World, Callable[[Any], Any]]]


def outcome_of(world: World, run: Callable[[], tuple[Sequence[Result], Sequence[Finding]]]) -> Outcome:
    """The outcome of a run on a world. A finding may end the run."""
    results: Sequence[Result] = ()
    findings: Sequence[Finding] = ()
    try:
        results, findings = run()
    except TileLinkError as error:
        findings = findings_of(error)
    assert world.latest is not None
    return Outcome(world.latest.schedule_hash, world.latest.turns, tuple(results), tuple(findings))


class Lowered:
    """A program with a schedule (not fitted), as a subject of `explore`. Every rank makes one call more than there are
    `slots`, with other operands each time, and never waits between calls. `sizes` and `dtypes` are as in
    `Program.bound_at`.

    `resident`: at most this many workers of a rank at a time, the last first; by default all or, if any number will do,
    a number that the schedule's seed gives. `beside`: another kernel has this many blocks on each rank. They share the
    SMs of the device with our workers, and wait for its blocks on all ranks; half of the ranks launch it before their
    calls, half behind them. `reserved`: SMs that our workers leave to it. `make_world` makes the world, for kernels
    that differ from the lowered ones. Raises the errors of the frontend and of unrolling, WorldError for fewer than 1
    resident, and MachineMemoryError or BudgetError for what is too large to explore. Does not run the check.
    """

    def __init__(
        self,
        program: Program,
        schedule: Schedule,
        *,
        world: int,
        dtypes: Any = "float32",
        slots: int = 1,
        sms: int = DEFAULT_SMS,
        per_node: int | None = None,
        resident: int | None = None,
        beside: int = 0,
        reserved: int = 0,
        make_world: Callable[..., CpuWorld] = CpuWorld,
        **sizes: Any,
    ) -> None:
        self.program, flat = at_sizes(program, sizes)
        bound, exact = self.program.bound_at(schedule, world=world, sizes=flat, dtypes=dtypes, per_node=per_node)
        self.schedule, self.bound, self.sizes = schedule, bound, exact
        if not 0 <= reserved < sms:
            raise WorldError(f"reserved={reserved}: of {sms} SMs, one at least is ours", Site.of_user())
        self.beside = beside
        if beside and resident is None:
            resident = sms
        sms -= reserved
        self.calls, self.residency = slots + 1, Residency.asked(resident)
        check_bytes(bound, self.sizes, self.calls, slots)
        check_event_count(bound, self.sizes, sms)
        self.events = unroll(bound, self.sizes, sms=sms)
        self.advise = Advice(self.events, resident, beside)
        room = placed(bound, self.sizes)
        self.world = make_world(
            world, heap_bytes=CONTROL + slots * max(LEAST_HEAP, 4 * (room.data_bytes + room.signal_bytes)), slots=slots,
            signal_bytes=max(1 << 12, 4 * room.signal_bytes), sms=sms, per_node=per_node, switch="memory", check=False,
        )  # fmt: skip
        self.given = [[operands(bound, self.sizes, r, n) for n in range(self.calls)] for r in range(world)]
        self.outputs = [t.name for t in bound.outputs]
        cut = {t.dims[t.sharded] for t in bound.tensors if t.sharded is not None and t.kind in ("input", "output")}
        self.parts = {d: said for d, said in self.sizes.said.items() if d in cut}

    def run(self, trial: Trial) -> Outcome:
        """One run, from heaps without anything of earlier runs."""
        world = self.world
        for heap in world.lane.heaps:
            heap.fill_(0xFF)
        world.reset()
        self.other = Beside(self.sizes.world, self.beside)
        residency = self.residency.under(self.events, trial.seed)
        world.options |= {"policy": trial.word, "resident": residency.most, "admit": residency.admit}

        def run() -> tuple[Sequence[Result], Sequence[Finding]]:
            made = world.run(self._calls, seed=trial.seed)
            results = [self._result(n, r, k, t) for r, m in enumerate(made) for n, k, t in m]
            return results, [self._left(*left) for left in world.lane.signals_left()]

        return outcome_of(world, run)

    def _calls(self, group: CpuGroup) -> list[tuple[int, str, torch.Tensor]]:
        """Makes all calls of a rank; returns its outputs, by call and name."""
        made = []
        before = group.rank % 2 == 0
        if before:
            self.other.launch(group.execution, group.rank)
        for n, given in enumerate(self.given[group.rank]):
            outs = {name: given[name].clone() for name in self.outputs}
            self.program(schedule=self.schedule, group=group, parts=self.parts, **given | outs)
            made += [(n, name, out) for name, out in outs.items()]
        if not before:
            self.other.launch(group.execution, group.rank)
        return made

    def _result(self, call: int, rank: int, name: str, tensor: torch.Tensor) -> Result:
        return Result(f"call {call}, rank {rank}: {name}", tensor, self._lines(WRITE, name))

    def _left(self, rank: int, slot: int, at: int) -> Finding:
        """The finding that a slot's signals are not zero after all runs. `at`: bytes from its first signal."""
        signals = placed(self.bound, self.sizes, word=self.world.lane.target.signal_bytes).signals
        name = next(name for name, first, _ in reversed(signals) if first <= at)
        what = (
            f"rank {rank}, slot {slot}: signals of {name} are not zero after the last run: the next counts from there"
        )
        return Finding(kind="signals left", lines=self._lines(NOTIFY, name), what=what)

    def _lines(self, op: int, name: str) -> tuple[str, ...]:
        """The source lines of the events of one kind on a tensor."""
        events = self.events
        index = self.bound.numbers[name]
        sites = np.unique(events.site[(events.op == op) & (events.tensor == index)])
        return tuple(events.sites[s].quoted for s in sites)


def check_bytes(program: TileProgram, sizes: Sizes, calls: int, slots: int) -> None:
    """Raises MachineMemoryError if the tensors of all ranks take more than `MOST_BYTES`: heaps, and the tensors of each
    call, whose outputs are copied."""
    needed = {t.name: calls * bytes_on(t, sizes) for t in (*program.inputs, *program.outputs, *program.outputs)}
    heap = {t.name: 4 * slots * bytes_on(t, sizes) for t in program.on_heap}
    total = sizes.world * (sum(needed.values()) + sum(heap.values()))
    if total > MOST_BYTES:
        each = needed | {n: nbytes + needed.get(n, 0) for n, nbytes in heap.items()}
        what = f"{program.name} needs {total / 1e9:.1f} GB for {calls} calls of {sizes.world} ranks"
        why = f"exploring takes at most {MOST_BYTES / 1e9:.1f} GB. Most of it is {max(each, key=lambda n: each[n])}"
        raise MachineMemoryError(f"{what}; {why}: explore smaller sizes", Site.of_user())


def operands(program: TileProgram, sizes: Sizes, rank: int, call: int) -> dict[str, torch.Tensor]:
    """The tensors of one call of a rank, by name: inputs, which differ between calls, and poisoned outputs."""
    generator = torch.Generator().manual_seed(1000 * call + rank)
    statements = [s for role in program.roles for s in walk(role.body)]
    reads = [load for s in statements for load in s.reads]
    picked = {by.tensor: r.dim for load in reads for r, by in ((r, r.by) for r in load.view.ranges) if by is not None}
    moved = {v.tensor for s in statements for v in s.wheres}
    moved |= {v.tensor for s in statements if isinstance(s, Copy) for v in s.source.picked_by}
    made = {}
    for tensor in program.tensors:
        if tensor.kind not in ("input", "output"):
            continue
        shape, dtype = shape_on(tensor, sizes, rank), getattr(torch, tensor.dtype)
        low = 0 if dtype in (torch.bool, torch.uint8) else LOW
        numbers = torch.randint(low, HIGH, shape, generator=generator)
        lengths = sizes.lengths(picked[tensor.name]) if tensor.name in picked else (1,)
        if tensor.name in moved:  # no -1: a row that is not moved keeps what was there, which differs between runs
            numbers = torch.randint(0, max(1, min(lengths)), shape, generator=generator)
        elif tensor.name in picked:
            numbers = torch.randint(-1, lengths[rank % len(lengths)], shape, generator=generator)
        if tensor.name in sizes.counts:
            numbers = torch.tensor(sizes.counts[tensor.name])
        made[tensor.name] = poison(torch.empty(shape, dtype=dtype)) if tensor.kind == "output" else numbers.to(dtype)
    return made


# ---- anything that ranks of a world run


@dataclass(frozen=True)
class _OfWorld:
    make: Make
    residency: Residency

    def run(self, trial: Trial) -> Outcome:
        most, admit = self.residency.most, self.residency.admit
        world, on_rank = self.make(seed=trial.seed, policy=trial.word, switch="memory", resident=most, admit=admit)

        def run() -> tuple[Sequence[Result], Sequence[Finding]]:
            return [r for rank, value in enumerate(world.run(on_rank)) for r in _results(f"rank {rank}", value)], ()

        return outcome_of(world, run)

    def advise(self, finding: Finding) -> Finding:
        """The finding unchanged: only races of hand-written kernels have a known remedy, and their findings say it."""
        return finding


def of_world(make: Make, resident: int | None = None) -> Subject:
    """The ranks of a world as a subject of `explore`. `make(**schedule)` makes a world with fresh memory, which gets
    `schedule` as keywords, and returns it with the function that each rank runs. The tensors that this function returns
    (one, several in a list or tuple, or none) must be the same under all schedules. `resident`: at most this many
    programs of a rank at a time, the last of a launch first; this shows a grid that waits for programs that are not
    resident. Raises WorldError for fewer than 1.

        def make(**schedule):
            world = KernelWorld(2, **schedule)
            inbox, ready = world.symmetric("inbox", (64,)), world.signals("ready")
            return world, lambda rank: exchange(rank, inbox, ready)

        print(explore(of_world(make), range(200), "pct"))
    """
    return _OfWorld(make, Residency.asked(resident))


def _results(name: str, value: Any) -> list[Result]:
    if isinstance(value, torch.Tensor):
        return [Result(name, value.detach().clone())]
    if isinstance(value, list | tuple):
        return [r for k, v in enumerate(value) for r in _results(f"{name}, result {k}", v)]
    return []
