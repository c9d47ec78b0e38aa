"""Memory that the processes of a group share, without a name in any file system: when the last of them ends, however
it ends, the kernel frees it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from tilelink.errors import Site, WorldError

T = TypeVar("T")


def share(process_group: dist.ProcessGroup, size: int) -> list[torch.Tensor]:
    """Collective: `size` bytes of every rank, zero at first, as uint8 tensors of all ranks, by rank. Raises WorldError
    on every rank where one of them can't reach the memory of another."""
    mine = together(process_group, "make memory to share", lambda: _made(size))
    try:
        owners = gathered(process_group, (_machine(), os.getpid(), mine))
        reach = "reach the memory of its peers"
        return together(process_group, reach, lambda: [_mapped(owner, size) for owner in owners])
    finally:
        os.close(mine)  # all have opened it


def together(process_group: dist.ProcessGroup, what: str, function: Callable[[], T]) -> T:
    """What `function()` gives. Collective: raises WorldError on every rank where the system refuses it on one."""
    found: list[T] = []
    trouble = ""
    try:
        found.append(function())
    except OSError as e:
        trouble = str(e)
    for rank, theirs in enumerate(gathered(process_group, trouble)):
        if theirs:
            raise WorldError(f"rank {rank} can't {what}: {theirs}", Site.of_user())
    return found[0]


def gathered(process_group: dist.ProcessGroup, mine: Any) -> list[Any]:
    """What every rank gives, by rank. Collective."""
    found: list[Any] = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(found, mine, group=process_group)
    return found


def _machine() -> tuple[str, int]:
    """What two processes have in common that can see each other: the kernel that runs, and the names of processes."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.stat("/proc/self/ns/pid").st_ino


def _made(size: int) -> int:
    memory = os.memfd_create("tilelink")
    os.ftruncate(memory, size)
    return memory


def _mapped(owner: tuple[tuple[str, int], int, int], size: int) -> torch.Tensor:
    machine, pid, descriptor = owner
    if machine != _machine():
        raise OSError("they are on different machines, or in different containers")
    theirs = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
    try:
        return torch.frombuffer(mmap.mmap(theirs, size), dtype=torch.uint8)
    finally:
        os.close(theirs)
