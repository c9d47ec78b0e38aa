"""NVSHMEM's host library, by its C interface: initialised from Python, with torch's processes for a bootstrap.

A rank of NVSHMEM is a PE. All processes of the group that initialises it are its PEs, in the order of their ranks.
Structures are laid out as in NVSHMEM 3 (`nvshmem_types.h`, `nvshmem_uniqueid.h`); each has its version and size.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Mapping, Sequence
from ctypes import Structure, byref, c_char, c_int, c_long, c_size_t, c_void_p, sizeof
from functools import partial
from typing import Any, ClassVar

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_process_group_store

from tilelink.backend.nvshmem import HOST, host_folder, host_library
from tilelink.errors import NvshmemError
from tilelink.runtime.agreement import gathered, mismatch, together
from tilelink.runtime.bounds import LONGEST_REST

VERSION = 1 << 16
WITH_UNIQUE_ID = 1 << 3
INITIALISED = 2
"""NVSHMEM_STATUS_IS_INITIALIZED; larger values say how processes share a GPU."""
ALL_PES, OF_NODE = 0, 2
"""NVSHMEM_TEAM_WORLD and NVSHMEMX_TEAM_NODE."""
_asked = [0]
"""How many lanes all processes have asked NVSHMEM for."""


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
    """NVSHMEM; each method makes one call of it. `library`: its library in ctypes. Raises NvshmemError."""

    def __init__(self, library: Any) -> None:
        self.library = library
        for name in ("nvshmem_malloc", "nvshmem_ptr", "nvshmemx_mc_ptr"):
            getattr(library, name).restype = c_void_p

    def initialised(self) -> bool:
        """Whether anything in this process, such as torch, has initialised it."""
        return int(self.library.nvshmemx_init_status()) >= INITIALISED

    def unique_id(self) -> bytes:
        """A new id of a meeting place; one process makes it for all."""
        found = UniqueId(version=VERSION + sizeof(UniqueId))
        self._ok("nvshmemx_get_uniqueid", byref(found))
        return bytes(found)

    def initialise(self, unique_id: bytes, rank: int, ranks: int) -> None:
        """Collective: makes this process PE `rank` of `ranks`, on its current device."""
        where = UniqueId.from_buffer_copy(unique_id)
        attributes = self.attributes(where, rank, ranks)
        self._ok("nvshmemx_hostlib_init_attr", WITH_UNIQUE_ID, byref(attributes))

    def attributes(self, where: UniqueId, rank: int, ranks: int) -> InitAttributes:
        """The attributes that `initialise` gives the library; the library fills them in."""
        found = InitAttributes(version=VERSION + sizeof(InitAttributes))
        found.args.version = VERSION + sizeof(InitArgs)
        found.args.unique_id.version = VERSION + sizeof(UniqueIdArgs)
        self._ok("nvshmemx_set_attr_uniqueid_args", rank, ranks, byref(where), byref(found))
        return found

    def pe(self) -> int:
        return int(self.library.nvshmem_my_pe())

    def pes(self) -> int:
        """The number of PEs."""
        return int(self.library.nvshmem_n_pes())

    def allocate(self, size: int) -> int:
        """Collective over all PEs: allocates symmetric memory, aligned to 256 bytes; returns its address here."""
        found = self.library.nvshmem_malloc(c_size_t(size))
        if not found:
            raise NvshmemError(
                f"NVSHMEM has no {size} bytes of symmetric memory: set NVSHMEM_SYMMETRIC_SIZE to more than all heaps"
            )
        return int(found)

    def near(self, address: int, pe: int) -> int:
        """Where a symmetric address of a PE is mapped here; 0 for a PE on another node."""
        return int(self.library.nvshmem_ptr(c_void_p(address), c_int(pe)) or 0)

    def team(self, pes: Sequence[int]) -> int:
        """The team of these PEs, which include this one. Collective over all PEs, each with the PEs of its own team.
        Raises NvshmemError."""
        if list(pes) == list(range(self.pes())):
            return ALL_PES
        of_node = [pe for pe in pes if self.library.nvshmem_team_translate_pe(ALL_PES, pe, OF_NODE) >= 0]
        if of_node == list(pes) and len(pes) == int(self.library.nvshmem_team_n_pes(OF_NODE)):
            return OF_NODE
        made, (start, stride) = c_int(-1), strided(pes)
        self._ok("nvshmem_team_split_strided", ALL_PES, start, stride, len(pes), None, c_long(0), byref(made))
        return made.value

    def multicast(self, address: int, team: int) -> int:
        """Where a store reaches a symmetric address on all PEs of a team; 0 if the fabric maps none."""
        return int(self.library.nvshmemx_mc_ptr(team, c_void_p(address)) or 0)

    def settle(self, team: int) -> None:
        """Collective over a team: waits until everything that its PEs have sent has arrived."""
        self._ok("nvshmem_barrier", team)

    def _ok(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise NvshmemError(f"{name} returned {status}; NVSHMEM_DEBUG=INFO says more")


def strided(pes: Sequence[int]) -> tuple[int, int]:
    """The first PE of a team, and the step between its PEs. Raises NvshmemError for PEs without an equal step."""
    stride = pes[1] - pes[0] if len(pes) > 1 else 1
    if stride < 1 or list(pes) != [pes[0] + stride * k for k in range(len(pes))]:
        raise NvshmemError(f"PEs {list(pes)} are no team of NVSHMEM: the PEs of a team rise in equal steps")
    return pes[0], stride


def all_ask(library: Nvshmem, asked: Mapping[str, Any], patience: float) -> None:
    """Returns once all PEs ask for a lane alike, each for the lane of its own group, because NVSHMEM makes memory and
    teams with all PEs together. Raises NvshmemError if some PE does not ask within `patience` seconds, or asks for
    other options."""
    assert dist.group.WORLD is not None
    store = PrefixStore(f"tilelink/nvshmem/{_asked[0]}", _get_process_group_store(dist.group.WORLD))
    mine, pes, until = str(library.pe()), range(library.pes()), time.monotonic() + patience
    store.set(mine, json.dumps(dict(asked)))

    def said(pe: int) -> Any:
        """The options that a PE asks for; None if it gave up, or has not asked."""
        return json.loads(store.get(str(pe))) if store.check([str(pe)]) else None

    while waiting := [pe for pe in pes if said(pe) is None]:
        if time.monotonic() > until:
            store.set(mine, json.dumps(None))  # a PE that comes now will give up, too
            absent = [pe for pe in waiting if not store.check([str(pe)])] or waiting
            raise NvshmemError(
                f"PEs {absent} of NVSHMEM made no lane within {patience:g} s: it makes memory with all of its "
                "processes together, so each calls tilelink.group, with its own part of them or with all"
            )
        time.sleep(LONGEST_REST)
    _asked[0] += 1  # on all of them, whatever they find
    if difference := mismatch("this lane", {pe: said(pe) or {} for pe in pes}):
        raise NvshmemError(difference)


def loaded() -> Nvshmem:
    """The library that this process has loaded already, else the one in the wheel. Raises NvshmemError."""
    try:
        return Nvshmem(host_library())
    except NvshmemError:
        path = host_folder() / HOST
        try:
            return Nvshmem(ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL | os.RTLD_LAZY))
        except OSError as e:
            raise NvshmemError(f"{path} can't be loaded: {e}") from e


def initialised(group: dist.ProcessGroup) -> Nvshmem:
    """The library, initialised with the processes of a group if it was not before. Collective. Raises NvshmemError, on
    every rank if one does."""
    library = together(group, " has no NVSHMEM", loaded, NvshmemError)
    before = gathered(group, library.initialised())
    if all(before):
        return library
    if any(before):
        raise NvshmemError(f"NVSHMEM is initialised on some ranks only: {before}")
    rank, world = dist.get_rank(group), dist.get_world_size(group)

    def first() -> bytes:
        return library.unique_id() if rank == 0 else b""

    made = together(group, " can't begin NVSHMEM's bootstrap", first, NvshmemError)
    unique_id = gathered(group, made)[0]
    begin = partial(library.initialise, unique_id, rank, world)
    together(group, " could not initialise NVSHMEM", begin, NvshmemError)
    return library
