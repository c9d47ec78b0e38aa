"""The host's steps of a run, recorded to be repeated: only the caller's tensors change from call to call.

A script is a host plan of `tilelink.backend.host` with all values in it: kernels on the stream of the lane, copies and
writes of signals on a stream for each peer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from tilelink.analysis.placement import shape_on
from tilelink.backend.host import ENOUGH, Fork, Join, KernelLaunch, LetGo, Place, RegionCopy, SignalWait, SignalWrite
from tilelink.backend.host import Step as Planned
from tilelink.errors import ScheduleError, Site
from tilelink.runtime.board import Post
from tilelink.runtime.cuda.device import Kernel, Stream
from tilelink.runtime.cuda.lane import CudaLane
from tilelink.runtime.cuda.launches import Launch
from tilelink.runtime.launch import Record, Result, Run

Tensors = Mapping[str, torch.Tensor]
Agreement = frozenset[tuple[str, str]]


def agreement(call: Mapping[str, Any]) -> Agreement:
    """The values of a call on which ranks have to agree, as a key."""
    return frozenset(Post.of(0, call).values.items())


class Streams(NamedTuple):
    """The stream of a rank's lane, and the streams of its copy engine, by peer."""

    lane: Stream
    engine: Mapping[int, Stream]

    def of(self, step: RegionCopy | SignalWrite) -> Stream:
        """The stream of a step: of its peer, or of the lane."""
        return self.lane if step.ahead else self.engine[step.peer]


@dataclass(frozen=True)
class KernelStep:
    """A kernel on the stream of the lane. `values`: the values of its parameters, without tensors of the caller.
    `of_caller`: the places of the caller's tensors, and of descriptors of them, with their names."""

    kernel: Kernel
    workers: int
    values: tuple[Any, ...]
    of_caller: tuple[tuple[int, str], ...]

    @cached_property
    def launch(self) -> Launch:
        """Launches it, with the caller's tensors in the order of `of_caller`."""
        return self.kernel.launch(self.workers, self.values, [at for at, _ in self.of_caller])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the caller's tensors, in the order of `of_caller`."""
        return tuple(name for _, name in self.of_caller)

    def __call__(self, tensors: Tensors, streams: Streams) -> None:
        self.launch([*map(tensors.__getitem__, self.names)], streams.lane.cuda_stream)


Step = Callable[[Tensors, Streams], object]
"""A step of the host: a kernel, or other work on the stream of the lane or on streams of peers."""


@dataclass(frozen=True)
class Script:
    """A run that was made once, in its slot. `call`: the values on which ranks have to agree; `outputs`: the results
    that torch allocates, by name; `returned`: the names of the results that the call returns; `peers`: the peers whose
    streams it takes; `waits`: whether streams wait for tiles of the kernel."""

    record: Record
    slot: int
    slots: int
    call: Mapping[str, Any]
    outputs: Mapping[str, Result]
    returned: tuple[str, ...]
    steps: tuple[Step, ...]
    peers: tuple[int, ...]
    waits: bool

    @classmethod
    def of(cls, lane: CudaLane, run: Run, site: Site) -> Script:
        """Makes the script of a run, and loads its kernels, which may take a while. Raises ResidencyError."""
        program = run.prepared.program
        return cls(
            run.record(),
            run.slot,
            min(program.slots, lane.layout.slots),
            run.same,
            run.made,
            tuple(t.name for t in program.outputs),
            tuple(_step(lane, run, step, site) for step in run.plan),
            tuple(peer for step in run.plan if isinstance(step, Fork) for peer in step.peers),
            any(isinstance(step, SignalWait) for step in run.plan),
        )

    @cached_property
    def given_results(self) -> tuple[str, ...]:
        """The names of the results that the call gives."""
        return tuple(n for n in self.returned if n not in self.outputs)

    @property
    def kernels(self) -> int:
        """The number of kernels that it launches."""
        return sum(isinstance(step, KernelStep) for step in self.steps)

    @cached_property
    def agreement(self) -> Agreement:
        """The values on which ranks have to agree, as a key."""
        return agreement(self.call)

    def play(self, tensors: Tensors, streams: Streams) -> None:
        """Does the run again, with other tensors of the caller."""
        for step in self.steps:
            step(tensors, streams)


