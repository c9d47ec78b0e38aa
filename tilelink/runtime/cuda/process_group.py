"""One process a rank, each on a GPU of its own: heaps in symmetric memory of torch, runs in the order of the stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from tilelink.errors import DeviceError, Site, WorldError
from tilelink.runtime.board import Post
from tilelink.runtime.bounds import Bounds
from tilelink.runtime.cuda.device import CudaDevice, Device
from tilelink.runtime.cuda.group import CudaGroup
from tilelink.runtime.cuda.lane import CudaLane
from tilelink.runtime.cuda.symmetric import SymmetricHeap, symmetric_heap
from tilelink.runtime.layout import CONTROL_WORDS, HeapLayout
from tilelink.runtime.poison import Report
from tilelink.runtime.process_group import ProcessGroup
from tilelink.runtime.shared import gathered


class CudaProcessGroup(CudaGroup, ProcessGroup):
    """A rank that is a process with a GPU. See `tilelink.group`.

    A call returns when its kernels are enqueued. New calls are compared with those of the other ranks before anything
    is launched, and so they wait for each other on the host; calls like one before do not. What makes a call new is
    what ranks have to agree on, so it is new to all of them, or to none.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup,
        layout: HeapLayout,
        device: Device,
        heap: SymmetricHeap,
        reserved: int,
        bounds: Bounds,
    ) -> None:
        rank, self.heap = dist.get_rank(process_group), heap
        heap.memories[rank].fill_(0xFF)  # NaN of every dtype, so that what nobody wrote shows
        sms = device.sms - reserved
        CudaGroup.__init__(self, CudaLane(device, layout, heap.memories, sms, bounds, heap.multicast), rank)
        device.synchronize(device.current())
        ProcessGroup.__init__(self, process_group, self.lane, bounds)
        self._agreed: set[bytes] = set()
        self.clear()
        self._meet()

    # ---- what the memory of the ranks is

    def progress(self, rank: int) -> int:
        return self.cuda.control(self.rank)[CONTROL_WORDS + rank]

    def report(self) -> Report | None:
        return self.cuda.report(self.rank)

    def poison(self, report: Report) -> None:
        self.cuda.poison(report)

    def clear(self) -> None:
        self.cuda.clear(self.rank, self.flag)

    # ---- calls

    def agree(self, call: Mapping[str, Any], site: Site) -> None:
        digest = Post.of(0, call).digest
        if digest not in self._agreed:
            ProcessGroup.compare(self, dict(call), site)
            self._agreed.add(digest)

    def replay(self, graph: torch.cuda.CUDAGraph) -> None:
        """Replays a graph that was captured on this rank. What is asked of the graphs of a group is what is asked of
        its calls: all ranks replay the same, in the same order."""
        if self._flag[0]:
            self.check()
        self.in_order()
        graph.replay()

    def check(self) -> None:
        self.site = Site.of_user()
        if self.report() is not None:
            self.raise_if_dead(range(self.world), "while its peers wait for it")
        self.raise_if_poisoned()

    def reset(self) -> None:
        """Collective: waits for what was launched, which bounded waits end; then the lane is as new."""
        for stream in {self.cuda.device.current(), self._stream} - {None}:
            self.cuda.device.synchronize(stream)
        ProcessGroup.reset(self)


def cuda_process_group(
    process_group: dist.ProcessGroup, layout: HeapLayout, reserved: int, bounds: Bounds
) -> CudaProcessGroup:
    """The calling process's rank, on its current CUDA device; collective. Raises, on every rank if one does,
    DeviceError, WorldError, SymmetricMemoryError."""
    site = Site.of_user()
    device, trouble = None, ""
    try:
        device = CudaDevice()
    except DeviceError as e:
        trouble = e.message
    for rank, theirs in enumerate(gathered(process_group, trouble)):
        if theirs:
            raise DeviceError(f"rank {rank}: {theirs}", site)
    assert device is not None
    if not 0 <= reserved < device.sms:
        raise WorldError(f"reserved={reserved}: the device has {device.sms} SMs, of which one at least is ours", site)
    heap = symmetric_heap(layout.heap_bytes, process_group, device.place)
    return CudaProcessGroup(process_group, layout, device, heap, reserved, bounds)
