"""Tiles and their waits on the PNG: a bar each, and in it what the tile is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilelink.analysis.draw.layout import Layout
from tilelink.analysis.draw.palette import INK, luminance, waiting
from tilelink.analysis.timeline import Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMALLEST_TEXT = 5.0


def draw_tiles(axes: Axes, layout: Layout) -> None:
    """A bar a tile in the colour of its role, and one over it for each of its waits."""
    from matplotlib.collections import PolyCollection

    def corners(span: Span) -> list[tuple[float, float]]:
        left, right = layout.time(span.start), layout.time(span.stop)
        if span.kind == "tile":
            right = max(right, left + layout.least)
        middle = layout.rows[span.rank, span.worker]
        up, down = middle - layout.thick / 2, middle + layout.thick / 2
        return [(left, up), (right, up), (right, down), (left, down)]

    for role, colour in layout.colours.items():
        spans = [s for s in layout.timeline.spans if s.role == role]
        tiles = [corners(s) for s in spans if s.kind == "tile"]
        waits = [corners(s) for s in spans if s.kind == "wait"]
        axes.add_collection(
            PolyCollection(tiles, facecolor=colour, edgecolor="white", linewidth=layout.edge, zorder=2)
        )
        axes.add_collection(PolyCollection(waits, zorder=3, **waiting(colour)))
        # The outline again, so that neighbours that wait stay apart.
        axes.add_collection(
            PolyCollection(tiles, facecolor="none", edgecolor="white", linewidth=layout.edge, zorder=4)
        )


def draw_labels(axes: Axes, layout: Layout) -> None:
    """What tiles are, right of their waits; for the roles most of whose tiles have room for it."""
    timeline = layout.timeline
    free = {i: s.start for i, s in enumerate(timeline.spans) if s.kind == "tile"}
    for wait, of in timeline.tile_of.items():
        free[of] = max(free[of], timeline.spans[wait].stop)
    for role, colour in layout.colours.items():
        tiles = [i for i in free if timeline.spans[i].role == role]
        rooms = {i: timeline.spans[i].stop - free[i] for i in tiles}
        most = sorted(rooms.values())[len(rooms) // 3]
        sizes = {}
        for between in " \n":  # in one line, or a line a range
            texts = [timeline.spans[i].label.replace(" ", between) for i in tiles]
            sizes[between] = min(layout.text_size(text, most) for text in texts)
        between = max(sizes, key=lambda b: sizes[b])
        size = sizes[between]
        if size < SMALLEST_TEXT:
            continue
        for index in tiles:
            tile = timeline.spans[index]
            text = tile.label.replace(" ", between)
            if layout.text_size(text, rooms[index]) >= size:
                axes.text(
                    layout.time((free[index] + tile.stop) / 2),
                    layout.rows[tile.rank, tile.worker],
                    text,
                    ha="center",
                    va="center",
                    fontsize=size,
                    linespacing=1.1,
                    color="white" if luminance(colour) < 0.35 else INK,
                    zorder=5,
                )
