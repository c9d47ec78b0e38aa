"""The check: whether a program is safe to run with a schedule, in a world, at given sizes, before it runs.

What it shows, and under which assumptions, stands in docs/check.md.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping

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
from tilelink.analysis.unroll import BUDGET, DEFAULT_SMS, Refusal, check_budget, estimated, unroll
from tilelink.frontend.ir import TileProgram
from tilelink.frontend.sizes import Allotment, Sizes, allot

__all__ = ["BUDGET", "DEFAULT_SMS", "Finding", "Report", "check", "check_events", "idle", "why_not_structural"]


def check(
    program: TileProgram,
    sizes: Sizes,
    *,
    sms: int = DEFAULT_SMS,
    reserve: int = 0,
    slot_bytes: int | None = None,
    budget: int = BUDGET,
    tell: Tell = lambda _: None,
) -> Report:
    """Checks one run of a program on devices of `sms` SMs, `reserve` of which are kept for other kernels, with slots of
    the symmetric heap of `slot_bytes` each (None: large enough). `tell` is told now and then how far it is. Of a run of
    more events than `budget`, only what the structure shows is checked; raises BudgetError where that does not do."""
    began = time.perf_counter()
    allotment = allot(program, sizes, sms)  # what is wrong with the schedule itself is no finding
    because = why_not_structural(program)
    if because:
        check_budget(program, sizes, because, sms=sms, budget=budget)
    elif (events_of_run := estimated(program, sizes, sms=sms)) > budget:
        left_out = (
            f"the run was not unrolled: it has about {events_of_run:,} events, and the budget is {budget:,}. Races, "
            "deadlocks, coverage and signals rest on the structure alone, which holds for all sizes"
        )
        found = _of_device(program, sizes, allotment, sms, reserve, slot_bytes)
        return _report(program, because, found, [left_out], 0, began)
    refused: list[Refusal] = []
    events = unroll(program, sizes, sms=sms, refused=refused, tell=tell)
    if refused:
        return _report(program, "unrolling refuses it", refusals(events, refused), [], len(events), began)
    return check_events(events, reserve=reserve, slot_bytes=slot_bytes, began=began, tell=tell)


Tell = Callable[[str], None]
"""Is told what a check is at."""


def _of_device(
    program: TileProgram, sizes: Sizes, allotment: Mapping[str, Allotment], sms: int, reserve: int,
    slot_bytes: int | None,
) -> list[Finding]:  # fmt: skip
    """What does not fit on a device: workers, or the heap of a run."""
    found = residency(program, allotment, sms, reserve)
    return found + (too_large(program, sizes, slot_bytes) if slot_bytes is not None else [])


def check_events(
    events: Events,
    *,
    reserve: int = 0,
    slot_bytes: int | None = None,
    began: float | None = None,
    tell: Tell = lambda _: None,
) -> Report:
    """Checks events that are unrolled already. `began`: when the work on them began, of time.perf_counter."""
    began = time.perf_counter() if began is None else began
    because = why_not_structural(events.program)
    sync = Synchronisation(events)
    found = _of_device(events.program, events.sizes, events.allotment, events.sms, reserve, slot_bytes)
    found += miscounts(sync) + repeated(events)
    tell(f"one execution of {len(sync.at):,} waits and notifications")
    execution = execute(sync)
    found += deadlocks(sync, execution)
    if not execution.stuck:
        found += _memory(sync, execution.done, tell)
    return _report(events.program, because, found, idle(events) + unheard(sync), len(events), began)


def idle(events: Events) -> list[str]:
    """A note where no tile of a run does anything."""
    if len(events):
        return []
    empty = ", ".join(f"{dim} = {length}" for dim, length in events.sizes.dims if not length)
    return [f"nothing to do: {empty or 'no tile reads or writes'}"]


def _memory(sync: Synchronisation, done: np.ndarray, tell: Tell) -> list[Finding]:
    """Races, unwritten and stale reads and what is wrong with outputs, in a run that comes to its end."""
    events, before = sync.events, Before(sync, done)
    turns = np.zeros(len(sync.at) + 1, np.int64)  # the last entry: before all steps
    turns[done] = np.arange(1, len(done) + 1)
    found: list[Finding] = []
    for cells in written_tensors(events):
        tell(f"accesses to {events.program.tensors[cells.tensor].name} on rank {cells.home}")
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
