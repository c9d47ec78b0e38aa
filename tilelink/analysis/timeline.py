"""Timelines: which tile each worker of each rank ran when, and what it waited for.

An execution on the CPU, a simulation and a run on GPUs share this form. `draw/` makes pictures of it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from tilelink.analysis.events import Events

MICROSECONDS = "us"
MEMORY_OPERATIONS = "memory operations"
RECORDS = "records"
UNITS = (MICROSECONDS, MEMORY_OPERATIONS, RECORDS)

EXECUTED = "executed on the CPU, logical time"
PREDICTED = "predicted"
MEASURED = "measured"

KINDS = ("tile", "wait")

# Okabe and Ito's palette, which colour-blind readers can tell apart.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")


@dataclass(frozen=True)
class Span:
    """A tile that a worker ran, or a wait inside a tile.

    `role` of a wait: the role of the tile that waits. `cause`: the position in `Timeline.spans` of the tile whose
    notification ended the wait; None if that is not known, and for tiles. `sent`: when that tile notified; None if only
    the tile is known.
    """

    rank: int
    worker: int
    role: str
    kind: Literal["tile", "wait"]
    label: str
    start: float
    stop: float
    cause: int | None = None
    sent: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind of a span is {self.kind!r}, not one of {KINDS}: {self}")
        if self.rank < 0 or self.worker < 0:
            raise ValueError(f"rank {self.rank} and worker {self.worker} of a span can't be negative: {self}")
        if not (math.isfinite(self.start) and math.isfinite(self.stop)):
            raise ValueError(f"start {self.start} and stop {self.stop} of a span have to be finite: {self}")
        if self.start > self.stop:
            raise ValueError(f"a span starts at {self.start}, after it stops at {self.stop}: {self}")
        if self.kind == "tile" and self.cause is not None:
            raise ValueError(f"a tile has a cause, {self.cause}; only waits have one: {self}")
        if self.sent is not None and (self.cause is None or not self.sent <= self.stop):
            raise ValueError(f"sent {self.sent} is the time of a notification that ended a wait: {self}")

    @property
    def duration(self) -> float:
        return self.stop - self.start

    def __str__(self) -> str:
        times = f"[{self.start}, {self.stop}]"
        return f"{self.kind} {self.label} of {self.role} on rank {self.rank}, worker {self.worker}, {times}"


@dataclass(frozen=True)
class Transfer:
    """Bytes under way from one rank's memory to another's."""

    source: int
    target: int
    nbytes: float
    start: float
    stop: float


@dataclass(frozen=True)
class Timeline:
    """The spans of all workers of all ranks, in any order.

    A worker runs one tile at a time, and a wait lies inside the tile that waits. `unit`: what times count: "us"; or,
    for the logical time of an execution on the CPU, which is not performance, "memory operations" or "records" of
    times. `source`: where the times come from (`EXECUTED`, `PREDICTED`, `MEASURED` or your own words). `agents`:
    workers with this number or a higher one are streams of the copy engine, one for each peer (None: no streams).
    `transfers`: bytes under way between ranks, if they are known.
    """

    title: str
    unit: str
    source: str
    spans: tuple[Span, ...]
    agents: int | None = None
    transfers: tuple[Transfer, ...] = ()

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"unit of a timeline is {self.unit!r}, not one of {UNITS}")
        if not self.source:
            raise ValueError(
                f"source of the timeline {self.title!r} is empty: a reader has to know whose times they are"
            )
        for span in self.spans:
            if span.cause is None:
                continue
            if not 0 <= span.cause < len(self.spans):
                raise ValueError(f"cause {span.cause} is none of the {len(self.spans)} spans: {span}")
            if self.spans[span.cause].kind != "tile":
                raise ValueError(f"cause {span.cause} is no tile but {self.spans[span.cause]}: {span}")
        for kind in KINDS:
            self._check_one_at_a_time(kind)
        _ = self.tile_of  # raises where a wait lies in no tile

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({s.rank for s in self.spans}))

    def workers(self, rank: int) -> tuple[int, ...]:
        """The workers of a rank that ran tiles."""
        return tuple(sorted({s.worker for s in self.spans if s.rank == rank}))

    def peer_of(self, worker: int) -> int | None:
        """The peer of a stream of the copy engine; None for a worker on an SM."""
        return None if self.agents is None or worker < self.agents else worker - self.agents

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles by name, so that a role has the same place (and colour) in every timeline of a program."""
        return tuple(sorted({s.role for s in self.spans}))

    def colours(self, palette: Sequence[str] = PALETTE) -> dict[str, str]:
        """The colour of each role; after the last colour, the palette starts again."""
        return {role: palette[k % len(palette)] for k, role in enumerate(self.roles)}

    @property
    def start(self) -> float:
        return min((s.start for s in self.spans), default=0.0)

    @property
    def stop(self) -> float:
        return max((s.stop for s in self.spans), default=0.0)

    @property
    def makespan(self) -> float:
        """From the start of the first span to the stop of the last."""
        return self.stop - self.start

    def busy(self, rank: int, role: str) -> float:
        """Time that workers of a rank spend in tiles of a role, without waits, summed over workers."""
        return self._total(rank, role, "tile") - self.waiting(rank, role)

    def waiting(self, rank: int, role: str) -> float:
        """Time that tiles of a role wait on a rank, summed over workers."""
        return self._total(rank, role, "wait")

    @cached_property
    def tile_of(self) -> dict[int, int]:
        """The tile that each wait lies in, both as positions in `spans`."""
        tiles = self.by_worker("tile")
        starts = {key: [self.spans[i].start for i in indexes] for key, indexes in tiles.items()}
        found = {}
        for index, wait in enumerate(self.spans):
            if wait.kind != "wait":
                continue
            key = (wait.rank, wait.worker)
            # Tiles that touch share an instant, so a wait that is one may lie in several: the role decides.
            for k in reversed(range(bisect_right(starts.get(key, []), wait.start))):
                tile = self.spans[tiles[key][k]]
                if wait.stop <= tile.stop and wait.role == tile.role:
                    found[index] = tiles[key][k]
                    break
                if tile.stop < wait.start:
                    break
            if index not in found:
                raise ValueError(f"a wait lies in no tile of its role and worker: {wait}")
        return found

    def notification(self, wait: Span) -> tuple[Span, float] | None:
        """The tile that ended a wait, and when it notified. If that time is not known, it is the tile's stop, or the
        wait's if that was before.

        None if the tile is not known, or if it started after the wait stopped: clocks of ranks differ a little.
        """
        if wait.cause is None:
            return None
        tile = self.spans[wait.cause]
        sent = min(tile.stop, wait.stop) if wait.sent is None else wait.sent
        return (tile, sent) if tile.start <= wait.stop else None

    def _total(self, rank: int, role: str, kind: str) -> float:
        return sum(s.duration for s in self.spans if s.rank == rank and s.role == role and s.kind == kind)

    def by_worker(self, kind: str) -> dict[tuple[int, int], list[int]]:
        """Positions of the spans of a kind on each (rank, worker), in order of time."""
        found: dict[tuple[int, int], list[int]] = defaultdict(list)
        for index, span in enumerate(self.spans):
            if span.kind == kind:
                found[span.rank, span.worker].append(index)
        for indexes in found.values():
            indexes.sort(key=lambda i: (self.spans[i].start, self.spans[i].stop))
        return found

    def _check_one_at_a_time(self, kind: str) -> None:
        for indexes in self.by_worker(kind).values():
            for before, after in pairwise(indexes):
                if self.spans[after].start < self.spans[before].stop:
                    raise ValueError(f"spans of one worker overlap: {self.spans[before]} and {self.spans[after]}")


