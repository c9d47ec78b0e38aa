"""What the host of a rank does for a run, to be done again: only the caller's tensors change from call to call.

It is the host plan of `tilelink.backend.host` with all values in it: kernels on the stream of the lane, copies and
writes of signals on a stream for each peer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch

from tilelink.backend.host import ENOUGH, Fork, Join, LetGo, Place, RegionCopy, SignalWait, SignalWrite
from tilelink.backend.parameters import STAMPS
from tilelink.errors import ScheduleError, Site
from tilelink.runtime.cuda.device import Device, Stream
from tilelink.runtime.cuda.lane import CudaLane
from tilelink.runtime.launch import Launch, Record, Run, RunStep
from tilelink.runtime.layout import shape_on

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Streams:
    """The stream of a rank's lane, and those of its copy engine, by peer."""

    lane: Stream
    engine: Mapping[int, Stream]


@dataclass(frozen=True)
class KernelStep:
    """A kernel on the stream of the lane: values of all its parameters but tensors of the caller, which of them those
    are, and which are descriptors of them. Nothing of the caller's is kept."""

    launch: Callable[..., None]
    names: tuple[str, ...]
    values: tuple[Any, ...]
    tensors: tuple[tuple[int, str], ...]
    described: tuple[tuple[int, str], ...]

    def play(self, tensors: Tensors, streams: Streams) -> None:
        values = list(self.values)
        for at, name in self.tensors:
            values[at] = tensors[name]
        for at, name in self.described:
            values[at] = copy(values[at])
            values[at].base = tensors[name]
        self.launch(*values, stream=streams.lane.cuda_stream)


@dataclass(frozen=True)
class CopyStep:
    """A copy on the stream of a peer. What is no tensor is a part of the caller's tensor of that name."""

    device: Device
    peer: int
    source: torch.Tensor | tuple[str, tuple[slice, ...]]
    target: torch.Tensor | tuple[str, tuple[slice, ...]]

    def play(self, tensors: Tensors, streams: Streams) -> None:
        source, target = (
            p if isinstance(p, torch.Tensor) else tensors[p[0]][p[1]] for p in (self.source, self.target)
        )
        self.device.copy(streams.engine[self.peer], source, target)


@dataclass(frozen=True)
class SignalStep:
    """A write of 1 on the stream of a peer."""

    device: Device
    peer: int
    address: int

    def play(self, tensors: Tensors, streams: Streams) -> None:
        self.device.write_signal(streams.engine[self.peer], self.address)


@dataclass(frozen=True)
class WaitStep:
    """A wait on the stream of a peer until a signal of this rank is at least `expected`."""

    device: Device
    peer: int
    address: int
    expected: int

    def play(self, tensors: Tensors, streams: Streams) -> None:
        self.device.wait_for_signal(streams.engine[self.peer], self.address, self.expected)


@dataclass(frozen=True)
class LetGoStep:
    """A write to all signals of a tensor on this rank, after which nobody waits for one."""

    device: Device
    signals: torch.Tensor

    def play(self, tensors: Tensors, streams: Streams) -> None:
        self.device.fill(streams.lane, self.signals, ENOUGH)


@dataclass(frozen=True)
class ForkStep:
    """The streams of peers go on after the lane's."""

    device: Device
    peers: tuple[int, ...]

    def play(self, tensors: Tensors, streams: Streams) -> None:
        for peer in self.peers:
            self.device.follow(streams.engine[peer], streams.lane)


@dataclass(frozen=True)
class JoinStep:
    """The lane's stream goes on after those of peers."""

    device: Device
    peers: tuple[int, ...]

    def play(self, tensors: Tensors, streams: Streams) -> None:
        for peer in self.peers:
            self.device.follow(streams.lane, streams.engine[peer])


Step = KernelStep | CopyStep | SignalStep | WaitStep | LetGoStep | ForkStep | JoinStep


