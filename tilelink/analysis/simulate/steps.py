"""Steps: the events of a run, folded to what a simulation goes through one after the other.

A step is a wait, a notification, or the work between two of them: operations, bytes to and from the rank's own memory,
and transfers to and from peers. The stores of a multiplying tile to peers are a separate step. Nothing is timed here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tilelink.analysis.events import DOT, NOTIFY, READ, WAIT, WRITE, Events

WORK, WAITING, NOTIFYING = range(3)
PER_STEP = ("kind", "event", "tile", "cell", "far", "operations", "read", "written", "fetched")
PER_TRANSFER = ("transfer_step", "source", "target", "size", "pushed")


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps in columns, in the order in which each worker goes through them.

    Each step: `kind` (WORK, WAITING or NOTIFYING); `event`, its first event; `tile`, an index of the tiles below;
    `cell`, the flat number over all ranks, if it waits or notifies; `far`, whether it notifies another rank. Work:
    `operations`; `read` and `written`, bytes of own memory; `fetched`, bytes of `read` that the L2 cache does not hold.
    Each transfer: `transfer_step`; `source` and `target`, ranks; `size` in bytes; `pushed`, whether the source stores
    it. Each tile: `tile_event`, its first event. Worker k: its steps first[k]:last[k]; its rank worker_rank[k].
    """

    events: Events
    kind: np.ndarray
    event: np.ndarray
    tile: np.ndarray
    cell: np.ndarray
    far: np.ndarray
    operations: np.ndarray
    read: np.ndarray
    written: np.ndarray
    fetched: np.ndarray
    transfer_step: np.ndarray
    source: np.ndarray
    target: np.ndarray
    size: np.ndarray
    pushed: np.ndarray
    tile_event: np.ndarray
    first: np.ndarray
    last: np.ndarray
    worker_rank: np.ndarray
    cells: int

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def talks(self) -> bool:
        """Whether ranks exchange bytes or signals."""
        return bool(len(self.size) or self.far.any())

    @cached_property
    def multiplies(self) -> np.ndarray:
        """Which tiles multiply."""
        return np.bincount(self.tile, weights=self.operations, minlength=len(self.tile_event)) > 0

    def of_tiles(self, column: str) -> np.ndarray:
        """A column of the events, "rank", "worker", "role" or "tile", with one entry for each tile."""
        return np.asarray(getattr(self.events, column)[self.tile_event])

    def only(self, mask: np.ndarray) -> Steps:
        """The steps in the mask, with their transfers."""
        number = np.cumsum(mask) - 1
        kept = mask[self.transfer_step]
        per_step = {n: getattr(self, n)[mask] for n in PER_STEP}
        per_transfer = {n: getattr(self, n)[kept] for n in PER_TRANSFER}
        per_transfer["transfer_step"] = number[per_transfer["transfer_step"]]
        before = np.concatenate([[0], np.cumsum(mask)])
        return replace(self, **per_step, **per_transfer, first=before[self.first], last=before[self.last])