# ---- timelines of events


Wait = tuple[int, float, float, int | None]
"""A wait: its event, begin and end, and the tile that notified (an index of `Events.heads`)."""


def of_tiles(
    events: Events,
    heading: tuple[str, str, str],
    times: tuple[np.ndarray, np.ndarray],
    waits: Iterable[Wait],
    transfers: Iterable[Transfer],
    labels: Sequence[str] | None = None,
    sent: Sequence[float] | None = None,
) -> Timeline:
    """The timeline of a run of these events. `heading`: title, unit and source. `times`: when each tile starts and
    stops; NaN leaves a tile out. `labels`: labels of all tiles; by default the region that each tile writes. `sent`:
    for each wait, when the tile that ended it notified; None if that is not known."""
    (start, stop), labels = times, _labels(events) if labels is None else labels
    drawn = np.flatnonzero(~np.isnan(start))
    place = {tile: number for number, tile in enumerate(drawn.tolist())}
    heads, roles = events.heads[drawn], [role.name for role in events.program.roles]
    columns = (c.tolist() for c in (events.rank[heads], events.worker[heads], events.role[heads], drawn))
    spans = [
        Span(rank, worker, roles[role], "tile", labels[tile], a, b)
        for rank, worker, role, tile, a, b in zip(*columns, start[drawn].tolist(), stop[drawn].tolist(), strict=True)
    ]
    for number, (k, a, b, cause) in enumerate(waits):
        of = spans[place[int(events.tile_at[k])]]
        by = None if cause is None else place[cause]
        when = None if sent is None else sent[number]
        spans.append(Span(of.rank, of.worker, of.role, "wait", events.region(k), a, b, by, when))
    agents = events.kernel_workers if events.program.on_engine else None
    return Timeline(*heading, tuple(spans), agents, tuple(transfers))


def _labels(events: Events) -> list[str]:
    """A label for each tile: the region that it writes, and where."""
    columns = (events.tensor, events.lo, events.hi, events.home, events.rank)
    texts = []
    for tensor, lo, hi, home, rank in zip(*(c[events.made].tolist() for c in columns), strict=True):
        dims = events.program.tensors[tensor].dims if tensor >= 0 else ()
        spans = [f"{d}[{a}:{b}]" for d, a, b in zip(dims, lo, hi, strict=False)]
        texts.append(" ".join(spans) + (f" at rank {home}" if home not in (rank, -1) else ""))
    return texts
