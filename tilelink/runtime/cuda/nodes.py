"""A lane over several nodes: near ranks are reached by pointers, far ranks by NVSHMEM (docs/nodes.md)."""

from __future__ import annotations

import ctypes
import socket
import uuid
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_process_group_store

from tilelink.analysis.placement import ALIGNMENT
from tilelink.backend.nvshmem import initialise_kernels
from tilelink.errors import DeviceError, FarAccessError, NvshmemError, Site, WorldError
from tilelink.runtime.agreement import gathered, together
from tilelink.runtime.bounds import Bounds, Processes
from tilelink.runtime.cuda.device import CudaDevice
from tilelink.runtime.cuda.lane import CudaLane
from tilelink.runtime.cuda.multicast import multicast_address
from tilelink.runtime.cuda.nvshmem import Nvshmem, all_ask, initialised, strided
from tilelink.runtime.cuda.process_group import CudaProcessGroup
from tilelink.runtime.layout import HeapLayout
from tilelink.runtime.store_board import StoreBoard
from tilelink.runtime.wires import Watched


class NodesLane(CudaLane):
    """The heaps of the own node. Heaps of other nodes are empty here; kernels know them by their PEs. `table`: for each
    heap its address or, if it is far, -1 - its PE."""

    def __init__(
        self, device: CudaDevice, layout: HeapLayout, heaps: Sequence[torch.Tensor], sms: int, bounds: Bounds,
        multicast: int, per_node: int, table: Sequence[int],
    ) -> None:  # fmt: skip
        super().__init__(device, layout, heaps, sms, bounds, multicast)
        self.target, self.per_node = self.target.unspecialised.across_nodes(), per_node
        self.tables = self.tables_of(table)

    def memory(self, rank: int, at: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Raises FarAccessError for a rank of another node."""
        if not self.heaps[rank].numel():
            raise FarAccessError(
                f"the host reaches only ranks of its node, and rank {rank} is on another: copy engines do not cross "
                "nodes; take a schedule that communicates on SMs",
                Site.of_user(),
            )
        return super().memory(rank, at, shape, dtype)

    def reached(self) -> list[int]:
        return [rank for rank, heap in enumerate(self.heaps) if heap.numel()]


class NodesGroup(CudaProcessGroup):
    """A rank of a lane over several nodes. Calls are compared through torch's store. `team`: the team of its PEs."""

    def __init__(self, process_group: dist.ProcessGroup, lane: NodesLane, library: Nvshmem, team: int) -> None:
        self.library, self.team = library, team
        super().__init__(process_group, lane)

    def make_board(self, process_group: dist.ProcessGroup) -> StoreBoard:
        name = gathered(process_group, uuid.uuid4().hex)[0]
        store = PrefixStore(f"tilelink/{name}", _get_process_group_store(process_group))
        return StoreBoard(store, dist.get_rank(process_group), dist.get_world_size(process_group))

    def watched(self, process_group: dist.ProcessGroup) -> Processes:
        return Watched(process_group, socket.gethostname())

    def reset(self) -> None:
        """As `ProcessGroup.reset`, after all signals under way have arrived. It names ranks that died before it calls
        NVSHMEM, which would wait for them."""
        self.site = Site.of_user()
        self.until_done()
        self._meet()
        self.library.settle(self.team)
        super().reset()


def nodes_group(
    process_group: dist.ProcessGroup, layout: HeapLayout, reserved: int, bounds: Bounds, per_node: int
) -> NodesGroup:
    """Makes a lane of a group on nodes of `per_node` ranks, and returns the calling process's rank, on its current CUDA
    device. Collective. Raises, on every rank if one does, DeviceError, NvshmemError and WorldError."""
    device = together(process_group, "", CudaDevice, DeviceError)
    library = initialised(process_group)
    rank = dist.get_rank(process_group)
    pes = gathered(process_group, library.pe())
    strided(pes)
    all_ask(library, {**vars(layout), "per_node": per_node}, bounds.enter)

    def allocated() -> int:
        return -(-library.allocate(layout.heap_bytes + ALIGNMENT) // ALIGNMENT) * ALIGNMENT

    # All heaps lie at one symmetric offset: NVSHMEM gives all PEs the same offset, and its bases are aligned alike.
    mine = together(process_group, " could not allocate its heap", allocated, NvshmemError)
    where = [mine if pe == library.pe() else library.near(mine, pe) for pe in pes]
    node = [other // per_node == rank // per_node for other in range(layout.world)]
    wrong = [r for r, (there, near) in enumerate(zip(where, node, strict=True)) if bool(there) != near]
    if any(differing := gathered(process_group, wrong)):
        first = next(r for r, ranks in enumerate(differing) if ranks)
        raise WorldError(
            f"per_node={per_node}, and NVSHMEM says otherwise of ranks {differing[first]} as rank {first} reaches "
            "them: give the number of ranks on each node",
            Site.of_user(),
        )
    heaps = [tensor_at(at, layout.heap_bytes if at else 0, device.place) for at in where]
    table = [at or -(pe + 1) for at, pe in zip(where, pes, strict=True)]
    team, near = library.team(pes), [r for r, there in enumerate(node) if there]
    of_node = library.team([pes[r] for r in near])
    given = library.multicast(mine, of_node) if len(near) > 1 else 0
    multicast = multicast_address(given, 0, heaps[rank], process_group, near=near)
    lane = NodesLane(device, layout, heaps, device.sms - reserved, bounds, multicast, per_node, table)
    initialise_kernels()
    return NodesGroup(process_group, lane, library, team)


def tensor_at(address: int, size: int, place: torch.device) -> torch.Tensor:
    """A uint8 tensor of memory that is not torch's."""
    if not size:
        return torch.empty(0, dtype=torch.uint8, device=place)
    if place.type == "cpu":
        return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
    # Not by the array interface: torch would ask where the memory is, and copy a peer's memory.
    storage = torch._C._construct_storage_from_data_pointer(address, place, size)
    return torch.empty(0, dtype=torch.uint8, device=place).set_(storage)
