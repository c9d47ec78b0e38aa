"""The check: whether a program is safe to run with a schedule, in a world, at given sizes, before it runs.

docs/check.md says what the check shows, and under which assumptions.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from typing import Any

from tilelink.analysis.check.device import residency, too_large
from tilelink.analysis.check.findings import Finding, Report
from tilelink.analysis.check.memory import check_results, without_result, wrong_accesses
from tilelink.analysis.check.refusals import refusals
from tilelink.analysis.check.signals import deadlocks, miscounts, repeated, unheard
from tilelink.analysis.check.structure import why_not_structural
from tilelink.analysis.check.synchronisation import Synchronisation, execute
from tilelink.analysis.events import Events
from tilelink.analysis.lanes import Refusal, Tell, silent
from tilelink.analysis.unroll import BUDGET, DEFAULT_SMS, check_budget, estimated, unrolled
from tilelink.frontend.ir import TileProgram
from tilelink.frontend.sizes import Sizes
from tilelink.frontend.workload import allot

__all__ = [
    "BUDGET", "DEFAULT_SMS", "Finding", "Report", "check", "check_events", "check_results", "idle",
    "why_not_structural", "without_result",
]  # fmt: skip


def check(
    program: TileProgram,
    sizes: Sizes,
    *,
    sms: int = DEFAULT_SMS,
    reserve: int = 0,
    slot_bytes: int | None = None,
    stage: int = 0,
    budget: int = BUDGET,
    tell: Tell = silent,
) -> Report:
    """Checks one run of a program on devices of `sms` SMs; `reserve` of them are kept for other kernels. A slot of the
    symmetric heap has `slot_bytes` (None: enough), of which each worker needs `stage` for blocks on their way to
    another node. `tell` is called now and then with the progress. A run of more
    events than `budget` is checked by its structure alone; raises BudgetError if that does not suffice."""
    began = time.perf_counter()
    allotment = allot(program, sizes, sms)  # a wrong schedule raises here: it is no finding
    useless = without_result(program)
    because = why_not_structural(program, sizes)
    if because:
        check_budget(program, sizes, because, sms=sms, budget=budget)
    elif (events_of_run := estimated(program, sizes, sms=sms)) > budget:
        left_out = (
            f"the run was not unrolled: it has about {events_of_run:,} events, and the budget is {budget:,}. Races, "
            "deadlocks, coverage and signals rest on the structure alone, which holds for all sizes"
        )
        found = [*useless, *residency(program, allotment, sms, reserve)]
        found += too_large(program, allotment, sizes, slot_bytes, stage)
        return _report(program, because, found, [left_out], 0, began)
    events, refused = unrolled(program, sizes, sms=sms, tell=tell)
    given: dict[str, Any] = {"reserve": reserve, "slot_bytes": slot_bytes, "stage": stage, "began": began, "tell": tell}
    return check_events(events, refused, useless, **given)


def check_events(
    events: Events,
    refused: Sequence[Refusal] = (),
    known: Sequence[Finding] = (),
    *,
    reserve: int = 0,
    slot_bytes: int | None = None,
    stage: int = 0,
    began: float | None = None,
    tell: Tell = silent,
) -> Report:
    """Checks events that are unrolled already. `refused`: what unrolling refuses; the rest is then not checked.
    `known`: findings to add to the report. `began`: when the work on the events began, by time.perf_counter."""
    began = time.perf_counter() if began is None else began
    program = events.program
    if refused:
        found = [*known, *refusals(events, refused)]
        return _report(program, "unrolling refuses it", found, [], len(events), began)
    sync = Synchronisation(events)
    found = [*known, *residency(program, events.allotment, events.sms, reserve)]
    found += too_large(program, events.allotment, events.sizes, slot_bytes, stage)
    found += [*miscounts(sync), *repeated(events)]
    tell(f"one execution of {len(sync.at):,} waits and notifications")
    execution = execute(sync)
    found += deadlocks(sync, execution)
    notes = idle(events) + unheard(sync)
    if not execution.stuck:
        wrong, over = wrong_accesses(sync, execution.done, tell)
        found, notes = found + wrong, notes + over
    because = why_not_structural(program, events.sizes)
    if program.routes and because:
        notes.append(
            "calls refuse this program: only the device knows how many rows go where, and the structure does not show "
            f"that it is safe wherever they go: {because}"
        )
    return _report(program, because, found, notes, len(events), began)


def idle(events: Events) -> list[str]:
    """A note if no tile of a run does anything."""
    if len(events):
        return []
    empty = ", ".join(f"{dim} = {length}" for dim, length in events.sizes.dims if not length)
    return [f"nothing to do: {empty or 'no tile reads or writes'}"]


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
