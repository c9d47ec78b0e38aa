"""Cells of a tensor in one rank's memory: accesses cut it at their bounds, so that none touches a cell only in part.

The accesses to a cell are sorted as in one execution. If each write is ordered, in every execution, with the accesses
back to the write before and up to the next write, so are all pairs that conflict: the relation is transitive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tilelink.analysis.events import READ, WRITE, Events
from tilelink.analysis.placement import shape_on
from tilelink.frontend.expressions import parts_of


@dataclass(frozen=True, eq=False)
class Cells:
    """`access` (an event) touches `cell` (a number), for each such pair. `cuts`: where cells begin and end along each
    dimension. `home`: the rank whose memory it is."""

    events: Events
    tensor: int
    home: int
    access: np.ndarray
    cell: np.ndarray
    cuts: tuple[np.ndarray, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(c) - 1 for c in self.cuts)

    def box(self, cells: np.ndarray) -> str:
        """The smallest region that holds these cells, as text."""
        tensor = self.events.program.tensors[self.tensor]
        spans = []
        for dim, cuts, at in zip(tensor.dims, self.cuts, np.unravel_index(cells, self.shape), strict=False):
            spans.append(f"{dim}[{cuts[at.min()]}:{cuts[at.max() + 1]}]")
        return f"{tensor.name}[{', '.join(spans)}] at rank {self.home}"


def written_tensors(events: Events) -> Iterator[Cells]:
    """The cells of every tensor that tiles may write, on each rank that has some of it."""
    accesses = np.flatnonzero((events.op == READ) | (events.op == WRITE))
    world = events.sizes.world
    place = events.tensor[accesses].astype(np.int64) * world + events.home[accesses]
    order = np.argsort(place, kind="stable")
    accesses, place = accesses[order], place[order]
    bounds = np.searchsorted(place, np.arange(len(events.program.tensors) * world + 1))
    for index, tensor in enumerate(events.program.tensors):
        if tensor.kind in ("input", "token"):
            continue
        for home in range(world):
            lo, hi = _memory(events, index, home)
            if (hi > lo).all():
                here = accesses[bounds[index * world + home] : bounds[index * world + home + 1]]
                yield _cells(events, index, home, here, lo, hi)


def _memory(events: Events, index: int, home: int) -> tuple[np.ndarray, np.ndarray]:
    """The region of a tensor on a rank; dimensions that the tensor lacks are [0, 1)."""
    tensor, dims = events.program.tensors[index], events.lo.shape[1]
    lo, shape = np.zeros(dims, np.int64), np.ones(dims, np.int64)
    shape[: len(tensor.dims)] = shape_on(tensor, events.sizes, home)
    if tensor.sharded is not None:
        lo[tensor.sharded] = events.sizes.values[parts_of(tensor.dims[tensor.sharded])][home]
    return lo, lo + shape


def _cells(events: Events, tensor: int, home: int, access: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> Cells:
    cuts, first, count = [], [], []
    for k in range(len(lo)):
        a, b = events.lo[access, k], events.hi[access, k]
        cut = np.unique(np.concatenate([a, b, [lo[k], hi[k]]]))
        cuts.append(cut)
        first.append(np.searchsorted(cut, a))
        count.append(np.searchsorted(cut, b) - first[-1])
    times = np.prod(count, axis=0)
    which = np.repeat(np.arange(len(access)), times)
    inside = np.arange(len(which)) - np.repeat(np.cumsum(times) - times, times)
    cell, stride = np.zeros(len(which), np.int64), 1
    for k in reversed(range(len(cuts))):
        n = count[k][which]
        cell += (first[k][which] + inside % n) * stride
        inside //= n
        stride *= len(cuts[k]) - 1
    return Cells(events, tensor, home, access[which], cell, tuple(cuts))


@dataclass(frozen=True, eq=False)
class Pairs:
    """Conflicting accesses `one` and `other` (events) to `cell`; `one` is earlier in some execution. `blank`: `one` is
    a read, and nobody has written before. `next`: no access to the cell comes between them."""

    one: np.ndarray
    other: np.ndarray
    cell: np.ndarray
    blank: np.ndarray
    next: np.ndarray

    def __getitem__(self, mask: np.ndarray) -> Pairs:
        return Pairs(self.one[mask], self.other[mask], self.cell[mask], self.blank[mask], self.next[mask])


def conflicts(cells: Cells, turn: np.ndarray) -> tuple[Pairs, np.ndarray]:
    """The pairs that have to be ordered; and the entries of `cells` that are reads where nobody writes at all. `turn`:
    when the access of each entry comes in the execution."""
    order = np.lexsort((cells.access, turn, cells.cell))
    access, cell = cells.access[order], cells.cell[order]
    n, at = len(order), np.arange(len(order))
    writes = cells.events.op[access] == WRITE
    new = np.concatenate([[True], cell[1:] != cell[:-1]])[:n]
    begin = np.maximum.accumulate(np.where(new, at, 0))
    end = np.minimum.accumulate(np.where(np.append(new[1:], True)[:n], at, n)[::-1])[::-1]
    earlier = np.concatenate([[-1], np.maximum.accumulate(np.where(writes, at, -1))[:-1]])[:n]
    later = np.minimum.accumulate(np.where(writes, at, n)[::-1])[::-1]
    follows = earlier >= begin
    precedes = ~writes & (later <= end)
    one = np.concatenate([earlier[follows], at[precedes]])
    other = np.concatenate([at[follows], later[precedes]])
    blank = np.concatenate([np.zeros(follows.sum(), bool), ~follows[precedes]])
    unwritten = ~writes & ~follows & ~precedes
    return Pairs(access[one], access[other], cell[one], blank, other - one == 1), order[unwritten]
