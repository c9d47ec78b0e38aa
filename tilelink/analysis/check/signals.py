"""Findings about the waits and notifications of a run: waits that end early or never, deadlocks, and regions that are
notified twice. Signals that nobody waits for are notes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from tilelink.analysis.check.findings import (
    COUNT_ALIKE,
    SHOWN,
    TELL_ALL,
    TELL_ONCE,
    Finding,
    finding,
    firsts,
    line_of,
    release_all,
    step,
)
from tilelink.analysis.check.synchronisation import Executed, Synchronisation
from tilelink.analysis.counting import filled
from tilelink.analysis.events import NOTIFY, Events
from tilelink.frontend.arithmetic import evaluate
from tilelink.frontend.cells import CELL, cell_count
from tilelink.frontend.expressions import RANK, shown, symbol
from tilelink.frontend.ir import Notify, Role, places


def miscounts(sync: Synchronisation) -> Iterator[Finding]:
    """Findings for waits that end before all notifications of their signal have come. (Others get stuck.)"""
    events = sync.events
    waits = np.flatnonzero(~sync.notifies)
    given, expected = sync.given[sync.signal[waits]], events.expected[sync.at[waits]]
    early = waits[(expected < given) | ((expected < 1) & _holds(events, sync.at[waits]))]
    for j in firsts(events.site[sync.at[early]])[:SHOWN]:
        k, signal = int(sync.at[early[j]]), sync.signal[early[j]]
        chain = [*map(int, sync.at[sync.notifies & (sync.signal == signal)][-1:]), k]
        what = (
            f"a wait ends after {events.expected[k]} of {sync.given[signal]} notifications of cell {events.cell[k]} on "
            f"rank {events.rank[k]}, so any of the others may be missing"
        )
        yield finding(events, "signal count", chain, what, (step(events, n) for n in chain), COUNT_ALIKE)


def _holds(events: Events, waits: np.ndarray) -> np.ndarray:
    """Whether the cells that are waited for hold anything: a shorter part, or a route, may leave some empty."""
    holds = np.ones(len(waits), bool)
    for signals in events.program.signals:
        index = events.program.numbers[signals.tensor]
        cells = int(evaluate(cell_count(signals), events.sizes.values))
        mine = (events.tensor[waits] == index) & (events.expected[waits] < 1) & (events.cell[waits] < cells)
        at = waits[mine]
        holds[mine] = filled(signals, {**events.sizes.values, RANK.name: events.rank[at], CELL.name: events.cell[at]})
    return holds


def repeated(events: Events) -> Iterator[Finding]:
    """Findings for regions that a tile notifies more than once: a wait needs them all, so the first have no effect."""
    roles = [k for k, role in enumerate(events.program.roles) if _may_repeat(role)]
    told = np.flatnonzero((events.op == NOTIFY) & np.isin(events.role, roles))
    columns = (events.rank, events.role, events.tile, events.tensor, events.home, events.cell)
    said = np.column_stack([*(c[told] for c in columns), events.lo[told], events.hi[told]])
    order = np.lexsort(said.T)
    again = np.flatnonzero((said[order[1:]] == said[order[:-1]]).all(axis=1))
    one, other = told[order[again]], told[order[again + 1]]
    for j in firsts(events.site[one], events.site[other])[:SHOWN]:
        both = [int(one[j]), int(other[j])]
        release = events.releases(both[0])
        does, waits = ("releases", "claim") if release else ("notifies", "wait")
        what = (
            f"a tile {does} {events.box(both[0])} more than once in a run: a {waits} needs all of these, so only the "
            "last has an effect"
        )
        remedy = "release an entry once, after the last read of it" if release else TELL_ONCE
        yield finding(events, "notified twice", both, what, (step(events, k) for k in both), remedy)


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
    """Notes on signals that are notified, but that nobody waits for."""
    events = sync.events
    tokens = [k for k, t in enumerate(events.program.tensors) if t.kind == "token"]  # nobody waits for the last
    silent = np.flatnonzero(sync.notifies & ~sync.awaited[sync.signal] & ~np.isin(events.tensor[sync.at], tokens))
    notes = []
    for j in firsts(events.tensor[sync.at[silent]]):
        k = int(sync.at[silent[j]])
        tensor, site = events.program.tensors[events.tensor[k]].name, events.sites[events.site[k]]
        of_tensor = silent[events.tensor[sync.at[silent]] == events.tensor[k]]
        count, signals = len(of_tensor), len(np.unique(sync.signal[of_tensor]))
        notes.append(
            f"nobody waits for {count} notifications of {signals} signals of {tensor}; the run resets them "
            f"({site.quoted}). {_heard_elsewhere(sync, of_tensor)}If a wait is missing: a view without .at(...) is on "
            "the rank that executes the tile, and at= of the schedule selects that rank"
        )
    return notes


def _heard_elsewhere(sync: Synchronisation, silent: np.ndarray) -> str:
    """What to say of signals of a tensor that nobody waits for, if other ranks wait for all of these regions in their
    own memory. `silent`: the notifications."""
    events, told = sync.events, sync.at[silent]
    waits = sync.at[~sync.notifies & (events.tensor[sync.at] == events.tensor[told[0]])]
    if events.touched(told[0]).sharded is not None or not np.isin(events.cell[told], events.cell[waits]).all():
        return ""
    k = told[0]
    wait = int(waits[events.cell[waits] == events.cell[k]][0])
    other, site = events.home[wait], events.sites[events.site[wait]]
    name, home = events.touched(k).name, events.home[k]
    alike = np.logical_and.reduce([c[waits] == c[wait] for c in (events.rank, events.cell, events.site)])
    times = int(alike.sum())
    role = events.program.roles[events.role[wait]]
    if times > 1 and (axis := _unnamed_axis(role, name)):
        return (
            f"{role.name} has a tile for each {axis}, and all of these wait for memory of their own rank: rank {other} "
            f"waits {times} times for its own {events.box(k)}, and nobody waits for that of rank {home} (the wait: "
            f"{site.quoted}). If a tile needs the memory of its {axis}, write .at(t.{axis}). "
        )
    return (
        f"Other ranks wait for the same regions of their {name}: for {events.box(k)}, rank {other} waits and rank "
        f"{home} does not, which is right if rank {home} does not need it (the wait: {site.quoted}). "
    )


def _unnamed_axis(role: Role, tensor: str) -> str:
    """A rank axis of a role's space that its waits for a tensor do not depend on, or ""."""
    named = set[object]().union(*(v.symbols for v in role.awaited if v.tensor == tensor))
    homes = set[object]().union(*(home.free_symbols for _, home in role.walk.homes))
    return next((shown(n) for n, _ in role.walk.axes if symbol(n) not in named | homes), "")


