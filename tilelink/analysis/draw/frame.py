"""What stands around the bars of the PNG: the axes, the bands of ranks, the title and the legend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilelink.analysis.draw.layout import Layout
from tilelink.analysis.draw.palette import FAINT, IDLE, INK, waiting
from tilelink.analysis.timeline import MEMORY_OPERATIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

def draw_frame(axes: Axes, layout: Layout) -> None:
    """The time axis, a label a worker, and a band with its name for each rank."""
    timeline = layout.timeline
    axes.set_xlim(0, layout.whole)
    axes.set_ylim(layout.extent, 0)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    logical = timeline.unit == MEMORY_OPERATIONS
    axes.set_xlabel(
        "logical time (memory operations, in order; not performance)"
        if logical
        else f"time ({timeline.unit})"
    )
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
    figure.text(
        left, 1 - 0.32 / layout.height, timeline.title, fontsize=15, weight="bold", color=INK, va="center"
    )
    figure.text(left, 1 - 0.6 / layout.height, subtitle, fontsize=10, color="#555555", va="center")
    handles: list[Patch | Line2D] = [Patch(facecolor=c, label=role) for role, c in layout.colours.items()]
    handles.append(Patch(**waiting("#777777"), label="waiting"))
    handles.append(Patch(facecolor=IDLE, label="idle"))
    if arrows:
        handles.append(Line2D([], [], color=INK, linewidth=0.9, marker=">", markersize=4, label=arrows))
    figure.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(layout.left / layout.width, 1 - 0.92 / layout.height),
        borderaxespad=0,
        borderpad=0,
        ncols=len(handles),
        columnspacing=1.6,
        frameon=False,
    )


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
