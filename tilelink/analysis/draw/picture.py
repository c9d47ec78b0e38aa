"""A timeline as a PNG, drawn by matplotlib."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from statistics import median
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from tilelink.analysis.draw.arrows import candidates, choose
from tilelink.analysis.timeline import MEMORY_OPERATIONS, Span, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, IDLE = "#222222", "#7d7d7d", "#eceef1"
SMALLEST_TEXT = 5.0


@dataclass(frozen=True)
class Layout:
    """Positions: inches on the page, and rows (which grow downwards) in the plot."""

    timeline: Timeline

    width = 15.0
    left = 1.3
    right = 2.7
    top = 1.3
    bottom = 0.65
    gap = 0.7  # between ranks, in rows
    thick = 0.84  # of a bar, in rows

    @cached_property
    def rows(self) -> dict[tuple[int, int], float]:
        """The middle of the row of each (rank, worker)."""
        found, row = {}, 0.5
        for rank in self.timeline.ranks:
            for worker in self.timeline.workers(rank):
                found[rank, worker] = row
                row += 1
            row += self.gap
        return found

    @cached_property
    def row(self) -> float:
        """Inches of a row: high if there are few workers, low enough for all of them on a page."""
        return min(0.55, max(0.15, 7.5 / len(self.rows)), 30 / len(self.rows))

    @cached_property
    def edge(self) -> float:
        """Points of the white line around tiles, thin enough to leave something of small tiles."""
        width = median(s.duration for s in self.timeline.spans if s.kind == "tile") / self.per_inch
        return min(0.7, 0.1 * 72 * width, 0.06 * 72 * self.row)

    @property
    def extent(self) -> float:
        """Rows in all, with the gaps."""
        return max(self.rows.values()) + 0.5

    @property
    def height(self) -> float:
        return self.top + self.bottom + self.extent * self.row

    @cached_property
    def whole(self) -> float:
        """The length of the time axis; never 0, even if all spans are instants."""
        return self.timeline.makespan or 1.0

    @property
    def per_inch(self) -> float:
        """The time that an inch stands for."""
        return self.whole / (self.width - self.left - self.right)

    @property
    def least(self) -> float:
        """The time that is drawn for tiles that take none, so that they can be seen."""
        return 0.008 * self.per_inch

    def text_size(self, text: str, duration: float) -> float:
        """Points of the largest text that fits into a tile. A letter is about 0.62 times as wide as its size."""
        lines = text.split("\n")
        wide = duration / self.per_inch * 72 / (0.62 * max(map(len, lines)) + 0.8)
        high = self.row * 72 * self.thick / (1.35 * len(lines) + 0.3)
        return min(8.0, wide, high)

    def box(self, left: float, width: float) -> tuple[float, float, float, float]:
        """A box as fractions of the page, as high as the plot."""
        high = 1 - (self.top + self.bottom) / self.height
        return left / self.width, self.bottom / self.height, width / self.width, high

    def band(self, rank: int) -> tuple[float, float]:
        """First and last row of a rank."""
        rows = [row for (r, _), row in self.rows.items() if r == rank]
        return min(rows) - 0.5, max(rows) + 0.5

    def time(self, time: float) -> float:
        """A time as drawn: the picture starts at 0, whatever the clock of the source."""
        return time - self.origin

    @cached_property
    def origin(self) -> float:
        return self.timeline.start

    @cached_property
    def colours(self) -> dict[str, str]:
        return self.timeline.colours()


def png(timeline: Timeline, path: str | PathLike[str]) -> None:
    """Draws the timeline as a PNG, with a row for each worker, grouped by rank. Needs matplotlib.

    Tiles have the colour of their role; waits are the pale, hatched parts. Arrows go from tiles that notify to the
    waits that they end: between ranks or, if there are none, between workers. Only as many are drawn as can be told
    apart, to the longest waits, each the last of its tile that really had to wait. At the right is what the workers of
    each rank spent their time on.
    """
    try:
        import matplotlib.style
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from PIL import Image  # comes with matplotlib
    except ImportError as missing:
        raise ImportError(
            "a PNG of a timeline needs matplotlib, from the extra 'bench': pip install 'tilelink[bench]'"
        ) from missing
    if not timeline.spans:
        raise ValueError(f"the timeline {timeline.title!r} has no spans to draw")

    layout = Layout(timeline)
    style: dict[str, Any] = {
        "font.family": "DejaVu Sans", "font.size": 9, "text.parse_math": False, "hatch.linewidth": 0.7,
        "axes.linewidth": 0.6,
    }  # fmt: skip
    with matplotlib.style.context(["default", style]):  # whatever the reader's own settings
        figure = Figure(figsize=(layout.width, layout.height), dpi=150, facecolor="white")
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_axes(layout.box(layout.left, layout.width - layout.left - layout.right))
        shares = figure.add_axes(layout.box(layout.width - layout.right + 0.25, layout.right - 0.45), sharey=axes)
        draw_frame(axes, layout)
        draw_tiles(axes, layout)
        draw_labels(axes, layout)
        arrows = draw_arrows(axes, layout)
        draw_shares(shares, layout)
        draw_head(figure, layout, arrows)
        canvas.draw()
    # A palette makes the file less than half as large, and nothing looks different.
    image = Image.frombytes("RGBA", canvas.get_width_height(), bytes(canvas.buffer_rgba())).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(path, "png", optimize=True)


def waiting(colour: str) -> dict[str, Any]:
    """The look of a wait: pale and hatched."""
    from matplotlib.colors import to_hex, to_rgb

    red, green, blue = (1 - 0.18 * (1 - part) for part in to_rgb(colour))
    return {"facecolor": to_hex((red, green, blue)), "edgecolor": colour, "hatch": "/////", "linewidth": 0}


def luminance(colour: str) -> float:
    """How light a colour looks, from 0 to 1."""
    from matplotlib.colors import to_rgb

    return float(np.power(to_rgb(colour), 2.2) @ (0.2126, 0.7152, 0.0722))


def draw_frame(axes: Axes, layout: Layout) -> None:
    """Draws the time axis, a label for each worker, and a band with its name for each rank."""
    timeline = layout.timeline
    axes.set_xlim(0, layout.whole)
    axes.set_ylim(layout.extent, 0)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    logical = "logical time (memory operations, in order; not performance)"
    axes.set_xlabel(logical if timeline.unit == MEMORY_OPERATIONS else f"time ({timeline.unit})")
    axes.tick_params(axis="x", length=3, width=0.6)
    axes.grid(axis="x", color="white", linewidth=0.8)
    axes.set_axisbelow(True)

    every = max(1, round(0.13 / layout.row))  # a label for each row, unless rows are lower than text
    ticks = [(row, worker) for (_, worker), row in layout.rows.items() if worker % every == 0]
    peers = {worker: timeline.peer_of(worker) for _, worker in ticks}
    names = [str(worker) if peers[worker] is None else f"engine {peers[worker]}" for _, worker in ticks]
    axes.set_yticks([row for row, _ in ticks], names, fontsize=7, color=FAINT)
    axes.tick_params(axis="y", length=0, pad=3)
    for rank in timeline.ranks:
        first, last = layout.band(rank)
        axes.axhspan(first, last, color=IDLE, zorder=0, linewidth=0)
        rank_style = {"ha": "right", "va": "center", "fontsize": 11, "weight": "bold", "color": INK}
        note(axes, f"rank {rank}", (0, (first + last) / 2), (-34, 0), **rank_style)
    note(axes, "worker", (0, 0), (-3, 4), ha="right", fontsize=7, color=FAINT)


def draw_head(figure: Figure, layout: Layout, arrows: str) -> None:
    """Draws title, unit and source, and the legend. `arrows`: the legend of arrows, "" for none."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    timeline = layout.timeline
    total = timeline.makespan
    digits = f"{total:,.0f}" if total >= 1000 else f"{total:.4g}"
    subtitle = f"{timeline.source}  ·  {digits} {timeline.unit} in all"
    left = 0.3 / layout.width
    figure.text(left, 1 - 0.32 / layout.height, timeline.title, fontsize=15, weight="bold", color=INK, va="center")
    figure.text(left, 1 - 0.6 / layout.height, subtitle, fontsize=10, color="#555555", va="center")
    handles: list[Patch | Line2D] = [Patch(facecolor=c, label=role) for role, c in layout.colours.items()]
    handles.append(Patch(**waiting("#777777"), label="waiting"))
    handles.append(Patch(facecolor=IDLE, label="idle"))
    if arrows:
        handles.append(Line2D([], [], color=INK, linewidth=0.9, marker=">", markersize=4, label=arrows))
    figure.legend(
        handles=handles, loc="center left", bbox_to_anchor=(layout.left / layout.width, 1 - 0.92 / layout.height),
        borderaxespad=0, borderpad=0, ncols=len(handles), columnspacing=1.6, frameon=False,
    )  # fmt: skip


