"""Reads back the times that workers record, when tiles and waits begin and end, and makes a timeline of them.

A call with `timed=True` runs a kernel that records them; other kernels have no code for that. A record is two words, an
event and a time (tilelink/backend/targets/shared.py). The records of a worker lie in a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from tilelink.analysis.events import NOTIFY, READ, WAIT, WRITE, Events
from tilelink.analysis.timeline import EXECUTED, MEASURED, MICROSECONDS, RECORDS, Timeline, Transfer, of_tiles
from tilelink.backend.targets.shared import TILE_ENDS, WAIT_BEGINS, WAIT_ENDS
from tilelink.errors import Site, TraceMismatchError, WorldError
from tilelink.frontend.workload import role_orders
from tilelink.runtime.prepare import Prepared


@dataclass(frozen=True)
class TimedRun:
    """The records of a rank's workers in its last timed run. `stamps`: int64, workers x records x 2."""

    prepared: Prepared
    rank: int
    stamps: torch.Tensor


def stamps_shape(events: Events) -> tuple[int, int, int]:
    """The shape of a rank's records: workers, records of the busiest worker on any rank, 2."""
    most = max((len(r) for rank in range(events.sizes.world) for r in _expected(events, rank)), default=0)
    return events.kernel_workers, max(1, most), 2


def _expected(events: Events, rank: int) -> list[list[int]]:
    """The events that each worker of a rank records, in order. A worker goes through all its tiles, also empty ones."""
    mine = (events.rank == rank) & (events.op == WAIT)
    waits = Counter(zip(events.role[mine].tolist(), events.tile[mine].tolist(), strict=True))
    found: list[list[int]] = [[] for _ in range(events.kernel_workers)]
    for worker, role, tile in _work(events):
        inside = [WAIT_BEGINS.value, WAIT_ENDS.value] * waits[role, tile]
        found[worker] += [tile + (role << 32), *inside, TILE_ENDS.value]
    return found


def _work(events: Events) -> Iterator[tuple[int, int, int]]:
    """Yields (worker, role, tile) of all tiles of a rank; tiles of a worker come in the order in which it does them."""
    at = role_orders(events.program, events.sizes)
    order: list[tuple[int, int, int, int, int]] = []
    for number, role in enumerate(events.program.roles):
        if role in events.program.in_kernel:
            place, given = at[role.name], events.allotment[role.name]
            order += [
                (place.launch, int(place.turn(0, tile)), number, tile, int(place.worker(0, tile, given)))
                for tile in range(given.tiles)
            ]
    yield from ((worker, role, tile) for _, _, role, tile, worker in sorted(order))


def timeline_of(runs: Sequence[TimedRun | None], *, clocks: Literal["one", "each"] = "one") -> Timeline:
    """The timeline of a run that all ranks timed: in microseconds on GPUs, by the order of the records on a CPU.
    `clocks`: "each" if every rank has its own clock; they are then set so that the fastest signal between two ranks
    takes equally long both ways. Raises WorldError if a rank has no timed run, TraceMismatchError for other records."""
    timed = [run for run in runs if run is not None]
    missing = ", ".join(str(rank) for rank, run in enumerate(runs) if run is None)
    if missing or not timed:
        raise WorldError(f"rank {missing} has recorded no times: call the program with timed=True", Site.of_user())
    events, tick = timed[0].prepared.events, timed[0].prepared.lowered.target.tick_ns
    recorded = events.worker < events.kernel_workers  # copy engines record nothing
    waits, rank = np.flatnonzero((events.op == WAIT) & recorded), events.rank[events.heads]
    tiles, woken = np.zeros((len(rank), 2), np.int64), np.zeros((len(waits), 2), np.int64)  # begin and end of each
    for run in timed:
        _read(events, run, waits, tiles, woken)
    givers = _givers(events, waits, tiles[:, 1])
    if clocks == "each":
        ahead = _ahead(events, waits, givers, tiles[:, 1], woken[:, 1])
        tiles, woken = tiles - ahead[rank, None], woken - ahead[events.rank[waits], None]
    drawn = recorded[events.heads]
    begin, scale = tiles[drawn, 0].min(initial=np.iinfo(np.int64).max), 1.0 if tick is None else tick / 1e3
    times, awaited = np.where(drawn[:, None], (tiles - begin) * scale, np.nan), (woken - begin) * scale
    heading = (events.title, *((RECORDS, EXECUTED) if tick is None else (MICROSECONDS, MEASURED)))
    ended = zip(waits.tolist(), *awaited.T.tolist(), givers, strict=True)
    labels = [events.region(k) for k in events.made.tolist()]
    return of_tiles(events, heading, (times[:, 0], times[:, 1]), ended, _transfers(events, times), labels)


