"""Events: what every worker of every rank does in a run, in columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from tilelink.errors import Site
from tilelink.frontend.ir import Tensor, TileProgram
from tilelink.frontend.sizes import Sizes
from tilelink.frontend.workload import Allotment, kernel_workers

READ, WRITE, NOTIFY, WAIT, DOT = range(5)
OPS = ("read", "write", "notify", "wait", "dot")


def word(tensor: np.ndarray, rank: np.ndarray, cell: np.ndarray) -> np.ndarray:
    """Signals as integers, made of tensor, rank and cell."""
    return (tensor.astype(np.int64) << 16 | rank.astype(np.int64)) << 31 | cell.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Events:
    """Events in columns, in the order in which each worker does them.

    `op`: an index of OPS. `role`, `tensor`: indices of the program's (-1: none). `tile`: its number on the rank.
    `home`: the rank whose memory is accessed, or which gets a notification. `lo`, `hi`: the region (events x
    dimensions, global coordinates); in a tensor whose entries take turns, the buffer that holds the entry. `entry`: the
    entry of such an access, else -1. `cell`, `expected`: of a signal, else -1. `amount`: bytes of a read or write,
    operations of a dot. `site`: an index of `sites`. `picked`: whether integers pick the accessed rows, or say which
    rows are moved: only some of the region.

    `worker`: the kernel's workers, an SM each, have the numbers from 0 to `kernel_workers - 1`. Behind them come the
    agents of the copy engine, a stream for each peer: `kernel_workers + p` copies between its rank's memory and the
    memory of rank p. A role on one stream uses the stream with its own rank's number. An agent, too, does its events
    one after the other, but on no SM.
    """

    program: TileProgram
    sizes: Sizes
    sms: int
    op: np.ndarray
    rank: np.ndarray
    worker: np.ndarray
    role: np.ndarray
    tile: np.ndarray
    tensor: np.ndarray
    home: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    entry: np.ndarray
    cell: np.ndarray
    expected: np.ndarray
    amount: np.ndarray
    site: np.ndarray
    picked: np.ndarray
    sites: tuple[Site, ...]
    allotment: dict[str, Allotment]

    COLUMNS: ClassVar[Mapping[str, type]] = MappingProxyType({
        "op": np.int8, "rank": np.int16, "worker": np.int32, "role": np.int16, "tile": np.int32, "tensor": np.int16,
        "home": np.int16, "lo": np.int32, "hi": np.int32, "entry": np.int16, "cell": np.int32, "expected": np.int32,
        "amount": np.float64, "site": np.int32, "picked": np.bool_,
    })  # fmt: skip

    def __len__(self) -> int:
        return len(self.op)

    @property
    def title(self) -> str:
        """The program, its sizes and its world, as text."""
        shape = ", ".join(f"{d}={n}" for d, n in self.sizes.dims)
        return f"{self.program.name} · {shape} · {self.sizes.world} ranks"

    @cached_property
    def heads(self) -> np.ndarray:
        """The first event of each tile; the events of a tile come one after the other."""
        tiles = np.stack([self.rank, self.worker, self.role, self.tile])
        return np.flatnonzero(np.diff(tiles, prepend=-1).any(axis=0))

    @cached_property
    def tile_at(self) -> np.ndarray:
        """The tile of each event, as an index of `heads`."""
        return np.repeat(np.arange(len(self.heads)), np.diff(self.heads, append=len(self)))

    @cached_property
    def made(self) -> np.ndarray:
        """The first write of each tile, or its first event if it writes nothing."""
        writes = np.flatnonzero(self.op == WRITE)[::-1]
        made = self.heads.copy()
        made[self.tile_at[writes]] = writes
        return made

    def way(self, k: int) -> tuple[int, int]:
        """The ranks from which and to which a read or write moves bytes."""
        own, other = int(self.rank[k]), int(self.home[k])
        return (own, other) if self.op[k] == WRITE else (other, own)

    @cached_property
    def kernel_workers(self) -> int:
        """Workers of the persistent kernel on each rank."""
        return kernel_workers(self.program, self.allotment)

    def worker_name(self, worker: int) -> str:
        """The name of a worker: "worker 3", or "engine to rank 1"."""
        peer = worker - self.kernel_workers
        return f"worker {worker}" if peer < 0 else f"engine to rank {peer}"

    def of_worker(self, rank: int, worker: int) -> np.ndarray:
        """Indices of a worker's events, in order."""
        begin, end = self._bounds.get((rank, worker), (0, 0))
        return np.arange(begin, end)

    def of_tile(self, k: int, *ops: int) -> np.ndarray:
        """Indices of the events with these `ops` in the tile of event k, in order."""
        mine = self.of_worker(int(self.rank[k]), int(self.worker[k]))
        tile = (self.role[mine] == self.role[k]) & (self.tile[mine] == self.tile[k])
        return mine[tile & np.isin(self.op[mine], ops)]

    def meets(self, some: np.ndarray | int, k: int) -> np.ndarray:
        """Whether the regions of events overlap the region of event k."""
        return ((self.lo[some] < self.hi[k]) & (self.lo[k] < self.hi[some])).all(axis=-1)

    def words(self, steps: np.ndarray) -> np.ndarray:
        """The signals of waits and notifications, as integers. A wait polls its own rank's memory."""
        holder = np.where(self.op[steps] == NOTIFY, self.home[steps], self.rank[steps])
        return word(self.tensor[steps], holder, self.cell[steps])

    @property
    def workers(self) -> list[tuple[int, int]]:
        """(rank, worker) of every worker that does something."""
        return list(self._bounds)

    @cached_property
    def _bounds(self) -> dict[tuple[int, int], tuple[int, int]]:
        key = self.rank.astype(np.int64) << 32 | self.worker
        values, first = np.unique(key, return_index=True)
        last = [*first[1:].tolist(), len(key)][: len(first)]
        bounds = zip(values.tolist(), first.tolist(), last, strict=True)
        return {(v >> 32, v & 0xFFFFFFFF): (a, b) for v, a, b in bounds}

    def region(self, k: int) -> str:
        """The region of an event, or the release that it makes or waits for, as text."""
        return f"release of {self.box(k)}" if self.releases(k) else self.box(k)

    def releases(self, k: int) -> bool:
        """Whether an event is a release of an entry, or waits for one as a claim does."""
        return self.program.tensors[self.tensor[k]].kind == "token"

    def touched(self, k: int) -> Tensor:
        """The tensor of an event. Of a release it is the tensor whose entry is released."""
        tensor = self.program.tensors[self.tensor[k]]
        return released(self.program, tensor.name) or tensor

    def box(self, k: int) -> str:
        """The region of an event as text, in the tensor that it touches."""
        tensor = self.touched(k)
        spans = [f"{d}[{a}:{b}]" for d, a, b in zip(tensor.dims, self.lo[k], self.hi[k], strict=False)]
        if self.entry[k] >= 0:
            spans[0] = f"entry {self.entry[k]} in buffer {self.lo[k, 0]}"
        return f"{tensor.name}[{', '.join(spans)}]"

    def describe(self, k: int) -> str:
        """One event as a line."""
        role = self.program.roles[self.role[k]].name
        head = f"rank {self.rank[k]} {self.worker_name(self.worker[k])} {role} tile {self.tile[k]}: {OPS[self.op[k]]}"
        match int(self.op[k]):
            case 0 | 1:
                return f"{head} {self.region(k)} at rank {self.home[k]}, {int(self.amount[k])} bytes"
            case 2 if self.releases(k):
                return f"{head.removesuffix(OPS[NOTIFY])}{self.region(k)}, for rank {self.home[k]}, cell {self.cell[k]}"
            case 3 if self.releases(k):
                until = f"cell {self.cell[k]} until {self.expected[k]}"
                return f"{head} for the {self.region(k)} at rank {self.home[k]}, {until}"
            case 2:
                return f"{head} rank {self.home[k]} of {self.region(k)}, cell {self.cell[k]}"
            case 3:
                return f"{head} {self.region(k)} at rank {self.home[k]}, cell {self.cell[k]} until {self.expected[k]}"
        return f"{head} {int(self.amount[k])} operations"

    def text(self) -> str:
        """All events, a line each."""
        return "".join(f"{self.describe(k)}\n" for k in range(len(self)))


def released(program: TileProgram, token: str) -> Tensor | None:
    """The tensor whose entries a token releases; None if this is the name of another tensor."""
    return next((t for t in program.tensors if t.buffers and t.token.name == token), None)