def _step(lane: CudaLane, run: Run, step: Planned, site: Site) -> Step:
    device = lane.device
    match step:
        case KernelLaunch():
            return _kernel(lane, run, step, site)
        case RegionCopy():
            source, target = (_part(lane, run, place) for place in (step.source, step.target))
            return lambda tensors, streams: device.copy(streams.of(step), source(tensors), target(tensors))
        case SignalWrite():
            given = _signals(lane, run, step.tensor, step.rank)[step.cell].data_ptr()
            return lambda tensors, streams: device.write_signal(streams.of(step), given)
        case SignalWait(peer=peer, expected=least):
            awaited = _signals(lane, run, step.tensor, run.rank)[step.cell].data_ptr()
            return lambda tensors, streams: device.wait_for_signal(streams.engine[peer], awaited, least)
        case LetGo():
            signals = _signals(lane, run, step.tensor, run.rank)
            return lambda tensors, streams: device.fill(streams.lane, signals, ENOUGH)
        case Fork(peers=peers) | Join(peers=peers):

            def follow(tensors: Tensors, streams: Streams) -> None:
                for peer in peers:
                    lane, engine = streams.lane, streams.engine[peer]
                    device.follow(*((engine, lane) if isinstance(step, Fork) else (lane, engine)))

            return follow


def _signals(lane: CudaLane, run: Run, tensor: str, rank: int) -> torch.Tensor:
    """The signals of a tensor on a rank of this node, in the slot of a run: a row of words each; the first counts."""
    cells = next(n for name, _, n in run.placement.signals if name == tensor)
    words = run.prepared.lowered.target.signal_bytes // 4
    return lane.memory(rank, run.signals_at(tensor), (cells, words), torch.int32)


def _kernel(lane: CudaLane, run: Run, step: KernelLaunch, site: Site) -> KernelStep:
    lowered, named, arguments = run.prepared.lowered, step.kernel.name, run.arguments(step.kernel)
    try:
        kernel = lane.device.load(run.prepared, named, arguments)
        kernel.check_resident(step.workers, lane.sms, site)
    except ScheduleError as e:
        raise type(e)(e.message, site).because_of("the schedule", lowered.program.schedule_site) from None
    lane.loaded[named] = kernel
    published = {t.name for t in lowered.program.on_heap}  # their descriptors point into the slot
    of_caller = (p for p in lowered.parameters if p.kind in ("tensor", "blocks", "stamps") and p.of in run.tensors)
    of = {p.name: p.of for p in of_caller if p.kind != "blocks" or p.of not in published}
    mine = tuple((at, of[name]) for at, name in enumerate(arguments) if name in of)
    values = list(arguments.values())
    for at, _ in mine:
        described = copy(values[at]) if hasattr(values[at], "block_shape") else None
        if described is not None:
            described.base = None
        values[at] = described
    return KernelStep(kernel, step.workers, tuple(values), mine)


def _part(lane: CudaLane, run: Run, place: Place) -> Callable[[Tensors], torch.Tensor]:
    """A function that gives the memory of a copied region: in the slot on its rank, or in the caller's tensor."""
    part = run.part_of(place)
    if place.tensor not in dict(run.placement.data):
        return lambda tensors: tensors[place.tensor][part]
    tensor = run.prepared.program.tensor(place.tensor)
    shape, dtype = shape_on(tensor, run.prepared.sizes, None), getattr(torch, tensor.dtype)
    found = lane.memory(place.rank, run.data_at(place.tensor), shape, dtype)[part]
    return lambda tensors: found