def _read(events: Events, run: TimedRun, waits: np.ndarray, tiles: np.ndarray, woken: np.ndarray) -> None:
    """Fills in the begin and end of the tiles of a rank, and of their waits. Raises TraceMismatchError."""
    words, mine = run.stamps.cpu(), np.flatnonzero(events.rank[events.heads] == run.rank)
    columns = (c[events.heads[mine]].tolist() for c in (events.role, events.tile))
    index = dict(zip(zip(*columns, strict=True), mine.tolist(), strict=True))
    first = np.searchsorted(events.tile_at[waits], np.arange(len(events.heads)))
    for worker, expected in enumerate(_expected(events, run.rank)):
        what, when = (words[worker, : len(expected), k].tolist() for k in range(2))
        if what != expected:
            at = next(k for k, (a, b) in enumerate(zip(what, expected, strict=True)) if a != b)
            raise TraceMismatchError(
                f"rank {run.rank} worker {worker} of {events.program.name}: record {at} is {what[at]}; "
                f"the program says {expected[at]}"
            )
        ends = [k for k, w in enumerate(expected) if w == TILE_ENDS.value]
        for begin, end in zip([0, *(k + 1 for k in ends)], ends, strict=False):
            tile = index.get((expected[begin] >> 32, expected[begin] & 0xFFFFFFFF))
            if tile is not None:  # tiles that do nothing have no events
                tiles[tile] = when[begin], when[end]
                inside = np.reshape(when[begin + 1 : end], (-1, 2))
                woken[first[tile] : first[tile] + len(inside)] = inside


def _givers(events: Events, waits: np.ndarray, stop: np.ndarray) -> list[int | None]:
    """For each wait, the tile that ended last among the tiles that notify its signal; None if only copy engines do. A
    tile notifies as its last step, or nearly."""
    given = np.flatnonzero((events.op == NOTIFY) & (events.worker < events.kernel_workers))
    given = given[np.lexsort((-given, stop[events.tile_at[given]]))]
    last = dict(zip(events.words(given).tolist(), events.tile_at[given].tolist(), strict=True))
    return [last.get(word) for word in events.words(waits).tolist()]


def _ahead(
    events: Events, waits: np.ndarray, givers: Sequence[int | None], sent: np.ndarray, woken: np.ndarray
) -> np.ndarray:
    """How far the clock of each rank is ahead of rank 0's clock, according to signals: the fastest signal between two
    ranks is taken to be as fast in one direction as in the other. Ranks are set one after the other, each by a rank
    before it."""
    shortest: dict[tuple[int, int], int] = {}
    for k, giver, end in zip(waits.tolist(), givers, woken.tolist(), strict=True):
        if giver is not None:
            way, took = (int(events.rank[events.heads[giver]]), int(events.rank[k])), end - int(sent[giver])
            shortest[way] = min(took, shortest.get(way, took))
    ahead, left = {0: 0}, set(range(1, events.sizes.world))
    while left:
        pairs = [(a, b) for a in ahead for b in left if (a, b) in shortest and (b, a) in shortest]
        if not pairs:  # ranks that exchange no signals with these are left as they are
            ahead |= dict.fromkeys(left, 0)
            break
        a, b = pairs[0]
        ahead[b] = ahead[a] + (shortest[a, b] - shortest[b, a]) // 2
        left.remove(b)
    return np.array([ahead[rank] for rank in range(events.sizes.world)])


def _transfers(events: Events, times: np.ndarray) -> Iterator[Transfer]:
    """Yields transfers between ranks. Their times inside a tile are not recorded, so they are spread over the tile."""
    of_events = times[events.tile_at]
    away = ((events.op == READ) | (events.op == WRITE)) & (events.home != events.rank) & ~np.isnan(of_events[:, 0])
    for k in np.flatnonzero(away).tolist():
        yield Transfer(*events.way(k), float(events.amount[k]), *of_events[k].tolist())
