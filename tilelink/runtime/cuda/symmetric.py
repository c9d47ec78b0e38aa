"""Symmetric memory of torch, behind one function. torch 2.11 to 2.15 differ here, and no other file may depend on that.

`torch.distributed._symmetric_memory` maps an allocation of every rank into every other rank's address space. We use
nothing else of it: no signal pads, which moved between releases, no barriers, no groups to be enabled first. Control
words and signals lie in the heap that is allocated here.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from tilelink.analysis.placement import ALIGNMENT
from tilelink.errors import SymmetricMemoryError
from tilelink.runtime.agreement import gathered, refuse, together
from tilelink.runtime.cuda.driver import driver
from tilelink.runtime.cuda.multicast import multicast_address

FIRST_TORCH = (2, 11)
"""The first release whose `rendezvous` needs no enabled group and whose handle has `offset`."""

OVERLAPPING = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"
"""torch's switch for several ranks on one device. torch then maps no multicast, and processes get time slices."""


@dataclass(frozen=True)
class SymmetricHeap:
    """The heaps of all ranks as this process maps them. `memories`: uint8 tensors on its device, its own heap among
    them. `multicast`: the address at which a store reaches all of them, or 0. `handle` keeps the mappings alive."""

    memories: tuple[torch.Tensor, ...]
    multicast: int
    handle: Any


def symmetric_heap(heap_bytes: int, group: dist.ProcessGroup, device: torch.device) -> SymmetricHeap:
    """Allocates a heap on every rank of a group and maps all of them. Collective. Their contents are undefined.

    Raises SymmetricMemoryError on every rank, if one of them can't.
    """
    refuse(group, " can't have symmetric memory", obstacle(device), SymmetricMemoryError)
    unreachable = _unreachable(_places(group, device), group.rank())
    refuse(group, " can't reach its peers", unreachable, SymmetricMemoryError)
    from torch.distributed import _symmetric_memory as symmetric

    def allocated() -> torch.Tensor:
        memory: torch.Tensor = symmetric.empty(heap_bytes, dtype=torch.uint8, device=device)
        return memory

    def mapped() -> SymmetricHeap:
        handle = symmetric.rendezvous(memory, group.group_name)
        return heap_of(handle, memory, group.rank(), group.size())

    # Two steps: a rank without memory would leave the others in the rendezvous.
    refused = (RuntimeError,)
    memory = together(group, " could not allocate its heap", allocated, SymmetricMemoryError, refused=refused)
    heap = together(group, " could not map the heaps", mapped, SymmetricMemoryError, refused=refused)
    return replace(heap, multicast=multicast_address(heap.multicast, int(heap.handle.offset), memory, group))


def heap_of(handle: Any, memory: torch.Tensor, rank: int, world: int) -> SymmetricHeap:
    """The heap behind a handle of torch. `buffer_ptrs` of the handle are the beginnings of allocations. `offset` is
    where the tensor lies in its own allocation, and in all others, because all ranks allocate alike. `multicast` is as
    torch gives it. Raises SymmetricMemoryError."""
    offset = int(handle.offset)
    addresses = tuple(int(base) + offset for base in handle.buffer_ptrs)
    if len(addresses) != world or int(handle.rank) != rank:
        raise SymmetricMemoryError(
            f"torch maps {len(addresses)} heaps for rank {int(handle.rank)}; the group has {world} ranks and this is "
            f"rank {rank}"
        )
    if addresses[rank] != memory.data_ptr():
        raise SymmetricMemoryError(
            f"the heap of rank {rank} is at {memory.data_ptr():#x}, and torch {torch.__version__} says "
            f"{addresses[rank]:#x} (its allocation, {addresses[rank] - offset:#x}, and an offset of {offset})"
        )
    for peer, address in enumerate(addresses):
        if address == offset or address % ALIGNMENT:
            raise SymmetricMemoryError(
                f"the heap of rank {peer} is mapped at {address:#x} on rank {rank}: an address that is a multiple of "
                f"{ALIGNMENT} is needed. Ranks of one node reach each other by torch's backend CUDA; "
                "set TORCH_SYMMMEM=CUDA where another is chosen"
            )
    memories = [memory if peer == rank else _peer(handle, peer, memory, addresses[peer]) for peer in range(world)]
    return SymmetricHeap(tuple(memories), int(handle.multicast_ptr), handle)


def _peer(handle: Any, peer: int, memory: torch.Tensor, address: int) -> torch.Tensor:
    """The heap of a peer as a tensor. It tries whether torch counts from the allocation or from the tensor in it."""
    for first in (0, int(handle.offset)):
        found: torch.Tensor = handle.get_buffer(peer, memory.shape, memory.dtype, first)
        if found.data_ptr() == address:
            return found
    raise SymmetricMemoryError(
        f"the heap of rank {peer} is at {address:#x}, and torch {torch.__version__} makes a tensor of it at "
        f"{found.data_ptr():#x}"
    )


def has_multicast(device: torch.device) -> bool:
    """Whether the fabric of a device stores to, and reduces over, all ranks of a node."""
    from torch._C._autograd import DeviceType
    from torch._C._distributed_c10d import _SymmetricMemory

    return bool(_SymmetricMemory.has_multicast_support(DeviceType.CUDA, device.index or 0))


# ---- obstacles


def obstacle(device: torch.device) -> str | None:
    """Why this rank can't have symmetric memory at all; None if it can."""
    number = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2])
    if number < FIRST_TORCH:
        return f"torch {torch.__version__}: symmetric memory is used from {'.'.join(map(str, FIRST_TORCH))} on"
    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} is built without CUDA"
    if device.type != "cuda" or not torch.cuda.is_available():
        return f"the device is {device}, and torch sees {torch.cuda.device_count()} CUDA devices"
    return None


@dataclass(frozen=True)
class _Place:
    """Where a rank is."""

    host: str
    device: int
    uuid: str


def _places(group: dist.ProcessGroup, device: torch.device) -> list[_Place]:
    """Where all ranks are."""
    index = torch.cuda.current_device() if device.index is None else device.index
    mine = _Place(socket.gethostname(), index, str(torch.cuda.get_device_properties(index).uuid))
    return gathered(group, mine)


def _unreachable(places: list[_Place], rank: int) -> str | None:
    """The first peer whose memory this rank can't reach, and why; None if it reaches all."""
    mine = places[rank]
    for peer, place in enumerate(places):
        if peer == rank:
            continue
        if place.host != mine.host:
            return f"rank {peer} is on node {place.host}, rank {rank} on {mine.host}: peer memory is of one node"
        if place.uuid == mine.uuid:
            if os.environ.get(OVERLAPPING) != "1":
                return (
                    f"rank {peer} is on the GPU of rank {rank}, cuda:{mine.device}: give each its own "
                    f"(torch.cuda.set_device before the first call), or set {OVERLAPPING}=1 to share it for tests"
                )
        elif place.device == mine.device:
            continue  # each process sees only its own GPU, so this can't be asked
        elif not torch.cuda.can_device_access_peer(mine.device, place.device):
            return f"cuda:{mine.device} can't access the memory of cuda:{place.device}, where rank {peer} is"
        elif not driver().has_native_atomics(mine.device, place.device):
            return (
                f"atomics of cuda:{mine.device} on the memory of cuda:{place.device}, where rank {peer} is, are not "
                "atomic there (no native peer atomics: not connected by NVLink), and signals are counted by them"
            )
    return None
