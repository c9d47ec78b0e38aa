"""The plan of a rank's host for a run, in order: kernels to launch, and copies to enqueue on the copy engine.

The plan comes from the unrolled events, so the copies are the ones that were checked. Each peer has a stream for the
copies from it and to it. Copies from a rank to itself that wait for nothing come before the kernel, on the lane's
stream: a GPU makes a copy inside itself on its SMs, and beside a kernel that has all but one of them it would be slow.
A stream or a kernel is launched after the producers that it waits for, so no consumer holds up its producer in a queue.
When the kernel has ended, even by an abort, nobody gives the signals any more that streams wait for. The host then
gives all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tilelink.analysis.events import NOTIFY, WAIT, WRITE, Events
from tilelink.backend.lower import Lowered
from tilelink.backend.module import Kernel
from tilelink.backend.parameters import Parameter
from tilelink.backend.publishing import publishing_roles
from tilelink.frontend.sizes import Sizes
from tilelink.frontend.workload import tile_count

ENOUGH = 1 << 23
"""More notifications than any signal gets in a run. A drain adds up a block of such numbers in 32 bits."""


@dataclass(frozen=True)
class Place:
    """A region of a tensor on a rank, in global coordinates: [lo, hi) along each dimension."""

    tensor: str
    rank: int
    dims: tuple[str, ...]
    box: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        spans = ", ".join(f"{d}[{lo}:{hi}]" for d, (lo, hi) in zip(self.dims, self.box, strict=True))
        return f"{self.tensor}[{spans}] of rank {self.rank}"


@dataclass(frozen=True)
class KernelLaunch:
    """A launch of a kernel with this number of workers, on the lane's stream."""

    kernel: Kernel
    workers: int


@dataclass(frozen=True)
class Fork:
    """Later work on the streams of these peers comes after earlier work on the lane's stream."""

    peers: tuple[int, ...]


@dataclass(frozen=True)
class RegionCopy:
    """A copy on the stream of a peer. Each of its places is on that peer or on this rank. `ahead`: it may come before
    the kernel on the lane's stream, since its tile stays inside the rank and waits for nothing."""

    peer: int
    source: Place
    target: Place
    ahead: bool = False


@dataclass(frozen=True)
class SignalWrite:
    """A write of 1 to a signal on a rank, on the stream of a peer, with release order in the system. `ahead`: as its
    copy."""

    peer: int
    tensor: str
    rank: int
    cell: int
    ahead: bool = False


@dataclass(frozen=True)
class SignalWait:
    """A wait on the stream of a peer until a signal of this rank is at least `expected`, with acquire order."""

    peer: int
    tensor: str
    cell: int
    expected: int


@dataclass(frozen=True)
class LetGo:
    """A write of `ENOUGH` to all signals of a tensor on this rank, on the lane's stream: no stream waits any longer."""

    tensor: str


@dataclass(frozen=True)
class Join:
    """Later work on the lane's stream comes after earlier work on the streams of these peers."""

    peers: tuple[int, ...]


EngineStep = RegionCopy | SignalWrite | SignalWait
Step = KernelLaunch | Fork | EngineStep | LetGo | Join


def host_plan(
    lowered: Lowered, sizes: Sizes, sms: int, workers: int, events: Callable[[], Events], rank: int
) -> tuple[Step, ...]:
    """The plan of the host of a rank for a run on devices of `sms` SMs, with this number of workers of the persistent
    kernel. `events()` gives the events of roles on the copy engine; it is only called if there are such roles."""
    plan: list[Step] = [] if lowered.tables is None else [KernelLaunch(lowered.tables, 1)]
    if lowered.publish is not None:
        plan.append(KernelLaunch(lowered.publish, _publishers(lowered, sizes, sms)))
    main = KernelLaunch(lowered.main, workers)
    if lowered.enter is None:
        return (*plan, main)
    plan.append(KernelLaunch(lowered.enter, 1))
    steps = tuple(_engine_steps(events(), rank))
    peers = tuple(sorted({step.peer for step in steps}))
    before_main, after_main = _around_the_kernel(steps)
    plan += [*([Fork(peers)] if peers else []), *before_main, main]
    plan += [LetGo(tensor) for tensor in lowered.program.awaited_by_engines]
    plan += [*after_main, *([Join(peers)] if peers else [])]
    if lowered.leave is not None:
        plan.append(KernelLaunch(lowered.leave, 1))
    return tuple(plan)


def _around_the_kernel(steps: Iterable[EngineStep]) -> tuple[list[EngineStep], list[EngineStep]]:
    """Splits the steps: on each stream, before its first wait for a tile of the kernel, and from there on. Behind the
    kernel, the lane's stream would keep it waiting for a step that may come ahead of it."""
    before_main, after_main, waiting = list[EngineStep](), list[EngineStep](), set[int]()
    for step in steps:
        if isinstance(step, SignalWait):
            waiting.add(step.peer)
        ahead = not isinstance(step, SignalWait) and step.ahead
        (after_main if step.peer in waiting and not ahead else before_main).append(step)
    return before_main, after_main


