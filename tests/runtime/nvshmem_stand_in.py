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
    """PE `pe` of `pes`; the PEs in `near` are mapped here, and are those of its node. `fabric`: whether a store reaches
    all PEs of a team. `calls`: what was asked, in order."""

    def __init__(
        self, pe: int = 0, near: tuple[int, ...] = (), status: int = 0, memory: int = 1 << 24, pes: int = 1,
        fabric: bool = False,
    ) -> None:  # fmt: skip
        self.pe, self.pes, self.near, self.status, self.memory, self.fabric = pe, pes, near, status, memory, fabric
        self.calls: list[Any] = []
        self.kept: list[Any] = []
        self.teams: dict[int, tuple[int, ...]] = {0: tuple(range(pes)), 2: near}
        self.nvshmem_malloc, self.nvshmem_ptr = Function(self._malloc), Function(self._ptr)
        self.nvshmemx_mc_ptr = Function(self._multicast)

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

    # ---- teams

    def nvshmem_n_pes(self) -> int:
        return self.pes

    def nvshmem_team_n_pes(self, team: int) -> int:
        return len(self.teams[team])

    def nvshmem_team_translate_pe(self, of: int, pe: int, to: int) -> int:
        found = self.teams[of][pe]
        return self.teams[to].index(found) if found in self.teams[to] else -1

    def nvshmem_team_split_strided(
        self, of: int, start: int, stride: int, size: int, config: Any, mask: Any, found: Any
    ) -> int:
        """A team, for which this PE has to be in it; NVSHMEM says so to PEs that are not by the team -1."""
        assert (of, config, mask.value) == (0, None, 0)
        pes = tuple(range(start, start + stride * size, stride))
        assert self.pe in pes and pes[-1] < self.pes
        found._obj.value = 7 + len(self.teams)  # those below are NVSHMEM's own
        self.teams[found._obj.value] = pes
        self.calls.append(("team", pes))
        return 0

    def _multicast(self, team: int, address: Any) -> int:
        """Some memory of this process."""
        return int(address.value) if self.fabric and set(self.teams[team]) <= set(self.near) else 0

    def nvshmem_barrier(self, team: int) -> int:
        self.calls.append(("barrier", self.teams[team]))
        return 0
