"""One self-contained HTML page of a timeline: the same from a simulation, an execution on the CPU and a run on GPUs.

Rows are workers, grouped by rank. Tiles are coloured by role, waits are hatched, and the critical path is outlined. The
bytes under way stand above the rows, and the causes of idle time beside them. The page needs no network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

from tilelink.analysis.draw.trace_events import rounded
from tilelink.analysis.paths import Link, critical_path, idle
from tilelink.analysis.timeline import MEASURED, MICROSECONDS, PREDICTED, Timeline

PLACE = "/*DATA*/null"
BINS = 600


@dataclass(frozen=True)
class About:
    """Facts about a run beyond its timeline, in the timeline's unit. A fact that is None is derived from the timeline.

    `whole`: time of the whole run, with launch and leaving. `idle`: by cause, the mean over workers. `path`: the
    critical path. `verdict`: what decides the time. `facts`: more lines for the head, such as {"unfused": "1.81 ms"}.
    `until`: where the time axis ends at first, so that pages can be compared; by default where the run ends.
    """

    whole: float | None = None
    idle: Mapping[str, float] | None = None
    path: Sequence[Link] | None = None
    verdict: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    until: float | None = None


def page(timeline: Timeline, about: About | None = None) -> str:
    """The page as text."""
    template = (resources.files("tilelink.analysis.draw") / "page.html").read_text()
    data = json.dumps(_data(timeline, about or About()), separators=(",", ":"), allow_nan=False)
    return template.replace(PLACE, data.replace("</", "<\\/"))


def write_page(timeline: Timeline, path: str | PathLike[str], about: About | None = None) -> None:
    """Writes `page(...)` to a file."""
    Path(path).write_text(page(timeline, about))


def _data(timeline: Timeline, about: About) -> dict[str, Any]:
    """The data of the page. Spans are [row, role, start, duration, label, cause, kind], labels numbers of a list."""
    roles = list(timeline.roles)
    rows = [(rank, worker) for rank in timeline.ranks for worker in timeline.workers(rank)]
    row_of = {key: k for k, key in enumerate(rows)}
    peers = {(rank, worker): timeline.peer_of(worker) for rank, worker in rows}  # of streams of the copy engine
    labels: dict[str, int] = {}
    origin = timeline.start if timeline.unit != MICROSECONDS else min(0.0, timeline.start)
    spans = [
        [
            row_of[s.rank, s.worker], roles.index(s.role), rounded(s.start - origin), rounded(s.duration),
            labels.setdefault(s.label, len(labels)), -1 if s.cause is None else s.cause, int(s.kind == "wait"),
        ]
        for s in timeline.spans
    ]  # fmt: skip
    path = [
        {**asdict(link), "start": rounded(link.start - origin), "stop": rounded(link.stop - origin)}
        for link in (critical_path(timeline) if about.path is None else about.path)
    ]
    return {
        "title": timeline.title,
        "source": timeline.source,
        "unit": timeline.unit,
        "performance": timeline.source in (PREDICTED, MEASURED),
        "whole": rounded(timeline.stop - origin if about.whole is None else about.whole),
        "until": about.until,
        "verdict": about.verdict,
        "roles": roles,
        "colours": list(timeline.colours().values()),
        "rows": [[rank, worker, str(worker) if peer is None else f"e{peer}"] for (rank, worker), peer in peers.items()],
        "spans": spans,
        "labels": list(labels),
        "path": path,
        "idle": dict(idle(timeline) if about.idle is None else about.idle),
        "busy": {r: rounded(sum(timeline.busy(rank, r) for rank in timeline.ranks) / max(1, len(rows))) for r in roles},
        "bytes": _under_way(timeline, origin),
        "facts": dict(about.facts),
    }


def _under_way(timeline: Timeline, origin: float) -> dict[str, list[float]]:
    """Bytes under way from each rank, the mean over each of BINS stretches of time."""
    width = (timeline.stop - origin) / BINS or 1.0
    found = {str(rank): [0.0] * BINS for rank in timeline.ranks if timeline.transfers}
    for t in timeline.transfers:
        bins = found.setdefault(str(t.source), [0.0] * BINS)
        start, stop = t.start - origin, max(t.stop - origin, t.start - origin + 1e-9)
        for k in range(max(0, int(start / width)), min(BINS - 1, int(stop / width)) + 1):
            inside = min(stop, (k + 1) * width) - max(start, k * width)
            bins[k] += t.nbytes * max(0.0, inside) / width
    return {rank: [round(b) for b in bins] for rank, bins in found.items()}