def _publishers(lowered: Lowered, sizes: Sizes, sms: int) -> int:
    """Workers of the kernel that publishes inputs. It is alone on the device, and the run waits for it."""
    most = max(tile_count(role, sizes) for role in publishing_roles(lowered.program))
    return max(1, min(sms, most))


def _engine_steps(events: Events, rank: int) -> Iterator[EngineStep]:
    """Yields the steps of the copy engine, tile by tile, in the order of the roles."""
    mine = np.flatnonzero((events.rank == rank) & (events.worker >= events.kernel_workers))
    mine = mine[np.lexsort((mine, events.tile[mine], events.role[mine]))]
    names = "op", "worker", "tensor", "home", "lo", "hi", "cell", "expected"
    columns = (getattr(events, n)[mine].tolist() for n in names)
    place: Place | None = None
    for ahead, op, worker, number, home, lo, hi, cell, expected in zip(
        _may_come_ahead(events, mine, rank), *columns, strict=True
    ):
        peer, tensor = worker - events.kernel_workers, events.program.tensors[number]
        if op == WAIT:
            yield SignalWait(peer, tensor.name, cell, expected)
        elif op == NOTIFY:
            yield SignalWrite(peer, tensor.name, home, cell, ahead)
        else:  # a copy reads, then writes
            box = tuple(zip(lo, hi, strict=True))[: len(tensor.dims)]
            source, place = place, Place(tensor.name, home, tensor.dims, box)
            if op == WRITE:
                assert source is not None
                yield RegionCopy(peer, source, place, ahead)


def _may_come_ahead(events: Events, mine: np.ndarray, rank: int) -> list[bool]:
    """For each of these events, sorted by role and tile, whether its tile touches only this rank and waits for
    nothing. No order of copies matters to such a tile: to read what a tile has written takes a wait."""
    role, tile = events.role[mine], events.tile[mine]
    begins = np.ones(len(mine), bool)
    begins[1:] = (role[1:] != role[:-1]) | (tile[1:] != tile[:-1])
    number = np.cumsum(begins) - 1
    away = (events.home[mine] != rank) | (events.op[mine] == WAIT)
    found: list[bool] = (np.bincount(number, away)[number] == 0).tolist()
    return found


# ---- for a person ------------------------------------------------------------------------------------------------


def plan_text(lowered: Lowered, events: Events) -> str:
    """The plans of all ranks as text, one line for each step."""
    lines = []
    for rank in range(events.sizes.world):
        lines.append(f"rank {rank}:")
        plan = host_plan(lowered, events.sizes, events.sms, events.kernel_workers, lambda: events, rank)
        lines += [f"    {_step_text(step, events, rank)}" for step in plan]
    return "\n".join(lines) + "\n"


def _step_text(step: Step, events: Events, rank: int) -> str:
    match step:
        case KernelLaunch():
            passed = ", ".join(_passed(p, events, rank) for p in step.kernel.parameters)
            return f"launch {step.kernel.name} on {step.workers} SM{'s' * (step.workers > 1)}: {passed}"
        case Fork():
            one = len(step.peers) == 1
            return f"stream{'' if one else 's'} {_numbers(step.peers)} {'goes' if one else 'go'} on after that"
        case Join():
            return f"what follows comes after stream{'s' * (len(step.peers) > 1)} {_numbers(step.peers)}"
        case RegionCopy():
            return f"{_stream(step)}copy {step.source} to {step.target}"
        case SignalWrite():
            return f"{_stream(step)}write 1 to signal {step.cell} of {step.tensor} on rank {step.rank}"
        case SignalWait():
            return f"stream {step.peer}: wait until signal {step.cell} of {step.tensor} is {step.expected}"
        case LetGo():
            return f"when it has ended, give all signals of {step.tensor}, so that no stream waits for ever"


def _passed(parameter: Parameter, events: Events, rank: int) -> str:
    """The name of a parameter, with its value if program and sizes decide it."""
    match parameter.kind:
        case "size":
            return f"{parameter.name}={events.sizes.values[parameter.of]}"
        case "workers":
            return f"{parameter.name}={events.allotment[parameter.of].workers}"
    known = {"rank": rank, "world": events.sizes.world}
    return f"{parameter.name}={known[parameter.name]}" if parameter.name in known else parameter.name


def _stream(step: RegionCopy | SignalWrite) -> str:
    return "" if step.ahead else f"stream {step.peer}: "


def _numbers(peers: tuple[int, ...]) -> str:
    return ", ".join(map(str, peers))
