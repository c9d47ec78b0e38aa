"""The mistakes of `tests/backend/test_mutants.py` that can be seen before a kernel is lowered, made in the events of
the same programs: each is found, as what the execution calls it. The others are mistakes of scopes, of the run protocol
and of primitives, of which events say nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.analysis.check.damage import recounted, taken, with_column, without
from tilelink.analysis.check import check_events
from tilelink.analysis.events import NOTIFY, WAIT, WRITE, Events
from tilelink.kernels.all_gather_matmul import all_gather_matmul

Edit = Callable[[Events], Events]


def gathering(schedule: str) -> Events:
    """The program and sizes of those tests."""
    shape = {"gather": {"tile": (16, 32), "count": 2}, "matmul": {"tile": (16, 32, 32), "count": 2}}
    fitted = all_gather_matmul.schedule(schedule).changed(**shape)
    return all_gather_matmul.unroll(fitted, world=2, M=64, N=32, K=64)


def no_wait(events: Events) -> Events:
    return without(events, np.flatnonzero(events.op == WAIT))


def no_notify(events: Events) -> Events:
    return without(events, np.flatnonzero(events.op == NOTIFY))


def waits_for(more: int) -> Edit:
    def edit(events: Events) -> Events:
        waits = np.flatnonzero(events.op == WAIT)
        return with_column(events, "expected", waits, events.expected[waits] + more)

    return edit


def notifies_itself(events: Events) -> Events:
    own = np.flatnonzero(events.op == NOTIFY)
    return with_column(events, "home", own, events.rank[own])


def notifies_another_cell(events: Events) -> Events:
    own = np.flatnonzero(events.op == NOTIFY)
    return with_column(events, "cell", own, events.cell[own] // 2 * 2)


def notifies_before_it_stores(events: Events) -> Events:
    order = np.arange(len(events))
    stores = np.flatnonzero((events.op == WRITE) & np.append(events.op[1:] == NOTIFY, False))
    order[stores], order[stores + 1] = stores + 1, stores
    return taken(events, order)


def tiles_meet(events: Events) -> Events:
    """Two tiles of the output in one place."""
    writes = np.flatnonzero((events.op == WRITE) & (events.role == 1))
    return with_column(events, "lo", writes[1], events.lo[writes[0]])


MUTANTS: list[tuple[Edit, str, set[str]]] = [
    (no_wait, "push", {"race"}),
    (no_wait, "pull", {"race"}),
    (no_notify, "push", {"lost signal"}),
    (no_notify, "pull", {"lost signal"}),
    (waits_for(-1), "push", {"signal count"}),
    (waits_for(+1), "push", {"lost signal"}),
    (notifies_itself, "push", {"lost signal", "signal count"}),
    (notifies_another_cell, "push", {"lost signal", "signal count"}),
    (notifies_before_it_stores, "push", {"race"}),
    (notifies_before_it_stores, "pull", {"race"}),
    (tiles_meet, "push", {"race", "written twice", "unwritten output"}),
]


@pytest.mark.parametrize(("edit", "schedule", "kinds"), MUTANTS, ids=lambda v: getattr(v, "__name__", None))
def test_mutants_are_found(edit: Edit, schedule: str, kinds: set[str]) -> None:
    events = gathering(schedule)
    assert check_events(events).verdict == "safe"
    found = {f.kind for f in check_events(edit(events)).findings}
    assert found and found <= kinds, found


@pytest.mark.parametrize("edit", [no_notify, notifies_itself, notifies_another_cell])
def test_mutants_whose_waits_are_counted_anew(edit: Edit) -> None:
    """A derivation that follows the mistake hides it from the counts, and not from the check."""
    found = {f.kind for f in check_events(recounted(edit(gathering("push")))).findings}
    assert found and found <= {"race", "signal count"}, found
