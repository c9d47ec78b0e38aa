"""A timeline as a PNG, by matplotlib."""

from __future__ import annotations

from os import PathLike
from typing import Any

from tilelink.analysis.draw.arrows import draw_arrows
from tilelink.analysis.draw.frame import draw_frame, draw_head
from tilelink.analysis.draw.layout import Layout
from tilelink.analysis.draw.shares import draw_shares
from tilelink.analysis.draw.tiles import draw_labels, draw_tiles
from tilelink.analysis.timeline import Timeline


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
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "text.parse_math": False,
        "hatch.linewidth": 0.7,
        "axes.linewidth": 0.6,
    }
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
