"""NVSHMEM's host library, by its C interface: initialised from Python, with torch's processes for a bootstrap.

A rank of NVSHMEM is a PE. All processes of the group that initialises it are its PEs, in the order of their ranks. The
layout of structures is that of NVSHMEM 3 (`nvshmem_types.h`, `nvshmem_uniqueid.h`); each says its version and size.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import Structure, byref, c_char, c_int, c_size_t, c_void_p, sizeof
from typing import Any, ClassVar

import torch.distributed as dist

from tilelink.backend.nvshmem import HOST, host_folder, host_library
from tilelink.errors import NvshmemError
from tilelink.runtime.agreement import gathered, together

VERSION = 1 << 16
WITH_UNIQUE_ID = 1 << 3
INITIALISED = 2
"""NVSHMEM_STATUS_IS_INITIALIZED; what is more says how many processes share a GPU."""


class UniqueId(Structure):
    """nvshmemx_uniqueid_v1: where the processes meet."""

    _fields_: ClassVar = [("version", c_int), ("internal", c_char * 124)]


class UniqueIdArgs(Structure):
    """nvshmemx_uniqueid_args_v1."""

    _fields_: ClassVar = [("version", c_int), ("id", c_void_p), ("rank", c_int), ("ranks", c_int)]


class InitArgs(Structure):
    """nvshmemx_init_args_v1."""

    _fields_: ClassVar = [("version", c_int), ("unique_id", UniqueIdArgs), ("content", c_char * 96)]


class InitAttributes(Structure):
    """nvshmemx_init_attr_v1."""

    _fields_: ClassVar = [("version", c_int), ("mpi_comm", c_void_p), ("args", InitArgs)]


class Nvshmem:
    """The library; each method is one call of it. `library`: what answers, by ctypes. Raises NvshmemError."""

    def __init__(self, library: Any) -> None:
        self.library = library
        for name in ("nvshmem_malloc", "nvshmem_ptr"):
            getattr(library, name).restype = c_void_p

    def initialised(self) -> bool:
        """Whether somebody in this process has initialised it, such as torch."""
        return int(self.library.nvshmemx_init_status()) >= INITIALISED

    def unique_id(self) -> bytes:
        """A new place to meet, made by one process for all."""
        found = UniqueId(version=VERSION + sizeof(UniqueId))
        self._ok("nvshmemx_get_uniqueid", byref(found))
        return bytes(found)

    def initialise(self, unique_id: bytes, rank: int, ranks: int) -> None:
        """Collective: this process becomes PE `rank` of `ranks`, on its current device."""
        where = UniqueId.from_buffer_copy(unique_id)
        attributes = self.attributes(where, rank, ranks)
        self._ok("nvshmemx_hostlib_init_attr", WITH_UNIQUE_ID, byref(attributes))

    def attributes(self, where: UniqueId, rank: int, ranks: int) -> InitAttributes:
        """What `initialise` gives the library: filled in by itself."""
        found = InitAttributes(version=VERSION + sizeof(InitAttributes))
        found.args.version = VERSION + sizeof(InitArgs)
        found.args.unique_id.version = VERSION + sizeof(UniqueIdArgs)
        self._ok("nvshmemx_set_attr_uniqueid_args", rank, ranks, byref(where), byref(found))
        return found

    def pe(self) -> int:
        return int(self.library.nvshmem_my_pe())

    def allocate(self, size: int) -> int:
        """Collective over all PEs: so many bytes of symmetric memory, aligned to 256; its address here."""
        found = self.library.nvshmem_malloc(c_size_t(size))
        if not found:
            raise NvshmemError(
                f"NVSHMEM has no {size} bytes of symmetric memory: set NVSHMEM_SYMMETRIC_SIZE to more than all heaps"
            )
        return int(found)

    def near(self, address: int, pe: int) -> int:
        """Where a symmetric address of a PE is mapped here; 0 for a PE on another node."""
        return int(self.library.nvshmem_ptr(c_void_p(address), c_int(pe)) or 0)

    def settle(self) -> None:
        """Collective over all PEs: nothing that any of them has sent is under way."""
        self.library.nvshmem_quiet()
        self.library.nvshmem_barrier_all()

    def _ok(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise NvshmemError(f"{name} returned {status}; NVSHMEM_DEBUG=INFO says more")


def loaded() -> Nvshmem:
    """The library that this process has loaded already, else that of the wheel. Raises NvshmemError."""
    try:
        return Nvshmem(host_library())
    except NvshmemError:
        path = host_folder() / HOST
        try:
            return Nvshmem(ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL | os.RTLD_LAZY))
        except OSError as e:
            raise NvshmemError(f"{path} can't be loaded: {e}") from e


def initialised(group: dist.ProcessGroup) -> Nvshmem:
    """The library, initialised with the processes of a group, unless it was before; collective. Raises NvshmemError, on
    every rank if one does."""
    library = together(group, " has no NVSHMEM", loaded, refused=(NvshmemError,), error=NvshmemError)
    before = gathered(group, library.initialised())
    if all(before):
        return library
    if any(before):
        raise NvshmemError(f"NVSHMEM is initialised on some ranks only: {before}")
    rank, world = dist.get_rank(group), dist.get_world_size(group)

    def first() -> bytes:
        return library.unique_id() if rank == 0 else b""

    made = together(group, " can't begin NVSHMEM's bootstrap", first, refused=(NvshmemError,), error=NvshmemError)
    unique_id = gathered(group, made)[0]
    together(
        group, " could not initialise NVSHMEM", lambda: library.initialise(unique_id, rank, world),
        refused=(NvshmemError,), error=NvshmemError,
    )  # fmt: skip
    return library
