"""Times that workers record: when tiles and waits begin and end, read back and made a timeline.

A call with `timed=True` runs a kernel that records them; other kernels hold nothing of it. A record is two words, what
and when (tilelink/backend/targets/shared.py), one behind the other for each worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from tilelink.analysis.events import NOTIFY, READ, WAIT, WRITE, Events
from tilelink.analysis.timeline import EXECUTED, MEASURED, MICROSECONDS, RECORDS, Span, Timeline, Transfer
from tilelink.backend.targets.shared import TILE_ENDS, WAIT_BEGINS, WAIT_ENDS
from tilelink.errors import Site, TraceMismatchError, WorldError
from tilelink.frontend.workload import places
from tilelink.runtime.prepare import Prepared

Tile = tuple[int, int, int]
"""A tile's rank, role and number."""


@dataclass(frozen=True)
class TimedRun:
    """What the workers of a rank recorded in its last timed run: int64 of workers x records x 2."""

    prepared: Prepared
    rank: int
    stamps: torch.Tensor


@dataclass(frozen=True)
class _Timed:
    """A tile, its worker, and the beginning and end of it and of its waits, in ticks."""

    worker: int
    start: int
    stop: int
    waits: tuple[tuple[int, int], ...]

    def earlier(self, ticks: int) -> _Timed:
        waits = tuple((a - ticks, b - ticks) for a, b in self.waits)
        return _Timed(self.worker, self.start - ticks, self.stop - ticks, waits)


def stamps_shape(events: Events) -> tuple[int, int, int]:
    """Of the records of a rank: workers, records of the busiest one on any rank, 2."""
    most = max((len(r) for rank in range(events.sizes.world) for r in _expected(events, rank)), default=0)
    return events.kernel_workers, max(1, most), 2


def _expected(events: Events, rank: int) -> list[list[int]]:
    """What each worker of a rank records, in order. It goes through all its tiles, also those that are not there."""
    mine = (events.rank == rank) & (events.op == WAIT)
    waits = Counter(zip(events.role[mine].tolist(), events.tile[mine].tolist(), strict=True))
    found: list[list[int]] = [[] for _ in range(events.kernel_workers)]
    for worker, role, tile in _work(events):
        inside = [WAIT_BEGINS.value, WAIT_ENDS.value] * waits[role, tile]
        found[worker] += [tile + (role << 32), *inside, TILE_ENDS.value]
    return found


def _work(events: Events) -> Iterator[tuple[int, int, int]]:
    """(worker, role, tile) of all tiles of a rank, those of a worker in the order in which it does them."""
    at = places(events.program, events.sizes)
    order: list[tuple[int, int, int, int, int]] = []
    for number, role in enumerate(events.program.roles):
        if role in events.program.in_kernel:
            place, given = at[role.name], events.allotment[role.name]
            order += [
                (place.launch, place.turn(tile), number, tile, place.worker(tile, given)) for tile in range(given.tiles)
            ]
    yield from ((worker, role, tile) for _, _, role, tile, worker in sorted(order))


def timeline_of(runs: Sequence[TimedRun | None], *, clocks: Literal["one", "each"] = "one") -> Timeline:
    """The timeline of a run that all ranks timed: in microseconds on GPUs; on a CPU by the order of the records.
    `clocks`: "each" where every rank has its own; they are set so that signals take as long one way as the other, at
    the least. Raises WorldError where a rank has no timed run, TraceMismatchError where one did another program's."""
    timed = [run for run in runs if run is not None]
    missing = ", ".join(str(rank) for rank, run in enumerate(runs) if run is None)
    if missing or not timed:
        raise WorldError(f"rank {missing} has recorded no times: call the program with timed=True", Site.of_user())
    events, tick = timed[0].prepared.events, timed[0].prepared.lowered.target.tick_ns
    tiles = {key: tile for run in timed for key, tile in _read(events, run)}
    awaited = _awaited(events, tiles)
    if clocks == "each":
        tiles = _set_clocks(tiles, awaited, events.sizes.world)
    scale = 1.0 if tick is None else tick / 1e3
    spans, place = _spans(events, tiles, awaited, scale)
    shape = ", ".join(f"{d}={n}" for d, n in events.sizes.dims)
    title = f"{events.program.name} · {shape} · {events.sizes.world} ranks"
    unit, source = (RECORDS, EXECUTED) if tick is None else (MICROSECONDS, MEASURED)
    return Timeline(title, unit, source, tuple(spans), transfers=tuple(_transfers(events, spans, place)))


