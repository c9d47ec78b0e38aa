"""The loopback link: one rank of a world runs on a GPU; its peers are only memory of the host.

Data that the rank stores to its peers, loads from them, or gives to the copy engine cross a real link while the GEMM
runs. The work of peers is done before the run: their rows lie where they would bring them, their signals are given,
and their progress says that they have finished every run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tilelink.analysis.events import NOTIFY
from tilelink.analysis.placement import ALIGNMENT, shape_on
from tilelink.errors import Site, StuckError
from tilelink.programs.program import Program
from tilelink.runtime.bounds import Bounds
from tilelink.runtime.cuda.device import CudaDevice
from tilelink.runtime.cuda.group import CudaGroup
from tilelink.runtime.cuda.lane import CudaLane
from tilelink.runtime.cuda.script import Script
from tilelink.runtime.layout import CONTROL_WORDS, HeapLayout, heap_in, place
from tilelink.runtime.stuck import of_report

RANK = 0
THROUGH = 1 << 40
"""The progress word of peers: a number of finished runs that no test reaches."""


class LoopbackGroup(CudaGroup):
    """Rank 0 of `world` ranks on a device; its peers' heaps are in pinned memory. `shared`: all peers share one heap,
    since nobody reads what the rank stores there."""

    def __init__(self, device: CudaDevice, world: int, heap_bytes: int, signal_bytes: int, shared: bool = True) -> None:
        def on_host() -> torch.Tensor:
            memory = torch.empty(heap_bytes + ALIGNMENT, dtype=torch.uint8, pin_memory=device.place.type == "cuda")
            return heap_in(memory)

        mine = heap_in(device.empty((heap_bytes + ALIGNMENT,), torch.uint8))
        peers = [on_host()] * (world - 1) if shared else [on_host() for _ in range(world - 1)]
        layout = HeapLayout(world, heap_bytes, 1, signal_bytes)
        super().__init__(CudaLane(device, layout, [mine, *peers], device.sms, Bounds(3.0, 2.0)), RANK)
        self.lane.clear(RANK)
        words = self.lane.words(RANK)[CONTROL_WORDS + 1 :]
        words.copy_(torch.full((world - 1,), THROUGH, dtype=torch.int64))
        device.synchronize(device.current())

    def compare(self, call: dict[str, Any], site: Site) -> None:
        """Does nothing: no other rank makes calls."""

    def check(self) -> None:
        if report := self.lane.report(self.rank):
            raise StuckError(of_report(report, self.lane.layout, self.named(report)), Site.of_user())


@dataclass
class Prepared:
    """A call of a program on the loopback link. `x`, `weight`: of this rank; `peers`: the same x of every peer."""

    group: LoopbackGroup
    program: Program
    schedule: str
    x: torch.Tensor
    weight: torch.Tensor
    peers: torch.Tensor
    script: Script = field(init=False)
    signals: list[tuple[torch.Tensor, torch.Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        self.program.prepare(self.x, self.weight, schedule=self.schedule, group=self.group)
        (self.script,) = self.group._known.values()[-1].scripts.values()
        self.signals = list(self._of_peers())
        self._bring()

    def before(self) -> None:
        """Gives the signals of the peers. Each run drains them."""
        for words, counts in self.signals:
            words.copy_(counts)

    def checked(self) -> torch.Tensor:
        """The result of a call, after all its kernels ended without an aborted wait."""
        self.before()
        found = self.call()
        self.group.synchronize()
        return found

    def call(self) -> torch.Tensor:
        out: torch.Tensor = self.program(self.x, self.weight, schedule=self.schedule, group=self.group)
        return out

    def _of_peers(self) -> Any:
        """Yields the signals of this rank, and how often peers give each of them in a run."""
        record, events = self.script.record, self.script.record.prepared.events
        words = record.prepared.lowered.target.signal_bytes // 4
        given = (events.op == NOTIFY) & (events.home == RANK) & (events.rank != RANK)
        names = [t.name for t in record.prepared.program.tensors]
        for name, at, cells in record.signals:
            mine = events.cell[given & (events.tensor == names.index(name))]
            counts = torch.from_numpy(np.bincount(mine, minlength=cells).astype(np.int32))
            yield self.group.lane.memory(RANK, at, (cells, words), torch.int32)[:, 0], counts.to(self.group.lane.place)

    def _bring(self) -> None:
        """Writes what peers would bring, and what this rank fetches from them: their rows, or partial sums of zero."""
        peers = {heap.data_ptr(): rank for rank, heap in enumerate(self.group.lane.heaps) if rank != RANK}
        if (full := self._buffer("full", RANK)) is not None:
            full[len(self.x) :].copy_(self.peers.repeat(self.group.world - 1, 1))
        if (inbox := self._buffer("inbox", RANK)) is not None:
            inbox.zero_()
        for rank in peers.values():
            if (x := self._buffer("x", rank)) is not None:
                x.copy_(self.peers)
            if (sums := self._buffer("partial", rank)) is not None:
                sums.zero_()
        self.group.lane.device.synchronize(self.group.lane.device.current())

    def _buffer(self, name: str, rank: int) -> torch.Tensor | None:
        """Returns a buffer in the slot of a rank, or None if the schedule does not have it."""
        prepared, lane = self.script.record.prepared, self.group.lane
        target, stage = prepared.lowered.target, prepared.stage_bytes
        placement = place(prepared.program, prepared.sizes, lane.layout, target, stage)
        if name not in dict(placement.data):
            return None
        tensor = prepared.program.tensor(name)
        at = lane.layout.data_at(0) + placement.data_of(name)
        return lane.memory(rank, at, shape_on(tensor, prepared.sizes, rank), getattr(torch, tensor.dtype))