def fold(events: Events, l2: float) -> Steps:
    """The steps of a run on ranks with L2 caches of `l2` bytes."""
    op, rank = events.op, events.rank.astype(np.int64)
    worker = rank << 32 | events.worker
    tile = events.tile_at
    work = (op == READ) | (op == WRITE) | (op == DOT)
    own = events.home == events.rank
    multiplies = np.zeros(len(events.heads), bool)
    multiplies[tile[op == DOT]] = True
    sends = (op == WRITE) & ~own & multiplies[tile]  # what an epilogue stores leaves after the products
    begins = ~work | ~_before(work) | (sends != _before(sends))
    begins[events.heads] = True
    step = np.cumsum(begins) - 1
    head = np.flatnonzero(begins)
    count = len(head)

    def total(mask: np.ndarray, amount: np.ndarray) -> np.ndarray:
        return np.bincount(step[mask], weights=amount[mask], minlength=count)

    reads, writes = op == READ, op == WRITE
    away = (reads | writes) & ~own
    key = (step[away] << 17) | (events.home[away].astype(np.int64) << 1) | writes[away]  # summed to one transfer
    moved, transfer = np.unique(key, return_inverse=True)
    at, peer, pushed = moved >> 17, (moved >> 1) & 0xFFFF, (moved & 1).astype(bool)
    mover = rank[head][at]
    signals = np.flatnonzero((op == WAIT) | (op == NOTIFY))
    cell = np.full(len(events), -1)
    words, cell[signals] = np.unique(events.words(signals), return_inverse=True)
    first = np.flatnonzero(np.diff(worker[head], prepend=-1))
    kinds = np.where(op[head] == WAIT, WAITING, np.where(op[head] == NOTIFY, NOTIFYING, WORK))
    every = Steps(
        events=events,
        kind=kinds,
        event=head,
        tile=tile[head],
        cell=cell[head],
        far=(op[head] == NOTIFY) & ~own[head],
        operations=total(op == DOT, events.amount),
        read=total(reads & own, events.amount),
        written=total(writes & own, events.amount),
        fetched=total(reads & own, _fetched(events, reads & own, l2)),
        transfer_step=at,
        source=np.where(pushed, mover, peer),
        target=np.where(pushed, peer, mover),
        size=np.bincount(transfer, weights=events.amount[away], minlength=len(moved)),
        pushed=pushed,
        tile_event=events.heads,
        first=first,
        last=np.append(first[1:], count)[: len(first)],
        worker_rank=events.rank[head][first],
        cells=len(words),
    )
    return every.only(_told_anew(every))


def _told_anew(steps: Steps) -> np.ndarray:
    """Whether a step is no repeated wait of a worker for the same cell: signals only grow in a run, so repeated waits
    take no time. Workers that wait for all rows of a tensor, tile by tile, have many of them."""
    anew = steps.kind != WAITING
    waits = np.flatnonzero(~anew)
    worker = np.repeat(np.arange(len(steps.first)), steps.last - steps.first)[waits]
    _, first = np.unique(worker * steps.cells + steps.cell[waits], return_index=True)
    anew[waits[first]] = True
    return anew


def _before(column: np.ndarray) -> np.ndarray:
    """The value in the row before; False in the first."""
    return np.concatenate([[False], column[:-1]])[: len(column)]


def _fetched(events: Events, mask: np.ndarray, l2: float) -> np.ndarray:
    """For each read of own memory, the bytes that come from device memory: all, if no tile has read the region since
    more bytes than the cache holds went through it.

    Tiles of a role are taken in order, as many at once as it has workers. Each of these waves brings in every region
    once. The bytes between two reads of a region are what the waves between them bring in, without other roles. Each
    read brings in rows that integers pick.
    """
    fetched = np.where(events.picked, events.amount, 0)
    chosen = np.flatnonzero(mask & ~events.picked)
    if not len(chosen):
        return fetched
    workers = np.array([events.allotment[r.name].workers for r in events.program.roles])
    wave = events.tile[chosen] // workers[events.role[chosen]]
    where = np.column_stack(
        [events.rank[chosen], events.role[chosen], events.tensor[chosen], events.lo[chosen], events.hi[chosen]]
    )
    region = _groups(where)
    order = np.lexsort((wave, region))
    region, wave, amount = region[order], wave[order], events.amount[chosen][order]
    again = np.concatenate([[False], region[1:] == region[:-1]])
    once = ~(again & np.concatenate([[False], wave[1:] == wave[:-1]]))  # the first read of a region in a wave
    place = _groups(np.column_stack([events.rank[chosen][order], events.role[chosen][order]]))
    waves = int(wave.max()) + 1
    through = np.bincount((place * waves + wave)[once], weights=amount[once], minlength=(place.max() + 1) * waves)
    before = np.concatenate([[0.0], np.cumsum(through)])
    now, then = place * waves + wave, np.concatenate([[0], (place * waves + wave)[:-1]])
    since = np.where(again, before[now] - before[then], np.inf)
    missed = once & ~(since < l2)
    fetched[chosen[order[missed]]] = amount[missed]
    return fetched


def _groups(rows: np.ndarray) -> np.ndarray:
    """A number for each row; equal rows have the same number."""
    number = np.zeros(len(rows), np.int64)
    for column in rows.T:
        _, codes = np.unique(column, return_inverse=True)
        number = number * (int(codes.max()) + 1) + codes
        _, number = np.unique(number, return_inverse=True)
    return number
