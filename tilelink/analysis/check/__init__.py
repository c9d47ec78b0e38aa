"""The check: whether a program is safe to run with a schedule, in a world, at given sizes, before it runs.

What it shows, and under which assumptions, stands in docs/check.md.
"""

from __future__ import annotations

import resource
import time

import numpy as np

from tilelink.analysis.check.before import Before
from tilelink.analysis.check.cells import Cells, written_tensors
from tilelink.analysis.check.coverage import coverage
from tilelink.analysis.check.findings import Finding, Report
from tilelink.analysis.check.heap import too_large
from tilelink.analysis.check.order import deadlocks, execute
from tilelink.analysis.check.races import Pairs, conflicts, races, stale, unwritten
from tilelink.analysis.check.refusals import refusals
from tilelink.analysis.check.residency import residency
from tilelink.analysis.check.signals import miscounts, repeated, unheard
from tilelink.analysis.check.structure import why_not_structural
from tilelink.analysis.check.synchronisation import Synchronisation
from tilelink.analysis.events import Events
from tilelink.analysis.unroll import DEFAULT_SMS, Refusal, unroll
from tilelink.frontend.ir import TileProgram
from tilelink.frontend.sizes import Sizes, allot

__all__ = ["DEFAULT_SMS", "Finding", "Report", "check", "check_events", "idle", "why_not_structural"]


def check(
    program: TileProgram,
    sizes: Sizes,
    *,
    sms: int = DEFAULT_SMS,
    reserve: int = 0,
    slot_bytes: int | None = None,
) -> Report:
    """Checks one run of a program on devices of `sms` SMs, `reserve` of which are kept for other kernels, with slots of
    the symmetric heap of `slot_bytes` each (None: large enough)."""
    began = time.perf_counter()
    allot(program, sizes, sms)  # what is wrong with the schedule itself is no finding
    refused: list[Refusal] = []
    events = unroll(program, sizes, sms=sms, refused=refused)
    if refused:
        return _report(program, "unrolling refuses it", refusals(events, refused), [], len(events), began)
    return check_events(events, reserve=reserve, slot_bytes=slot_bytes, began=began)


def check_events(
    events: Events, *, reserve: int = 0, slot_bytes: int | None = None, began: float | None = None
) -> Report:
    """Checks events that are unrolled already. `began`: when the work on them began, of time.perf_counter."""
    began = time.perf_counter() if began is None else began
    because = why_not_structural(events.program)
    sync = Synchronisation(events)
    found = residency(events, reserve) + miscounts(sync) + repeated(events)
    if slot_bytes is not None:
        found += too_large(events.program, events.sizes, slot_bytes)
    execution = execute(sync)
    found += deadlocks(sync, execution)
    if not execution.stuck:
        found += _memory(sync, execution.done)
    return _report(events.program, because, found, idle(events) + unheard(sync), len(events), began)


def idle(events: Events) -> list[str]:
    """A note where no tile of a run does anything."""
    if len(events):
        return []
    empty = ", ".join(f"{dim} = {length}" for dim, length in events.sizes.dims if not length)
    return [f"nothing to do: {empty or 'no tile reads or writes'}"]


def _memory(sync: Synchronisation, done: np.ndarray) -> list[Finding]:
    """Races, unwritten and stale reads and what is wrong with outputs, in a run that comes to its end."""
    events, before = sync.events, Before(sync, done)
    turns = np.zeros(len(sync.at) + 1, np.int64)  # the last entry: before all steps
    turns[done] = np.arange(1, len(done) + 1)
    found: list[Finding] = []
    for cells in written_tensors(events):
        pairs, blank = conflicts(cells, turns[sync.after(cells.access)])
        ordered = before(pairs.one, pairs.other)
        found += races(cells, pairs, ordered, before)
        found += stale(cells, pairs[ordered])
        found += unwritten(cells, *_unwritten_reads(cells, pairs, ordered, blank))
        found += coverage(cells)
    return _once(found)


def _unwritten_reads(
    cells: Cells, pairs: Pairs, ordered: np.ndarray, blank: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Reads, with their cells, where nobody writes at all, or only afterwards."""
    early = pairs[ordered & pairs.blank]
    access = np.concatenate([cells.access[blank], early.one])
    return access, np.concatenate([cells.cell[blank], early.cell])


def _once(found: list[Finding]) -> list[Finding]:
    """The first of the findings that say the same of the same lines, on several ranks."""
    first: dict[tuple[str, str, frozenset[str]], Finding] = {}
    for f in found:
        first.setdefault((f.kind, f.tensor, frozenset(f.lines)), f)
    return list(first.values())


def _report(
    program: TileProgram, because: str, found: list[Finding], notes: list[str], events: int, began: float
) -> Report:
    return Report(
        program=program.name,
        proof="unrolled" if because or found else "structural",
        because=because,
        findings=tuple(found),
        notes=tuple(notes),
        events=events,
        seconds=time.perf_counter() - began,
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
