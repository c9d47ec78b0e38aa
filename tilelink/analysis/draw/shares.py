"""What the workers of each rank spent the makespan on: bars at the right of the PNG."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

from tilelink.analysis.draw.frame import note
from tilelink.analysis.draw.layout import Layout
from tilelink.analysis.draw.palette import FAINT, IDLE, INK, waiting

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        note(
            axes,
            f"{sum(waits.values()) / whole:.0%} waiting",
            (0, middle),
            above,
            fontsize=9.5,
            weight="bold",
            color=INK,
        )
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
