"""NVSHMEM's host library as tests have it: what it is asked for, and memory of this process. Nothing is sent."""

from __future__ import annotations

import ctypes
from typing import Any


class Function:
    """A function of a library: it can be called, and has a type of its result."""

    restype: Any = None

    def __init__(self, do: Any) -> None:
        self.do = do

    def __call__(self, *arguments: Any) -> Any:
        return self.do(*arguments)


class Library:
    """PE `pe`; the PEs in `near` are mapped here. `calls`: what was asked, in order."""

    def __init__(self, pe: int = 0, near: tuple[int, ...] = (), status: int = 0, memory: int = 1 << 24) -> None:
        self.pe, self.near, self.status, self.memory = pe, near, status, memory
        self.calls: list[Any] = []
        self.kept: list[Any] = []
        self.nvshmem_malloc, self.nvshmem_ptr = Function(self._malloc), Function(self._ptr)

    def nvshmemx_init_status(self) -> int:
        return self.status

    def nvshmemx_get_uniqueid(self, found: Any) -> int:
        assert found._obj.version == (1 << 16) + 128
        found._obj.internal = b"meet here"
        self.calls.append("unique id")
        return 0

    def nvshmemx_set_attr_uniqueid_args(self, rank: int, ranks: int, where: Any, found: Any) -> int:
        args = found._obj.args.unique_id
        args.id, args.rank, args.ranks = ctypes.addressof(where._obj), rank, ranks
        assert where._obj.internal == b"meet here"
        return 0

    def nvshmemx_hostlib_init_attr(self, flags: int, attributes: Any) -> int:
        args = attributes._obj.args.unique_id
        self.calls.append(("initialise", flags, args.rank, args.ranks))
        self.status = 2
        return 0

    def nvshmem_my_pe(self) -> int:
        return self.pe

    def _malloc(self, size: Any) -> int:
        if size.value > self.memory:
            return 0
        self.kept.append((ctypes.c_uint8 * size.value)())
        self.calls.append(("allocate", size.value))
        return ctypes.addressof(self.kept[-1])

    def _ptr(self, address: Any, pe: Any) -> int:
        """A mapping of a near PE: other memory of this process."""
        if pe.value not in self.near:
            return 0
        self.kept.append((ctypes.c_uint8 * len(self.kept[0]))())
        found = ctypes.addressof(self.kept[-1])
        return found + -found % 256 if found else 0

    def nvshmem_quiet(self) -> None:
        self.calls.append("quiet")

    def nvshmem_barrier_all(self) -> None:
        self.calls.append("barrier")
