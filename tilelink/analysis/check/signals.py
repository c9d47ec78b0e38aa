"""Signals: each wait is for all that its signal is given in a run; a tile tells of a region once; and what is given
that nobody waits for."""

from __future__ import annotations

import numpy as np

from tilelink.analysis.check.findings import COUNT_ALIKE, SHOWN, Finding, finding, firsts, step
from tilelink.analysis.check.synchronisation import Synchronisation
from tilelink.analysis.counting import filled
from tilelink.analysis.events import NOTIFY, Events
from tilelink.frontend.cells import CELL, cell_count
from tilelink.frontend.expressions import RANK, evaluate
from tilelink.frontend.ir import Notify, Role, places


def miscounts(sync: Synchronisation) -> list[Finding]:
    """Waits that end before all notifications of their signal have come. (Those that never end get stuck.)"""
    events = sync.events
    waits = np.flatnonzero(~sync.notifies)
    given, expected = sync.given[sync.signal[waits]], events.expected[sync.at[waits]]
    early = waits[(expected < given) | ((expected < 1) & _holds(events, sync.at[waits]))]
    found = []
    for j in firsts(events.site[sync.at[early]])[:SHOWN]:
        k, signal = int(sync.at[early[j]]), sync.signal[early[j]]
        chain = [*map(int, sync.at[sync.notifies & (sync.signal == signal)][-1:]), k]
        what = (
            f"a wait ends after {events.expected[k]} of {sync.given[signal]} notifications of cell {events.cell[k]} on "
            f"rank {events.rank[k]}: it does not say whose have come"
        )
        found.append(finding(events, "signal count", chain, what, (step(events, n) for n in chain), COUNT_ALIKE))
    return found


def _holds(events: Events, waits: np.ndarray) -> np.ndarray:
    """Whether there is anything in the cells that are waited for: a shorter part, or a route, may leave some empty."""
    holds = np.ones(len(waits), bool)
    for signals in events.program.signals:
        index = next(k for k, t in enumerate(events.program.tensors) if t.name == signals.tensor)
        cells = int(evaluate(cell_count(signals), events.sizes.values))
        mine = (events.tensor[waits] == index) & (events.expected[waits] < 1) & (events.cell[waits] < cells)
        at = waits[mine]
        holds[mine] = filled(signals, {**events.sizes.values, RANK.name: events.rank[at], CELL.name: events.cell[at]})
    return holds


def repeated(events: Events) -> list[Finding]:
    """Regions that a tile notifies more than once: a wait is for all notifications, so the first say nothing."""
    roles = [k for k, role in enumerate(events.program.roles) if _may_repeat(role)]
    told = np.flatnonzero((events.op == NOTIFY) & np.isin(events.role, roles))
    if not len(told):
        return []
    columns = (events.rank, events.role, events.tile, events.tensor, events.home, events.cell)
    said = np.column_stack([*(c[told] for c in columns), events.lo[told], events.hi[told]])
    order = np.lexsort(said.T)
    again = np.flatnonzero((said[order[1:]] == said[order[:-1]]).all(axis=1))
    one, other = told[order[again]], told[order[again + 1]]
    found = []
    for j in firsts(events.site[one], events.site[other])[:SHOWN]:
        both = [int(one[j]), int(other[j])]
        what = (
            f"a tile notifies {events.region(both[0])} more than once in a run: waits are for all of that, so only the "
            "last says anything"
        )
        remedy = "notify a region once, after the last store to it"
        found.append(finding(events, "notified twice", both, what, (step(events, k) for k in both), remedy))
    return found


def _may_repeat(role: Role) -> bool:
    """Whether a tile of a role notifies a tensor in more than one place, or in a loop."""
    told = [
        view.tensor
        for place in places(role.body)
        if isinstance(place.statement, Notify)
        for view in place.statement.views
        for _ in range(2 if place.loops else 1)
    ]
    return len(told) > len(set(told))


def unheard(sync: Synchronisation) -> list[str]:
    """Notes on signals that are given and that nobody waits for."""
    events = sync.events
    tokens = [k for k, t in enumerate(events.program.tensors) if t.kind == "token"]  # of the last entries nobody asks
    silent = np.flatnonzero(sync.notifies & ~sync.awaited[sync.signal] & ~np.isin(events.tensor[sync.at], tokens))
    notes = []
    for j in firsts(events.tensor[sync.at[silent]]):
        k = int(sync.at[silent[j]])
        tensor, site = events.program.tensors[events.tensor[k]].name, events.sites[events.site[k]]
        of_tensor = silent[events.tensor[sync.at[silent]] == events.tensor[k]]
        count, signals = len(of_tensor), len(np.unique(sync.signal[of_tensor]))
        notes.append(
            f"{count} notifications of {signals} signals of {tensor} are made and nobody waits for them; the run "
            f"drains them ({site}: {site.text}). Was one to be waited for? A view without .at(...) is that "
            "of the rank which executes the tile, and at= of a schedule says which that is"
        )
    return notes
