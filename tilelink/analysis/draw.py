"""Pictures of timelines: a trace for ui.perfetto.dev, and a PNG.

Every picture says its unit and its source, so that nobody takes the logical time of an execution on the CPU
for performance.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest
from os import PathLike
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import TYPE_CHECKING, Any

from tilelink.analysis.timeline import MEMORY_OPERATIONS, Span, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Event = dict[str, Any]

# The format knows colours by reserved names only; chrome://tracing obeys them, Perfetto colours by name.
TRACE_COLOURS = (
    "thread_state_running",
    "rail_response",
    "rail_animation",
    "rail_load",
    "thread_state_iowait",
)
TRACE_COLOUR_OF_WAITS = "grey"
NANOSECOND = 0.001  # the resolution of trace viewers, in the microseconds of the format

# Okabe and Ito's palette, which colour-blind readers can tell apart; after its last colour it starts again.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
INK, FAINT, IDLE = "#222222", "#7d7d7d", "#eceef1"
MOST_ARROWS = 40
SMALLEST_TEXT = 5.0


def perfetto(timeline: Timeline) -> dict[str, Any]:
    """The timeline as trace events of Chrome's format, which ui.perfetto.dev opens.

    Ranks are processes, workers threads, tiles and waits complete events, and a flow goes from the tile that
    notified to the wait it ended. The format's microseconds are the timeline's unit, one to one; `otherData`
    and the names of the processes say what they are.
    """
    processes, threads = _identifiers(timeline)
    colours = dict(zip(timeline.roles, _cycle(TRACE_COLOURS, len(timeline.roles)), strict=True))
    about = timeline.source
    if timeline.unit == MEMORY_OPERATIONS:
        about += ": 1 us drawn is 1 memory operation, not performance"

    metadata: list[Event] = []
    for rank, pid in processes.items():
        metadata.append(_metadata("process_name", pid, name=f"rank {rank} ({about})"))
        metadata.append(_metadata("process_sort_index", pid, sort_index=rank))
    for (rank, worker), tid in threads.items():
        pid = processes[rank]
        peer = timeline.peer_of(worker)
        name = f"worker {worker}" if peer is None else f"engine to rank {peer}"
        metadata.append(_metadata("thread_name", pid, tid, name=name))
        metadata.append(_metadata("thread_sort_index", pid, tid, sort_index=worker))

    def place(span: Span) -> Event:
        return {"pid": processes[span.rank], "tid": threads[span.rank, span.worker]}

    events: list[Event] = []
    for span in timeline.spans:
        wait = span.kind == "wait"
        args: Event = {"role": span.role, "label": span.label, "rank": span.rank, "worker": span.worker}
        if span.cause is not None:
            args["ended by"] = str(timeline.spans[span.cause])
        name, category = (
            (f"wait: {span.label}", f"{span.role},wait") if wait else (f"{span.role} {span.label}", span.role)
        )
        start, stop = _rounded(span.start), _rounded(span.stop)
        events.append(
            {
                "name": name,
                "cat": category,
                "ph": "X",
                "ts": start,
                "dur": _rounded(stop - start),
                **place(span),
                "cname": TRACE_COLOUR_OF_WAITS if wait else colours[span.role],
                "args": args,
            }
        )
    events += _flows(timeline, place)

    # In order of time; at the same time what encloses comes first, and a flow starts before it finishes.
    events.sort(key=lambda e: (e["ts"], "Xsf".index(e["ph"]), -e.get("dur", 0)))
    return {
        "displayTimeUnit": "ns",
        "otherData": {
            "title": timeline.title,
            "source": timeline.source,
            "unit": timeline.unit,
            "about": about,
        },
        "traceEvents": metadata + events,
    }


def write_perfetto(timeline: Timeline, path: str | PathLike[str]) -> None:
    """Write `perfetto(timeline)` to a file that ui.perfetto.dev opens."""
    Path(path).write_text(json.dumps(perfetto(timeline), separators=(",", ":"), allow_nan=False))


def _identifiers(timeline: Timeline) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
    """Process of each rank, thread of each worker.

    Threads are unique over all processes, none has the number of its process (that would be its main thread),
    and none is 0 (the idle thread): Perfetto treats those differently.
    """
    workers = {rank: timeline.workers(rank) for rank in timeline.ranks}
    stride = max(1000, max((w + 2 for ws in workers.values() for w in ws), default=0))
    processes = {rank: (rank + 1) * stride for rank in workers}
    threads = {(rank, w): processes[rank] + w + 1 for rank, ws in workers.items() for w in ws}
    return processes, threads


def _metadata(what: str, pid: int, tid: int | None = None, **args: Any) -> Event:
    return {
        "name": what,
        "ph": "M",
        "ts": 0,
        "pid": pid,
        **({} if tid is None else {"tid": tid}),
        "args": args,
    }


def _flows(timeline: Timeline, place: Callable[[Span], Event]) -> list[Event]:
    """The flows from tiles that notified to the waits they ended, and the marks that they are tied to.

    Viewers tie the ends of a flow to spans, and Perfetto draws it from the stop of one to the start of the
    other, turned around where the first started later. A wait starts before it is notified, so its arrow
    would point backwards in time; marks at the two moments keep it right.
    """
    marks: dict[tuple[int | None, float], Event] = {}  # of tiles, which may notify many at once
    flows: list[Event] = []
    for index, wait in enumerate(timeline.spans):
        notification = _notification(timeline, wait)
        if notification is None:
            continue
        tile, notified = notification
        # Spans are open on the right: a mark has to be a little before the stop to lie inside.
        sent = max(_rounded(tile.start), _rounded(notified - NANOSECOND))
        woken = max(_rounded(wait.start), _rounded(wait.stop - NANOSECOND), sent)
        mark = {"cat": "signal", "ph": "X", "dur": 0}
        arrow = {"name": "notify", "cat": "signal", "id": index + 1}
        start = {"name": "notify", "ts": sent, **mark, **place(tile), "args": {"ends": []}}
        marks.setdefault((wait.cause, sent), start)["args"]["ends"].append(str(wait))
        flows += (
            {"name": "notified", "ts": woken, **mark, **place(wait), "args": {"by": str(tile)}},
            {"ph": "s", "ts": sent, **arrow, **place(tile)},
            {"ph": "f", "bp": "e", "ts": woken, **arrow, **place(wait)},
        )
    return [*marks.values(), *flows]


def _notification(timeline: Timeline, wait: Span) -> tuple[Span, float] | None:
    """The tile that ended a wait, and when it notified: as it stopped, or as the wait did if that was before.

    None where there is no such tile, or it started after the wait stopped: clocks of ranks differ a little.
    """
    if wait.cause is None:
        return None
    tile = timeline.spans[wait.cause]
    return (tile, min(tile.stop, wait.stop)) if tile.start <= wait.stop else None


def _rounded(time: float) -> float:
    return round(time, 3)


def _cycle(values: tuple[str, ...], count: int) -> list[str]:
    return [values[k % len(values)] for k in range(count)]


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

    page = _Page(timeline)
    style: dict[str, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "text.parse_math": False,
        "hatch.linewidth": 0.7,
        "axes.linewidth": 0.6,
    }
    with matplotlib.style.context(["default", style]):  # whatever the reader's own settings
        figure = Figure(figsize=(page.width, page.height), dpi=150, facecolor="white")
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_axes(page.box(page.left, page.width - page.left - page.right))
        shares = figure.add_axes(page.box(page.width - page.right + 0.25, page.right - 0.45), sharey=axes)
        _frame(axes, page)
        _bars(axes, page)
        _labels(axes, page)
        arrows = _arrows(axes, page)
        _shares(shares, page)
        _head(figure, page, arrows)
        canvas.draw()
    # A palette makes the file less than half as large, and nothing looks different.
    image = Image.frombytes("RGBA", canvas.get_width_height(), bytes(canvas.buffer_rgba())).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(path, "png", optimize=True)


@dataclass(frozen=True)
class _Page:
    """Where things are on the picture: inches on the page, and rows (which grow downwards) in the plot."""

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
        """Inches of a row: as high as few workers allow, low enough for all on a page."""
        return min(0.55, max(0.15, 7.5 / len(self.rows)), 30 / len(self.rows))

    @cached_property
    def edge(self) -> float:
        """Points of the white line around tiles: thin enough to leave something of small ones."""
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
        """The time axis; never empty, though all spans may be instants."""
        return self.timeline.makespan or 1.0

    @property
    def per_inch(self) -> float:
        """Time that an inch stands for."""
        return self.whole / (self.width - self.left - self.right)

    @property
    def least(self) -> float:
        """Time that is drawn for tiles that take none, which would not be seen."""
        return 0.008 * self.per_inch

    def text_size(self, text: str, duration: float) -> float:
        """Points of the largest text that fits into a tile; a letter is about 0.62 of its size wide."""
        lines = text.split("\n")
        wide = duration / self.per_inch * 72 / (0.62 * max(map(len, lines)) + 0.8)
        high = self.row * 72 * self.thick / (1.35 * len(lines) + 0.3)
        return min(8.0, wide, high)

    def box(self, left: float, width: float) -> tuple[float, float, float, float]:
        """As fractions of the page, as high as the plot."""
        return (
            left / self.width,
            self.bottom / self.height,
            width / self.width,
            1 - (self.top + self.bottom) / self.height,
        )

    def band(self, rank: int) -> tuple[float, float]:
        """First and last row of a rank."""
        rows = [row for (r, _), row in self.rows.items() if r == rank]
        return min(rows) - 0.5, max(rows) + 0.5

    def time(self, time: float) -> float:
        """As drawn: the picture starts at 0, whatever the clock of the source."""
        return time - self.origin

    @cached_property
    def origin(self) -> float:
        return self.timeline.start

    @cached_property
    def colours(self) -> dict[str, str]:
        roles = self.timeline.roles
        return dict(zip(roles, _cycle(PALETTE, len(roles)), strict=True))


def _pale(colour: str, share: float = 0.82) -> str:
    """The colour mixed with a share of white."""
    parts = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)


def _luminance(colour: str) -> float:
    """How light a colour looks, from 0 to 1."""
    red, green, blue = (math.pow(int(colour[k : k + 2], 16) / 255, 2.2) for k in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _frame(axes: Axes, page: _Page) -> None:
    timeline = page.timeline
    axes.set_xlim(0, page.whole)
    axes.set_ylim(page.extent, 0)
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

    every = max(1, round(0.13 / page.row))  # a label a row, unless rows are lower than text
    ticks = [(row, worker) for (_, worker), row in page.rows.items() if worker % every == 0]
    peers = {worker: timeline.peer_of(worker) for _, worker in ticks}
    names = [str(worker) if peers[worker] is None else f"engine {peers[worker]}" for _, worker in ticks]
    axes.set_yticks([row for row, _ in ticks], names, fontsize=7, color=FAINT)
    axes.tick_params(axis="y", length=0, pad=3)
    for rank in timeline.ranks:
        first, last = page.band(rank)
        axes.axhspan(first, last, color=IDLE, zorder=0, linewidth=0)
        rank_style = {"ha": "right", "va": "center", "fontsize": 11, "weight": "bold", "color": INK}
        _note(axes, f"rank {rank}", (0, (first + last) / 2), (-34, 0), **rank_style)
    _note(axes, "worker", (0, 0), (-3, 4), ha="right", fontsize=7, color=FAINT)


def _bars(axes: Axes, page: _Page) -> None:
    from matplotlib.collections import PolyCollection

    def corners(span: Span) -> list[tuple[float, float]]:
        left, right = page.time(span.start), page.time(span.stop)
        if span.kind == "tile":
            right = max(right, left + page.least)
        middle = page.rows[span.rank, span.worker]
        up, down = middle - page.thick / 2, middle + page.thick / 2
        return [(left, up), (right, up), (right, down), (left, down)]

    for role, colour in page.colours.items():
        spans = [s for s in page.timeline.spans if s.role == role]
        tiles = [corners(s) for s in spans if s.kind == "tile"]
        waits = [corners(s) for s in spans if s.kind == "wait"]
        axes.add_collection(
            PolyCollection(tiles, facecolor=colour, edgecolor="white", linewidth=page.edge, zorder=2)
        )
        axes.add_collection(PolyCollection(waits, zorder=3, **_waiting(colour)))
        # The outline again, so that neighbours that wait stay apart.
        axes.add_collection(
            PolyCollection(tiles, facecolor="none", edgecolor="white", linewidth=page.edge, zorder=4)
        )


def _labels(axes: Axes, page: _Page) -> None:
    """What tiles are, right of their waits; for the roles most of whose tiles have room for it."""
    timeline = page.timeline
    free = {i: s.start for i, s in enumerate(timeline.spans) if s.kind == "tile"}
    for wait, of in timeline.tile_of.items():
        free[of] = max(free[of], timeline.spans[wait].stop)
    for role, colour in page.colours.items():
        tiles = [i for i in free if timeline.spans[i].role == role]
        rooms = {i: timeline.spans[i].stop - free[i] for i in tiles}
        most = sorted(rooms.values())[len(rooms) // 3]
        sizes = {}
        for between in " \n":  # in one line, or a line a range
            texts = [timeline.spans[i].label.replace(" ", between) for i in tiles]
            sizes[between] = min(page.text_size(text, most) for text in texts)
        between = max(sizes, key=lambda b: sizes[b])
        size = sizes[between]
        if size < SMALLEST_TEXT:
            continue
        for index in tiles:
            tile = timeline.spans[index]
            text = tile.label.replace(" ", between)
            if page.text_size(text, rooms[index]) >= size:
                axes.text(
                    page.time((free[index] + tile.stop) / 2),
                    page.rows[tile.rank, tile.worker],
                    text,
                    ha="center",
                    va="center",
                    fontsize=size,
                    linespacing=1.1,
                    color="white" if _luminance(colour) < 0.35 else INK,
                    zorder=5,
                )


def _candidates(timeline: Timeline) -> tuple[list[Span], str]:
    """The waits that arrows could show, the longest first, and between what they go: a rank or a worker.

    Of each tile, the last that really had to wait: what ended it came after it began.
    """
    last: dict[int, tuple[Span, Span]] = {}
    for index, tile in timeline.tile_of.items():
        wait = timeline.spans[index]
        notification = _notification(timeline, wait)
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


def _chosen(page: _Page, waits: list[Span]) -> list[tuple[float, float, float, float]]:
    """Arrows to draw, as (x, y) of start and stop: as many as can be told apart.

    They go to the longest waits of each stretch of time, as the longest of all may be all at the start.
    A tile may end the waits of many workers of a rank, and one arrow to each rank says so.
    """
    timeline = page.timeline
    chosen: list[tuple[float, float, float, float]] = []
    shown: set[tuple[int | None, int]] = set()
    apart = 0.1 * page.per_inch
    stretches: dict[int, list[Span]] = defaultdict(list)
    for wait in waits:
        stretches[int(page.time(wait.stop) / page.whole * MOST_ARROWS / 2)].append(wait)
    turns = chain.from_iterable(zip_longest(*(stretches[k] for k in sorted(stretches))))
    for wait in filter(None, turns):
        notification = _notification(timeline, wait)
        if notification is None:
            continue
        tile, sent = notification
        x, y = page.time(sent), page.rows[tile.rank, tile.worker]
        to_x, to_y = page.time(wait.stop), page.rows[wait.rank, wait.worker]
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


def _arrows(axes: Axes, page: _Page) -> str:
    """Draw arrows; what the legend says about them."""
    from matplotlib.patches import FancyArrowPatch

    waits, between = _candidates(page.timeline)
    chosen = _chosen(page, waits)
    style = "-|>,head_length=4,head_width=1.8"
    for x, y, to_x, to_y in chosen:
        for colour, width, order in (("white", 2.0, 7), (INK, 0.8, 8)):  # a halo keeps it off the hatching
            axes.add_patch(
                FancyArrowPatch(
                    (x, y),
                    (to_x, to_y),
                    arrowstyle=style,
                    shrinkA=0,
                    shrinkB=0,
                    color=colour,
                    linewidth=width,
                    zorder=order,
                )
            )
        axes.plot(
            x,
            y,
            marker="o",
            markersize=3.6,
            color=INK,
            markeredgecolor="white",
            markeredgewidth=0.6,
            zorder=9,
        )
    if not chosen:
        return ""
    some = f" ({len(chosen)} of {len(waits)})" if len(chosen) < len(waits) else ""
    return f"ends a wait of another {between}{some}"


def _shares(axes: Axes, page: _Page) -> None:
    """What the workers of each rank spent the makespan on: tiles and waits of each role, and neither."""
    timeline = page.timeline
    axes.set_xlim(0, 1)
    axes.axis("off")
    _note(axes, "share of worker time", (0, 0), (0, 4), fontsize=7, color=FAINT)
    for rank in timeline.ranks:
        first, last = page.band(rank)
        middle = (first + last) / 2
        high = (last - first) * page.row
        whole = page.whole * len(timeline.workers(rank))
        waits = {role: timeline.waiting(rank, role) for role in timeline.roles}
        tiles = {role: timeline.busy(rank, role) + waits[role] for role in timeline.roles}

        thick = min(0.2, 0.4 * high) / page.row
        axes.barh(middle, 1, thick, color=IDLE, linewidth=0)
        left = 0.0
        for role, colour in page.colours.items():
            parts = (
                (timeline.busy(rank, role) / whole, {"color": colour, "linewidth": 0}),
                (waits[role] / whole, _waiting(colour)),
            )
            for share, style in parts:
                axes.barh(middle, share, thick, left, **style)
                left += share
        above = (0, thick / 2 * page.row * 72 + 3)
        _note(
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
            _note(
                axes,
                fill("by role: " + ", ".join(each), 42),
                (0, middle),
                (0, -above[1]),
                fontsize=7,
                va="top",
                color=FAINT,
            )


def _note(axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **style: Any) -> None:
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


def _waiting(colour: str) -> dict[str, Any]:
    """How a wait looks."""
    return {"facecolor": _pale(colour), "edgecolor": colour, "hatch": "/////", "linewidth": 0}


def _head(figure: Figure, page: _Page, arrows: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    timeline = page.timeline
    total = timeline.makespan
    digits = f"{total:,.0f}" if total >= 1000 else f"{total:.4g}"
    subtitle = f"{timeline.source}  ·  {digits} {timeline.unit} in all"
    left = 0.3 / page.width
    figure.text(
        left, 1 - 0.32 / page.height, timeline.title, fontsize=15, weight="bold", color=INK, va="center"
    )
    figure.text(left, 1 - 0.6 / page.height, subtitle, fontsize=10, color="#555555", va="center")
    handles: list[Patch | Line2D] = [Patch(facecolor=c, label=role) for role, c in page.colours.items()]
    handles.append(Patch(**_waiting("#777777"), label="waiting"))
    handles.append(Patch(facecolor=IDLE, label="idle"))
    if arrows:
        handles.append(Line2D([], [], color=INK, linewidth=0.9, marker=">", markersize=4, label=arrows))
    figure.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(page.left / page.width, 1 - 0.92 / page.height),
        borderaxespad=0,
        borderpad=0,
        ncols=len(handles),
        columnspacing=1.6,
        frameon=False,
    )
