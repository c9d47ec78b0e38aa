"""The critical path of a timeline, and the causes of its workers' idle time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from tilelink.analysis.timeline import Span, Timeline


@dataclass(frozen=True)
class Link:
    """A piece of a critical path. "tiles": a worker ran `tiles` tiles of a role one after the other, each whole or the
    part of it that is on the path; `label` is the last tile's label. "signal": a signal was on its way to the worker
    that waited for it; `label` says what was waited for. Predictions also have "launch", before the first tile, and
    "leave", after the last."""

    kind: Literal["tiles", "signal", "launch", "leave"]
    rank: int
    worker: int
    role: str
    label: str
    start: float
    stop: float
    tiles: int

    @property
    def duration(self) -> float:
        return self.stop - self.start


def critical_path(timeline: Timeline) -> tuple[Link, ...]:
    """The links from the start of a timeline to the stop of the tile that ends last. A tile follows the tile whose
    notification ended its last wait. If it did not wait, it follows the tile before it on its worker.

    A tile that notifies and goes on is on the path up to that notification: only its waits before it count. A path may
    therefore come back to a tile, to an earlier part of it.
    """
    spans = timeline.spans
    tiles = [i for i, s in enumerate(spans) if s.kind == "tile"]
    if not tiles:
        return ()
    waits: dict[int, list[int]] = defaultdict(list)
    for i, inside in timeline.tile_of.items():
        if spans[i].duration > 0 and spans[i].cause is not None:
            waits[inside].append(i)
    before = {after: i for on in timeline.by_worker("tile").values() for i, after in pairwise(on)}

    at: int | None = max(tiles, key=lambda i: spans[i].stop)
    assert at is not None
    until = spans[at].stop
    links: list[Link] = []
    while at is not None:
        tile = spans[at]
        ended = [w for w in waits[at] if spans[w].stop <= until]
        if ended:
            last = max(ended, key=lambda w: spans[w].stop)
            waits[at].remove(last)  # once is enough: notifications of unknown times could lead back to it
            wait = spans[last]
            assert wait.cause is not None
            links.append(_link("tiles", tile, tile.label, wait.stop, until, 1))
            sent = min(spans[wait.cause].stop, wait.stop) if wait.sent is None else wait.sent
            links.append(_link("signal", wait, wait.label, sent, wait.stop, 0))
            at, until = wait.cause, sent
            continue
        links.append(_link("tiles", tile, tile.label, min(tile.start, until), until, 1))
        at = before.get(at)
        until = spans[at].stop if at is not None else until
    return _merged(links[::-1])


def _link(kind: Literal["tiles", "signal"], span: Span, label: str, start: float, stop: float, tiles: int) -> Link:
    return Link(kind, span.rank, span.worker, span.role, label, start, stop, tiles)


def _merged(links: list[Link]) -> tuple[Link, ...]:
    """The links, with consecutive tiles of a role on one worker merged into one link."""
    merged: list[Link] = []
    for link in links:
        last = merged[-1] if merged else None
        place = (link.kind, link.rank, link.worker, link.role)
        if last and link.kind == "tiles" and (last.kind, last.rank, last.worker, last.role) == place:
            merged[-1] = replace(link, start=last.start, tiles=last.tiles + link.tiles)
        else:
            merged.append(link)
    return tuple(merged)


def idle(
    timeline: Timeline,
    workers: int | None = None,
    between: tuple[float, float] | None = None,
    leave_out: Collection[str] = (),
) -> dict[str, float]:
    """The time in which a worker had nothing to do, by cause: the mean over `workers` (None: the timeline's workers),
    `between` two times (None: the timeline's).

    Causes: "waiting for ROLE" or "waiting for ROLE of another rank", by the tile that ended the wait; "waiting", if
    that tile is not known; "before the first tile"; "after the last tile"; "no tile at all", for workers that the
    timeline lacks. Workers of the roles in `leave_out` don't count, nor do streams of the copy engine.
    """
    start, stop = between or (timeline.start, timeline.stop)
    first: dict[tuple[int, int], float] = {}
    last: dict[tuple[int, int], float] = {}
    found: dict[str, float] = defaultdict(float)
    for span in timeline.spans:
        if span.role in leave_out or timeline.peer_of(span.worker) is not None:
            continue
        key = span.rank, span.worker
        if span.kind == "tile":
            first[key] = min(first.get(key, span.start), span.start)
            last[key] = max(last.get(key, span.stop), span.stop)
        elif span.duration:
            giver = None if span.cause is None else timeline.spans[span.cause]
            whose = " of another rank" if giver is not None and giver.rank != span.rank else ""
            found["waiting" if giver is None else f"waiting for {giver.role}{whose}"] += span.duration
    found["before the first tile"] = sum(t - start for t in first.values())
    found["after the last tile"] = sum(stop - t for t in last.values())
    total = max(1, workers or len(first))
    found["no tile at all"] = (total - len(first)) * (stop - start)
    return {cause: time / total for cause, time in sorted(found.items(), key=lambda item: -item[1]) if time > 0}
