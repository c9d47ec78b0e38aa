"""A timeline as a PNG, by matplotlib."""

from __future__ import annotations

from os import PathLike
from textwrap import fill
from typing import TYPE_CHECKING, Any

from tilelink.analysis.draw.arrows import draw_arrows
from tilelink.analysis.draw.layout import FAINT, IDLE, INK, Layout, luminance, waiting
from tilelink.analysis.timeline import MEMORY_OPERATIONS, Span, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMALLEST_TEXT = 5.0


def png(timeline: Timeline, path: str | PathLike[str]) -> None:
    """Draw the timeline as a PNG: a row a worker, grouped by rank; needs matplotlib.

    Tiles have the colour of their role; waits are the pale, hatched parts. Arrows go from tiles that notify
    to the waits they end: between ranks (where there are none, between workers), and only as many as can be
    told apart, to the longest waits, each the last of its tile that really had to wait. At the right is what the
    workers of each rank spent their time on.
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


def draw_frame(axes: Axes, layout: Layout) -> None:
    """The time axis, a label a worker, and a band with its name for each rank."""
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

    every = max(1, round(0.13 / layout.row))  # a label a row, unless rows are lower than text
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
    """Title, unit and source, and the legend; `arrows`: what it says about them, "" for none."""
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
    """Text at a fraction of the width and a row, moved by points."""
    axes.annotate(
        text,
        at,
        xycoords=("axes fraction", "data"),
        xytext=offset,
        textcoords="offset points",
        annotation_clip=False,
        **style,
    )


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
        outline: dict[str, Any] = {"edgecolor": "white", "linewidth": layout.edge}
        axes.add_collection(PolyCollection(tiles, facecolor=colour, zorder=2, **outline))
        axes.add_collection(PolyCollection(waits, zorder=3, **waiting(colour)))
        # The outline again, so that neighbours that wait stay apart.
        axes.add_collection(PolyCollection(tiles, facecolor="none", zorder=4, **outline))


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


def draw_shares(axes: Axes, layout: Layout) -> None:
    """What the workers of each rank spent the makespan on: tiles and waits of each role, and neither."""
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
            note(
                axes,
                fill("by role: " + ", ".join(each), 42),
                (0, middle),
                (0, -above[1]),
                fontsize=7,
                va="top",
                color=FAINT,
            )