# ---- deadlocks


def deadlocks(sync: Synchronisation, execution: Executed) -> list[Finding]:
    """Findings for stuck workers: the waits that never end or, without any, one cycle of waits."""
    if not execution.stuck:
        return []
    events, waits = sync.events, np.array(list(execution.stuck.values()))
    lost = waits[events.expected[sync.at[waits]] > sync.given[sync.signal[waits]]]
    if len(lost):  # the others wait for these in the end, or for each other as well
        return [_lost(sync, int(k)) for k in lost[firsts(events.site[sync.at[lost]])][:SHOWN]]
    reached = np.zeros(len(sync.at), bool)
    reached[execution.done] = True
    owed: dict[int, list[int]] = {}
    for k in np.flatnonzero(sync.notifies & ~reached).tolist():
        owed.setdefault(int(sync.signal[k]), []).append(k)
    return [_deadlock(sync, execution, _cycle(sync, execution, owed))]


Hop = tuple[int, int]
"""A wait that never ends in a cycle, and a notification that it waits for."""


def _cycle(sync: Synchronisation, execution: Executed, owed: dict[int, list[int]]) -> list[Hop]:
    """The shortest cycle of workers that wait for each other, through a worker that is surely on a cycle."""

    def needs(worker: int) -> list[int]:
        return owed[int(sync.signal[execution.stuck[worker]])]

    worker, walked = next(iter(execution.stuck)), set()
    while worker not in walked:
        walked.add(worker)
        worker = int(sync.worker[needs(worker)[0]])
    came: dict[int, Hop | None] = {worker: None}
    queue = deque([worker])
    while True:
        at = queue.popleft()
        for k in needs(at):
            other = int(sync.worker[k])
            if other == worker:
                hops = [(execution.stuck[at], k)]
                while (hop := came[int(sync.worker[hops[0][0]])]) is not None:
                    hops.insert(0, hop)
                return hops
            if other not in came:
                came[other] = (execution.stuck[at], k)
                queue.append(other)


def _lost(sync: Synchronisation, wait: int) -> Finding:
    events, at = sync.events, int(sync.at[wait])
    what = (
        f"a wait never ends: it expects {events.expected[at]} notifications of cell {events.cell[at]} on rank "
        f"{events.rank[at]}, and the run makes {sync.given[sync.signal[wait]]}"
    )
    tensor = events.touched(at)
    remedy = release_all(tensor.name, tensor.buffers or 0) if events.releases(at) else TELL_ALL
    return finding(events, "lost signal", [at], what, [step(events, at)], remedy)


def _deadlock(sync: Synchronisation, execution: Executed, cycle: list[Hop]) -> Finding:
    events = sync.events
    hops = [(int(sync.at[wait]), int(sync.at[k])) for wait, k in cycle]
    chain: list[str] = []
    for wait, k in hops:
        needs = f"step {len(chain) + 1} needs it, and it comes after:"
        chain += [step(events, wait), step(events, k, needs)]
    waits, notifies = ([hop[k] for hop in hops] for k in (0, 1))
    second = waits[1] if len(waits) > 1 else notifies[0]
    workers = "1 worker waits" if len(execution.stuck) == 1 else f"{len(execution.stuck)} workers wait"
    remedy = _remedy(events, waits, notifies)
    chain.append("back to step 1 (cycle)")
    return finding(events, "deadlock", [waits[0], second], f"{workers} for ever", chain, remedy)


def _remedy(events: Events, waiting: list[int], owed: list[int]) -> str:
    """The change that would end a cycle. Each wait is for the notification of the same number, behind the next wait."""
    wait, notify, behind = waiting[0], owed[0], [*waiting[1:], waiting[0]]
    reused = events.program.tensors[events.tensor[wait]].kind == "token"
    if all(c[k] == c[w] for k, w in zip(owed, behind, strict=True) for c in (events.rank, events.role, events.tile)):
        later, first = line_of(events, notify), line_of(events, behind[0])
        if reused:
            return f"use more buffers: a tile claims an entry ({first}) before it releases the one it holds ({later})"
        whose = "the tile waits for its own later notification" if len(owed) == 1 else "tiles wait for each other"
        return f"{whose}, and no order of tiles helps: notify ({later}) before the wait ({first})"
    waits, notifies = (events.program.roles[events.role[k]] for k in (wait, notify))
    if reused:
        return (
            "use more buffers, or as many workers as tiles for the roles that release: a tile that has not started "
            "releases nothing"
        )
    if waits is not notifies:
        first, then = (f"{r.name} ({r.site.quoted})" for r in (notifies, waits))
        return f"launch {first} before {then}, or give one of them separate SMs"
    return (
        f"choose an order for {waits.name} in which each worker runs the tiles that others wait for "
        "before the tiles that wait for those"
    )
