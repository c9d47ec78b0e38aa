"""What a rank's host does for a run, in order: it launches kernels, and enqueues the copies of the copy engine.

Taken from the unrolled events, so that the copies are those that were checked. Without such roles it is one kernel, or
two where peers read an input. With them, a kernel of one worker enters the run first; then each peer has a stream, on
which a copy, or several, are followed by a write of 1 to their signals; then comes the kernel that waits for those,
so that no consumer holds up its producer in a queue; and what comes after the run comes after the copies, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tilelink.analysis.events import NOTIFY, READ, WRITE, Events
from tilelink.backend.lower import Lowered, Parameter, publishing_roles
from tilelink.frontend.sizes import tile_count

PUBLISHERS = 4


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
    """A kernel with so many workers, on the stream of the lane."""

    kernel: str
    workers: int
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Fork:
    """What comes on the streams of these peers comes after what is on the stream of the lane."""

    peers: tuple[int, ...]


@dataclass(frozen=True)
class RegionCopy:
    """A copy on the stream of a peer. Either place is on that rank, or on this one."""

    peer: int
    source: Place
    target: Place


@dataclass(frozen=True)
class SignalWrite:
    """A write of 1, with release order in the system, to a signal on a rank, on the stream of a peer."""

    peer: int
    tensor: str
    rank: int
    cell: int


@dataclass(frozen=True)
class Join:
    """What comes on the stream of the lane comes after what is on the streams of these peers."""

    peers: tuple[int, ...]


Step = KernelLaunch | Fork | RegionCopy | SignalWrite | Join


def host_plan(lowered: Lowered, events: Events, rank: int) -> tuple[Step, ...]:
    """What the host of a rank does for a run."""
    plan: list[Step] = []
    if lowered.publish is not None:
        plan.append(KernelLaunch(lowered.publish, _publishers(lowered, events), lowered.publish_parameters))
    main = KernelLaunch(lowered.main, events.kernel_workers, lowered.main_parameters)
    if lowered.enter is None:
        return (*plan, main)
    plan.append(KernelLaunch(lowered.enter, 1, lowered.enter_parameters))
    copies = tuple(_copies(events, rank))
    peers = tuple(sorted({c.peer for c in copies}))
    return (*plan, Fork(peers), *copies, main, Join(peers)) if peers else (*plan, main)


def _publishers(lowered: Lowered, events: Events) -> int:
    """Workers of the kernel that publishes inputs."""
    most = max(tile_count(role, events.sizes) for role in publishing_roles(lowered.program))
    return max(1, min(PUBLISHERS, events.sms, most))


def _copies(events: Events, rank: int) -> Iterator[RegionCopy | SignalWrite]:
    """What goes to the copy engine, tile by tile in the order of the roles."""
    mine = np.flatnonzero((events.rank == rank) & (events.worker >= events.kernel_workers))
    source = None
    for k in map(int, mine[np.lexsort((mine, events.tile[mine], events.role[mine]))]):
        peer = int(events.worker[k]) - events.kernel_workers
        match int(events.op[k]):
            case op if op == READ:
                source = _place(events, k)
            case op if op == WRITE:
                assert source is not None
                yield RegionCopy(peer, source, _place(events, k))
            case op if op == NOTIFY:
                tensor = events.program.tensors[events.tensor[k]].name
                yield SignalWrite(peer, tensor, int(events.home[k]), int(events.cell[k]))


def _place(events: Events, k: int) -> Place:
    tensor = events.program.tensors[events.tensor[k]]
    box = tuple((int(a), int(b)) for a, b in zip(events.lo[k], events.hi[k], strict=True))[: len(tensor.dims)]
    return Place(tensor.name, int(events.home[k]), tensor.dims, box)


# ---- for a person ------------------------------------------------------------------------------------------------


def plan_text(lowered: Lowered, events: Events) -> str:
    """The plans of all ranks, a step a line."""
    lines = []
    for rank in range(events.sizes.world):
        lines.append(f"rank {rank}:")
        lines += [f"    {_step_text(step, events, rank)}" for step in host_plan(lowered, events, rank)]
    return "\n".join(lines) + "\n"


def _step_text(step: Step, events: Events, rank: int) -> str:
    match step:
        case KernelLaunch():
            passed = ", ".join(_passed(p, events, rank) for p in step.parameters)
            return f"launch {step.kernel} on {step.workers} SM{'s' * (step.workers > 1)}: {passed}"
        case Fork():
            return f"streams {_numbers(step.peers)} go on after that"
        case Join():
            return f"what follows comes after streams {_numbers(step.peers)}"
        case RegionCopy():
            return f"stream {step.peer}: copy {step.source} to {step.target}"
        case SignalWrite():
            return f"stream {step.peer}: write 1 to signal {step.cell} of {step.tensor} on rank {step.rank}"


def _passed(parameter: Parameter, events: Events, rank: int) -> str:
    """A parameter, with its value where program and sizes decide it."""
    known = {**events.sizes.values, "rank": rank, "world": events.sizes.world}
    known |= {f"{n}_workers": a.workers for n, a in events.allotment.items()}
    value = known.get(parameter.name)
    return f"{parameter.name}={value}" if isinstance(value, int) else parameter.name


def _numbers(peers: tuple[int, ...]) -> str:
    return ", ".join(map(str, peers))
