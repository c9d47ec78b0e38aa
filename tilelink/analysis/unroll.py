"""Unrolling: a tile program at given sizes becomes the events of every worker of every rank.

The events are exact: regions, homes, signals and the counts that waits expect, bytes and operations.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tilelink.analysis.counting import Counts, check_engine_signals, miscounted
from tilelink.analysis.events import Events
from tilelink.analysis.lanes import Refusal, Tell, Unrolling, silent
from tilelink.analysis.role_events import ORDER, RoleEvents, no_events
from tilelink.errors import BudgetError, RankError, WaitWithoutNotifyError
from tilelink.frontend.arithmetic import evaluate
from tilelink.frontend.cells import cell_count
from tilelink.frontend.ir import Role, Signals, TileProgram
from tilelink.frontend.sizes import Sizes
from tilelink.frontend.workload import allot, role_orders

DEFAULT_SMS = 132
BUDGET = 10_000_000
"""The default budget of a check: the most events that it may unroll."""
SAMPLE = 128
"""The number of tiles of a role that are unrolled for an estimate."""
MICROSECONDS, BYTES = 2.5, 240
"""Time and memory that a check takes for an event, measured on one server core (docs/check.md)."""


def unroll(
    program: TileProgram,
    sizes: Sizes,
    *,
    sms: int = DEFAULT_SMS,
    summarise: bool = True,
    roles: Collection[Role] | None = None,
    ranks: Sequence[int] | None = None,
    tell: Tell = silent,
) -> Events:
    """The events of a run. `summarise`: loops without synchronisation become one event. `roles`, `ranks`: only these
    are unrolled (None: all). `tell` is called now and then with the progress. Raises ViewError, GuardError, RankError,
    HomeError, WaitWithoutNotifyError or SignalCountError, with the values, if a tile would do what it must not;
    ScheduleError if a copy engine would."""
    events, refused = unrolled(program, sizes, sms=sms, summarise=summarise, roles=roles, ranks=ranks, tell=tell)
    if refused:
        raise refused[0].error
    return events


def unrolled(
    program: TileProgram,
    sizes: Sizes,
    *,
    sms: int = DEFAULT_SMS,
    summarise: bool = True,
    roles: Collection[Role] | None = None,
    ranks: Sequence[int] | None = None,
    tell: Tell = silent,
) -> tuple[Events, list[Refusal]]:
    """As `unroll`, but returns what is refused instead of raising it: one refusal of a kind for each line. The events
    leave out accesses outside their tensor, the world or the own output. `tell` is called now and then with the
    progress."""
    wanted = program.roles if roles is None else roles
    counts, allotment, at = Counts(sizes), allot(program, sizes, sms), role_orders(program, sizes)
    run = Unrolling(program, sizes, allotment, at, counts, summarise, ranks, tell=tell)
    batches = [RoleEvents(run, k).events() for k, role in enumerate(program.roles) if role in wanted]
    batches = batches or [no_events(program)]
    columns = {c: np.concatenate([b[c] for b in batches]) for c in batches[0]}
    order = np.lexsort([columns[c] for c in ORDER])
    columns = {c: v[order] for c, v in columns.items() if c in Events.COLUMNS}
    events = Events(program, sizes, sms, sites=tuple(run.sites), allotment=run.allotment, **columns)
    away = {r.tensor for r in run.refused.values() if isinstance(r.error, RankError)}
    lost = [k for k, r in run.refused.items() if r.tensor in away and isinstance(r.error, WaitWithoutNotifyError)]
    refused = [r for k, r in run.refused.items() if k not in lost]  # notified on ranks outside the world
    refused.sort(key=lambda r: r.claims)  # the last ones: who waits for the wrong entry releases another one, too
    if not refused:
        wrong = miscounted(events, counts, {role.name for role in wanted}) if ranks is None else None
        if wrong is not None:
            refused.append(Refusal(wrong))
        else:
            check_engine_signals(events)
    return events, refused


def estimated(program: TileProgram, sizes: Sizes, *, sms: int) -> int:
    """The number of events that `unroll` would make, estimated from some tiles of each role; exact if there are few."""

    def once(signals: Signals) -> tuple[np.ndarray, np.ndarray]:  # numbers of events do not depend on counts
        shape = sizes.world, int(evaluate(cell_count(signals), sizes.values))
        return np.broadcast_to(1, shape), np.broadcast_to(False, shape)

    run = Unrolling(program, sizes, allot(program, sizes, sms), role_orders(program, sizes), once, sample=SAMPLE)
    return sum(RoleEvents(run, k).estimate() for k in range(len(program.roles)))


def check_budget(program: TileProgram, sizes: Sizes, because: str, *, sms: int, budget: int) -> None:
    """Raises BudgetError if unrolling makes more events than `budget`. `because`: why the program is unrolled."""
    events = estimated(program, sizes, sms=sms)
    if events > budget:
        raise BudgetError(
            f"a check of {program.name} at these sizes unrolls about {events:,} events "
            f"({events * MICROSECONDS / 1e6:,.0f} s, {events * BYTES / 1e9:,.1f} GB), and the budget is {budget:,}; "
            f"the structure alone does not show that it is safe: {because}. Check it at smaller sizes, or allow more: "
            "check(budget=...), tilelink check --budget, TILELINK_CHECK_BUDGET for calls (TILELINK_CHECK=0: unchecked)",
            program.site,
        )