def _read(events: Events, run: TimedRun) -> Iterator[tuple[Tile, _Timed]]:
    """The tiles that the workers of a rank recorded, and that do anything. Raises TraceMismatchError."""
    words = run.stamps.cpu()
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
            role, tile = expected[begin] >> 32, expected[begin] & 0xFFFFFFFF
            waits = tuple(zip(when[begin + 1 : end : 2], when[begin + 2 : end : 2], strict=True))
            yield (run.rank, role, tile), _Timed(worker, when[begin], when[end], waits)


def _awaited(events: Events, tiles: Mapping[Tile, _Timed]) -> dict[tuple[Tile, int], tuple[int, Tile | None]]:
    """For each wait, by its tile and number there: its event, and the tile that ended last of those that give its
    signal. A signal is the last that a tile does, or nearly; a copy engine's is given by none."""
    given: dict[tuple[int, int, int], Tile] = {}
    for k in np.flatnonzero(events.op == NOTIFY).tolist():
        signal, tile = (int(events.tensor[k]), int(events.home[k]), int(events.cell[k])), _tile(events, k)
        if tile in tiles and (signal not in given or tiles[given[signal]].stop < tiles[tile].stop):
            given[signal] = tile
    found: dict[tuple[Tile, int], tuple[int, Tile | None]] = {}
    numbers: Counter[Tile] = Counter()
    for rank, worker in events.workers:
        mine = events.of_worker(rank, worker)
        for k in mine[events.op[mine] == WAIT].tolist():
            tile = _tile(events, k)
            found[tile, numbers[tile]] = k, given.get((int(events.tensor[k]), rank, int(events.cell[k])))
            numbers[tile] += 1
    return found


def _tile(events: Events, k: int) -> Tile:
    return int(events.rank[k]), int(events.role[k]), int(events.tile[k])


def _set_clocks(
    tiles: Mapping[Tile, _Timed], awaited: Mapping[tuple[Tile, int], tuple[int, Tile | None]], world: int
) -> dict[Tile, _Timed]:
    """The same by one clock, as far as signals tell: between two ranks the shortest way of a signal is as long in one
    direction as in the other. Ranks are set one after the other, each by those before it, rank 0 first."""
    shortest: dict[tuple[int, int], int] = {}
    for (tile, number), (_, cause) in awaited.items():
        if cause is not None and cause[0] != tile[0]:
            took = tiles[tile].waits[number][1] - tiles[cause].stop
            way = cause[0], tile[0]
            shortest[way] = min(took, shortest.get(way, took))
    ahead = {0: 0}
    left = set(range(1, world))
    while left:
        pairs = [(a, b) for a in ahead for b in left if (a, b) in shortest and (b, a) in shortest]
        if not pairs:  # ranks that exchange no signals with these are left as they are
            ahead |= dict.fromkeys(left, 0)
            break
        a, b = pairs[0]
        ahead[b] = ahead[a] + (shortest[a, b] - shortest[b, a]) // 2
        left.remove(b)
    return {key: tile.earlier(ahead[key[0]]) for key, tile in tiles.items()}


def _spans(
    events: Events,
    tiles: Mapping[Tile, _Timed],
    awaited: Mapping[tuple[Tile, int], tuple[int, Tile | None]],
    scale: float,
) -> tuple[list[Span], dict[Tile, int]]:
    """Spans from 0 on, and where each tile's is among them. Tiles that do nothing have none."""
    first: dict[Tile, int] = {}
    for k in range(len(events)):
        tile = _tile(events, k)
        if tile in tiles and (tile not in first or events.op[first[tile]] != WRITE):
            first[tile] = k
    begin = min((tiles[t].start for t in first), default=0)
    names = [role.name for role in events.program.roles]
    place = {tile: number for number, tile in enumerate(first)}
    spans: list[Span] = []
    for tile, k in first.items():
        t = tiles[tile].earlier(begin)
        spans.append(Span(tile[0], t.worker, names[tile[1]], "tile", events.region(k), t.start * scale, t.stop * scale))
    waits: list[Span] = []
    for (tile, number), (k, cause) in awaited.items():
        t = tiles[tile].earlier(begin)
        a, b = t.waits[number]
        by = None if cause is None else place[cause]
        waits.append(Span(tile[0], t.worker, names[tile[1]], "wait", events.region(k), a * scale, b * scale, by))
    return spans + waits, place


def _transfers(events: Events, spans: Sequence[Span], place: Mapping[Tile, int]) -> Iterator[Transfer]:
    """Bytes between ranks. When they moved inside of their tile is not recorded: they are spread over it."""
    for k in np.flatnonzero(((events.op == READ) | (events.op == WRITE)) & (events.home != events.rank)).tolist():
        tile = _tile(events, k)
        if tile in place:
            ranks = int(events.rank[k]), int(events.home[k])
            source, target = ranks if events.op[k] == WRITE else ranks[::-1]
            span = spans[place[tile]]
            yield Transfer(source, target, float(events.amount[k]), span.start, span.stop)
