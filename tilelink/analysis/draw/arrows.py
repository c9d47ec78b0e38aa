"""The arrows in a picture of a timeline: from tiles that notify to the waits that they end."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from tilelink.analysis.timeline import Span, Timeline

if TYPE_CHECKING:
    from tilelink.analysis.draw.picture import Layout

MOST_ARROWS = 40


def candidates(timeline: Timeline) -> tuple[list[Span], str]:
    """The waits that arrows could show, the longest first, and what the arrows go between: "rank" or "worker".

    A tile has at most one: the last wait that began before its cause notified, so that the tile really had to wait.
    """
    last: dict[int, tuple[Span, Span]] = {}
    for index, tile in timeline.tile_of.items():
        wait = timeline.spans[index]
        notification = timeline.notification(wait)
        if notification is None:
            continue
        notifying, sent = notification
        if sent > wait.start and (tile not in last or wait.stop > last[tile][0].stop):
            last[tile] = wait, notifying
    found: dict[str, list[Span]] = {"rank": [], "worker": []}
    for wait, notifying in last.values():
        if notifying.rank != wait.rank:
            found["rank"].append(wait)
        elif notifying.worker != wait.worker:
            found["worker"].append(wait)
    between = "rank" if found["rank"] else "worker"
    return sorted(found[between], key=lambda w: (-w.duration, w.start, w.rank, w.worker)), between


def choose(layout: Layout, waits: list[Span]) -> list[tuple[float, float, float, float]]:
    """The arrows to draw, as (x, y) of start and stop: as many as can be told apart.

    They go to the longest waits of each stretch of time, since the longest of all may all be at the start. A tile may
    end the waits of many workers of a rank; one arrow to each rank shows that.
    """
    timeline = layout.timeline
    chosen: list[tuple[float, float, float, float]] = []
    shown: set[tuple[int | None, int]] = set()
    apart = 0.1 * layout.per_inch
    stretches: dict[int, list[Span]] = defaultdict(list)
    for wait in waits:
        stretches[int(layout.time(wait.stop) / layout.whole * MOST_ARROWS / 2)].append(wait)
    turns = chain.from_iterable(zip_longest(*(stretches[k] for k in sorted(stretches))))
    for wait in filter(None, turns):
        notification = timeline.notification(wait)
        if notification is None:
            continue
        tile, sent = notification
        x, y = layout.time(sent), layout.rows[tile.rank, tile.worker]
        to_x, to_y = layout.time(wait.stop), layout.rows[wait.rank, wait.worker]
        crowded = any(
            max(min(y, to_y), min(b, d)) <= min(max(y, to_y), max(b, d))
            and (abs(x - a) < apart or abs(to_x - c) < apart)
            for a, b, c, d in chosen
        )
        if (wait.cause, wait.rank) not in shown and not crowded:
            shown.add((wait.cause, wait.rank))
            chosen.append((x, y, to_x, to_y))
        if len(chosen) == MOST_ARROWS:
            break
    return chosen
