"""Draws timelines of a run: when each tile ran, on which worker, and what it waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.cases import Case
from bench.operators import WORKERS
from bench.progress import say
from tilelink.analysis.draw import png, write_page, write_perfetto
from tilelink.analysis.timeline import EXECUTED, MEMORY_OPERATIONS, Span, Timeline, Transfer
from tilelink.emulator import Operation
from tilelink.runtime.trace import align, timeline


def draw(case: Case, operations: Sequence[Operation]) -> tuple[str, ...]:
    """Writes the timeline of a run as a trace for ui.perfetto.dev, as a page and as a PNG. Returns the files."""
    whole = timeline_of(case, operations)
    trace, page, picture = (case.out / f"{case.name}.{ending}" for ending in ("perfetto.json", "html", "png"))
    write_perfetto(whole, trace)
    write_page(whole, page)
    try:
        png(whole, picture)
    except ImportError as e:
        say(f"{case.name}: no picture, {e}")
        return str(trace), str(page)
    return str(trace), str(page), str(picture)


def timeline_of(case: Case, operations: Sequence[Operation]) -> Timeline:
    """Returns the timeline of all programs of a run. Raises TraceMismatchError if a kernel departs from its program."""
    spans: list[Span] = []
    agents = None
    transfers: list[Transfer] = []
    for number, step in enumerate(case.form):
        events = step.events(case.sizes, case.world, case.dtype)
        part = timeline(align(events, operations, f"{step.program.name} run {number}"), "")
        first = len(spans)
        spans += [s if s.cause is None else replace(s, cause=s.cause + first) for s in part.spans]
        agents = part.agents or agents
        transfers += part.transfers
    return Timeline(_title(case), MEMORY_OPERATIONS, EXECUTED, tuple(spans), agents, tuple(transfers))


def _title(case: Case) -> str:
    shape = case.shape_text.replace(",", ", ")
    layer = f"{case.layer}, {shape}" if case.layer else shape
    return f"{case.op}, {case.schedule} · {layer} · {case.world} ranks of {WORKERS} workers"