@dataclass(frozen=True)
class Script:
    """A run that was made once, in its slot. `outputs`: name, shape and dtype of the results that torch allocates;
    `returned`: what the call returns; `call`: what ranks have to agree on."""

    record: Record
    slot: int
    call: Mapping[str, Any]
    outputs: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    returned: tuple[str, ...]
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, lane: CudaLane, run: Run, given: frozenset[str], call: Mapping[str, Any], site: Site) -> Script:
        """The script of a run: its kernels are loaded, which may take a while. Raises ResidencyError."""
        prepared, rank = run.prepared, run.lane.rank
        outputs = prepared.program.outputs
        made = [(t.name, shape_on(t, prepared.sizes, rank), getattr(torch, t.dtype)) for t in outputs]
        if STAMPS in run.tensors:
            made.append((STAMPS, tuple(run.tensors[STAMPS].shape), torch.int64))
        return cls(
            run.record(),
            run.slot,
            call,
            tuple(output for output in made if output[0] not in given),
            tuple(t.name for t in outputs),
            tuple(_step(lane, run, step, site) for step in run.steps),
        )

    @property
    def waits(self) -> bool:
        """Whether streams wait for tiles of the kernel."""
        return any(isinstance(step, WaitStep) for step in self.steps)

    def play(self, tensors: Tensors, streams: Streams) -> None:
        """Does it again, with other tensors of the caller."""
        for step in self.steps:
            step.play(tensors, streams)


def _step(lane: CudaLane, run: Run, step: RunStep, site: Site) -> Step:
    match step:
        case Launch():
            return _kernel(lane, run, step, site)
        case RegionCopy():
            return CopyStep(lane.device, step.peer, _part(lane, run, step.source), _part(lane, run, step.target))
        case SignalWrite():
            return SignalStep(lane.device, step.peer, _signals(lane, run, step.tensor, step.rank)[step.cell].data_ptr())
        case SignalWait():
            word = _signals(lane, run, step.tensor, run.lane.rank)[step.cell]
            return WaitStep(lane.device, step.peer, word.data_ptr(), step.expected)
        case LetGo():
            return LetGoStep(lane.device, _signals(lane, run, step.tensor, run.lane.rank))
        case Fork():
            return ForkStep(lane.device, step.peers)
        case Join():
            return JoinStep(lane.device, step.peers)


def _signals(lane: CudaLane, run: Run, tensor: str, rank: int) -> torch.Tensor:
    """The signals of a tensor on a rank of this node, words of 32 bits in the slot of a run."""
    at = run.signals_at(tensor)
    cells = next(n for name, _, n in run.placement.signals if name == tensor)
    return lane.heaps[rank][at : at + 4 * cells].view(torch.int32)


def _kernel(lane: CudaLane, run: Run, launch: Launch, site: Site) -> KernelStep:
    lowered = run.prepared.lowered
    try:
        kernel = lane.device.load(run.prepared, launch.kernel, launch.arguments)
        kernel.check_resident(launch.workers, lane.sms, site)
    except ScheduleError as e:
        raise type(e)(e.message, site).because_of("the schedule", lowered.program.schedule_site) from None
    lane.loaded[launch.kernel] = kernel
    of = {
        p.name: p.of for p in lowered.parameters if p.kind in ("tensor", "blocks", "stamps") and p.of in run.tensors
    }
    mine = [(at, name, value) for at, (name, value) in enumerate(launch.arguments.items()) if name in of]
    tensors = tuple((at, of[name]) for at, name, value in mine if isinstance(value, torch.Tensor))
    described = tuple((at, of[name]) for at, name, value in mine if hasattr(value, "block_shape"))
    values = list(launch.arguments.values())
    for at, _ in tensors:
        values[at] = None
    for at, _ in described:
        values[at] = copy(values[at])
        values[at].base = None
    return KernelStep(
        kernel.launcher(launch.workers), tuple(launch.arguments), tuple(values), tensors, described
    )


def _part(lane: CudaLane, run: Run, place: Place) -> torch.Tensor | tuple[str, tuple[slice, ...]]:
    """Where a region of a copy lies: in the slot on its rank, or in the caller's tensor."""
    part = run.part_of(place)
    if place.tensor not in dict(run.placement.data):
        return place.tensor, part
    tensor = run.prepared.program.tensor(place.tensor)
    shape, dtype = shape_on(tensor, run.prepared.sizes, None), getattr(torch, tensor.dtype)
    at = run.lane.layout.data_at(run.slot) + run.placement.data_of(place.tensor)
    memory = lane.heaps[place.rank][at : at + torch.Size(shape).numel() * dtype.itemsize]
    return memory.view(dtype).view(shape)[part]