def note(axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **style: Any) -> None:
    """Writes text at a fraction of the width and at a row, moved by points."""
    where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    axes.annotate(text, at, xytext=offset, annotation_clip=False, **where, **style)


def draw_tiles(axes: Axes, layout: Layout) -> None:
    """Draws a bar for each tile in the colour of its role, and a bar over it for each of its waits."""
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
        outline: dict[str, Any] = {"edgecolor": "white", "linewidth": layout.edge}
        axes.add_collection(PolyCollection(tiles, facecolor=colour, zorder=2, **outline))
        axes.add_collection(PolyCollection(waits, zorder=3, **waiting(colour)))
        # The outline again, so that neighbours that wait stay apart.
        axes.add_collection(PolyCollection(tiles, facecolor="none", zorder=4, **outline))


def draw_labels(axes: Axes, layout: Layout) -> None:
    """Draws the labels of tiles, right of their waits, for roles whose tiles mostly have room for them."""
    timeline = layout.timeline
    free = {i: s.start for i, s in enumerate(timeline.spans) if s.kind == "tile"}
    for wait, of in timeline.tile_of.items():
        free[of] = max(free[of], timeline.spans[wait].stop)
    for role, colour in layout.colours.items():
        tiles = [i for i in free if timeline.spans[i].role == role]
        rooms = {i: timeline.spans[i].stop - free[i] for i in tiles}
        most = sorted(rooms.values())[len(rooms) // 3]
        sizes = {}
        for between in " \n":  # in one line, or in one line for each range
            texts = [timeline.spans[i].label.replace(" ", between) for i in tiles]
            sizes[between] = min(layout.text_size(text, most) for text in texts)
        between = max(sizes, key=lambda b: sizes[b])
        size, ink = sizes[between], "white" if luminance(colour) < 0.35 else INK
        if size < SMALLEST_TEXT:
            continue
        style: dict[str, Any] = {"ha": "center", "va": "center", "linespacing": 1.1, "fontsize": size, "color": ink}
        for index in tiles:
            tile = timeline.spans[index]
            text = tile.label.replace(" ", between)
            if layout.text_size(text, rooms[index]) >= size:
                middle = layout.time((free[index] + tile.stop) / 2)
                axes.text(middle, layout.rows[tile.rank, tile.worker], text, zorder=5, **style)


def draw_shares(axes: Axes, layout: Layout) -> None:
    """Draws the shares of the makespan that the workers of each rank spent in tiles and in waits of each role."""
    timeline = layout.timeline
    axes.set_xlim(0, 1)
    axes.axis("off")
    note(axes, "share of worker time", (0, 0), (0, 4), fontsize=7, color=FAINT)
    for rank in timeline.ranks:
        first, last = layout.band(rank)
        middle = (first + last) / 2
        high = (last - first) * layout.row
        whole = layout.whole * len(timeline.workers(rank))
        waits = {role: timeline.waiting(rank, role) for role in timeline.roles}
        tiles = {role: timeline.busy(rank, role) + waits[role] for role in timeline.roles}

        thick = min(0.2, 0.4 * high) / layout.row
        axes.barh(middle, 1, thick, color=IDLE, linewidth=0)
        left = 0.0
        for role, colour in layout.colours.items():
            parts = (
                (timeline.busy(rank, role) / whole, {"color": colour, "linewidth": 0}),
                (waits[role] / whole, waiting(colour)),
            )
            for share, style in parts:
                axes.barh(middle, share, thick, left, **style)
                left += share
        above = (0, thick / 2 * layout.row * 72 + 3)
        share_of_waits = f"{sum(waits.values()) / whole:.0%} waiting"
        note(axes, share_of_waits, (0, middle), above, fontsize=9.5, weight="bold", color=INK)
        if high > 0.75:
            # A role may run on few workers, so its waits look small among all.
            each = [f"{role} {waits[role] / tiles[role]:.0%}" for role in timeline.roles if tiles[role]]
            by_role = fill("by role: " + ", ".join(each), 42)
            note(axes, by_role, (0, middle), (0, -above[1]), fontsize=7, va="top", color=FAINT)


def draw_arrows(axes: Axes, layout: Layout) -> str:
    """Draws arrows from tiles that notified to the waits that they ended; returns their legend."""
    from matplotlib.patches import FancyArrowPatch

    waits, between = candidates(layout.timeline)
    chosen = choose(layout, waits)
    style: dict[str, Any] = {"arrowstyle": "-|>,head_length=4,head_width=1.8", "shrinkA": 0, "shrinkB": 0}
    for x, y, to_x, to_y in chosen:
        for colour, width, order in (("white", 2.0, 7), (INK, 0.8, 8)):  # a halo keeps it off the hatching
            look: dict[str, Any] = {"color": colour, "linewidth": width, "zorder": order}
            axes.add_patch(FancyArrowPatch((x, y), (to_x, to_y), **style, **look))
        edge: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.6}
        axes.plot(x, y, marker="o", markersize=3.6, color=INK, zorder=9, **edge)
    if not chosen:
        return ""
    some = f" ({len(chosen)} of {len(waits)})" if len(chosen) < len(waits) else ""
    return f"ends a wait of another {between}{some}"
