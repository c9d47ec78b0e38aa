"""One process a rank, each on its own GPU: heaps in symmetric memory of torch, runs in the order of the stream."""

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

    A call returns when its kernels are enqueued. New calls are compared between ranks before anything is launched, so
    the hosts wait for each other; for calls like an earlier one they do not.
    """

    def __init__(self, process_group: dist.ProcessGroup, lane: CudaLane) -> None:
        ProcessGroup.__init__(self, process_group, lane, lane.bounds)
        self.be_on_device()
        lane.heaps[self.rank].fill_(0xFF)  # NaN of every dtype, so that unwritten elements show
        lane.device.synchronize(lane.device.current())
        lane.clear(self.rank)
        self._agreed: Kept[Agreement, bool] = Kept(KEPT_CALLS * lane.layout.slots)
        self._meet()

    # ---- calls

    def agreed(self, script: Script) -> bool:
        return script.agreement in self._agreed

    def compare(self, call: dict[str, Any], site: Site) -> None:
        """Compares a call that is new to the ranks. A script may be new to one rank alone, because its tensors lie
        otherwise than before, but a call must be new to all ranks or to none. Agreements are therefore forgotten in the
        order in which they were made, the same on all ranks: looking one up does not change this order."""
        key = agreement(call)
        if key not in self._agreed:
            ProcessGroup.compare(self, call, site)
            self._agreed.put(key, True)

    def replay(self, graph: torch.cuda.CUDAGraph) -> None:
        """Replays a graph that was captured on this rank. As with calls, all ranks of a group must replay the same
        graphs in the same order."""
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
        """Collective: waits for all launched work, whose waits are bounded, then makes the lane usable again."""
        self.until_done()
        self._agreed.clear()
        ProcessGroup.reset(self)


def cuda_process_group(
    process_group: dist.ProcessGroup, layout: HeapLayout, reserved: int, bounds: Bounds
) -> CudaProcessGroup:
    """Makes a lane, and returns the calling process's rank, on its current CUDA device. Collective. Raises, on every
    rank if one does, DeviceError, WorldError, SymmetricMemoryError."""
    device = together(process_group, "", CudaDevice, DeviceError)
    if not 0 <= reserved < device.sms:
        what = f"the device has {device.sms} SMs, and the lane needs at least one"
        raise WorldError(f"reserved={reserved}: {what}", Site.of_user())
    heap = symmetric_heap(layout.heap_bytes, process_group, device.place)
    lane = CudaLane(device, layout, heap.memories, device.sms - reserved, bounds, heap.multicast)
    lane.mappings = heap.handle
    return CudaProcessGroup(process_group, lane)
