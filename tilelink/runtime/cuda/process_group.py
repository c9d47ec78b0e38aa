"""One process a rank, each on a GPU of its own: heaps in symmetric memory of torch, runs in the order of the stream."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tilelink.errors import DeviceError, Site, WorldError
from tilelink.frontend.kept import Kept
from tilelink.runtime.agreement import together
from tilelink.runtime.bounds import Bounds
from tilelink.runtime.cuda.device import CudaDevice
from tilelink.runtime.cuda.group import KEPT_CALLS, CudaGroup
from tilelink.runtime.cuda.lane import CudaLane
from tilelink.runtime.cuda.script import Agreement, Script, agreement
from tilelink.runtime.cuda.symmetric import symmetric_heap
from tilelink.runtime.layout import HeapLayout
from tilelink.runtime.process_group import ProcessGroup


class CudaProcessGroup(CudaGroup, ProcessGroup):
    """A rank that is a process with a GPU. See `tilelink.group`.

    A call returns when its kernels are enqueued. New calls are compared with those of the other ranks before anything
    is launched, and so they wait for each other on the host; calls like one before do not.
    """

    def __init__(self, process_group: dist.ProcessGroup, lane: CudaLane) -> None:
        ProcessGroup.__init__(self, process_group, lane, lane.bounds)
        CudaGroup.__init__(self, lane, self.rank)
        lane.heaps[self.rank].fill_(0xFF)  # NaN of every dtype, so that what nobody wrote shows
        lane.device.synchronize(lane.device.current())
        lane.clear(self.rank)
        self._agreed: Kept[Agreement, bool] = Kept(KEPT_CALLS * lane.layout.slots)
        self._meet()

    # ---- calls

    def agreed(self, script: Script) -> bool:
        return script.agreement in self._agreed

    def compare(self, call: dict[str, Any], site: Site) -> None:
        """A script may be new to one rank alone, where its tensors lie otherwise than before; calls are new to all
        ranks or to none. Hence what they agreed on goes in the order in which it came, the same on all of them: looking
        for it changes nothing."""
        key = agreement(call)
        if key not in self._agreed:
            ProcessGroup.compare(self, call, site)
            self._agreed.put(key, True)

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
        self.raise_if_refused()

    def reset(self) -> None:
        """Collective: waits for what was launched, which bounded waits end; then the lane is as new."""
        self.until_done()
        self._agreed.clear()
        ProcessGroup.reset(self)


def cuda_process_group(
    process_group: dist.ProcessGroup, layout: HeapLayout, reserved: int, bounds: Bounds
) -> CudaProcessGroup:
    """The calling process's rank, on its current CUDA device; collective. Raises, on every rank if one does,
    DeviceError, WorldError, SymmetricMemoryError."""
    device = together(process_group, "", CudaDevice, DeviceError)
    if not 0 <= reserved < device.sms:
        what = f"the device has {device.sms} SMs, of which one at least is ours"
        raise WorldError(f"reserved={reserved}: {what}", Site.of_user())
    heap = symmetric_heap(layout.heap_bytes, process_group, device.place)
    lane = CudaLane(device, layout, heap.memories, device.sms - reserved, bounds, heap.multicast)
    lane.mappings = heap.handle
    return CudaProcessGroup(process_group, lane)
