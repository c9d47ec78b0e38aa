"""A timeline as trace events, the format that ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from tilelink.analysis.timeline import MEMORY_OPERATIONS, Span, Timeline

Event = dict[str, Any]

# The format knows colours by reserved names only; chrome://tracing obeys them, Perfetto colours by name.
TRACE_COLOURS = ("thread_state_running", "rail_response", "rail_animation", "rail_load", "thread_state_iowait")
TRACE_COLOUR_OF_WAITS = "grey"
NANOSECOND = 0.001  # the resolution of trace viewers, in the microseconds of the format


def perfetto(timeline: Timeline) -> dict[str, Any]:
    """The timeline as trace events of Chrome's format, which ui.perfetto.dev opens.

    Ranks are processes, workers are threads, and tiles and waits are complete events. A flow goes from the tile that
    notified to the wait that it ended. A microsecond of the format is one unit of the timeline; `otherData` and the
    names of the processes say which unit that is.
    """
    processes, threads = _identifiers(timeline)
    colours = timeline.colours(TRACE_COLOURS)
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
        start = rounded(span.start)
        events.append({
            "name": f"wait: {span.label}" if wait else f"{span.role} {span.label}",
            "cat": f"{span.role},wait" if wait else span.role,
            "ph": "X",
            "ts": start,
            "dur": rounded(rounded(span.stop) - start),
            **place(span),
            "cname": TRACE_COLOUR_OF_WAITS if wait else colours[span.role],
            "args": args,
        })  # fmt: skip
    events += _flows(timeline, place)

    # In order of time; at the same time what encloses comes first, and a flow starts before it finishes.
    events.sort(key=lambda e: (e["ts"], "Xsf".index(e["ph"]), -e.get("dur", 0)))
    return {
        "displayTimeUnit": "ns",
        "otherData": {"title": timeline.title, "source": timeline.source, "unit": timeline.unit, "about": about},
        "traceEvents": metadata + events,
    }


def write_perfetto(timeline: Timeline, path: str | PathLike[str]) -> None:
    """Writes `perfetto(timeline)` to a file that ui.perfetto.dev opens."""
    Path(path).write_text(json.dumps(perfetto(timeline), separators=(",", ":"), allow_nan=False))


def _identifiers(timeline: Timeline) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
    """The process of each rank, and the thread of each worker.

    Threads are unique over all processes. None has the number of its process (that would be its main thread), and none
    is 0 (the idle thread): Perfetto treats those differently.
    """
    workers = {rank: timeline.workers(rank) for rank in timeline.ranks}
    stride = max(1000, max((w + 2 for ws in workers.values() for w in ws), default=0))
    processes = {rank: (rank + 1) * stride for rank in workers}
    threads = {(rank, w): processes[rank] + w + 1 for rank, ws in workers.items() for w in ws}
    return processes, threads


def _metadata(what: str, pid: int, tid: int | None = None, **args: Any) -> Event:
    return {"name": what, "ph": "M", "ts": 0, "pid": pid, **({} if tid is None else {"tid": tid}), "args": args}


def _flows(timeline: Timeline, place: Callable[[Span], Event]) -> list[Event]:
    """The flows from tiles that notified to the waits that they ended, and the marks that the flows are tied to.

    Viewers tie the ends of a flow to spans. Perfetto draws it from the stop of one to the start of the other, and turns
    it around if the first started later. A wait starts before it is notified, so its arrow would point backwards in
    time; marks at the two moments keep it right.
    """
    marks: dict[tuple[int | None, float], Event] = {}  # of tiles, which may notify many at once
    flows: list[Event] = []
    for index, wait in enumerate(timeline.spans):
        notification = timeline.notification(wait)
        if notification is None:
            continue
        tile, notified = notification
        # Spans are open on the right: a mark has to be a little before the stop to lie inside.
        sent = max(rounded(tile.start), rounded(notified - NANOSECOND))
        woken = max(rounded(wait.start), rounded(wait.stop - NANOSECOND), sent)
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


def rounded(time: float) -> float:
    """A time as pictures have it."""
    return round(time, 3)
