"""Deadlocks: what the workers wait for that an execution of a run leaves behind."""

from __future__ import annotations

from collections import deque

import numpy as np

from tilelink.analysis.check.findings import SHOWN, TELL_ALL, Finding, finding, firsts, line_of, step
from tilelink.analysis.check.synchronisation import Execution, Synchronisation
from tilelink.analysis.events import Events


def deadlocks(sync: Synchronisation, execution: Execution) -> list[Finding]:
    """What the workers that are stuck wait for."""
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
"""A wait before which a worker stands for ever, and a notification it waits for."""


def _cycle(sync: Synchronisation, execution: Execution, owed: dict[int, list[int]]) -> list[Hop]:
    """The shortest cycle of workers that wait for each other, through one that surely is on a cycle."""

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
    return finding(events, "lost signal", [at], what, [step(events, at)], TELL_ALL)


def _deadlock(sync: Synchronisation, execution: Execution, cycle: list[Hop]) -> Finding:
    events = sync.events
    hops = [(int(sync.at[wait]), int(sync.at[k])) for wait, k in cycle]
    chain = []
    for wait, k in hops:
        chain += [step(events, wait), step(events, k, "which that needs, and stands behind:")]
    waits, notifies = ([hop[k] for hop in hops] for k in (0, 1))
    second = waits[1] if len(waits) > 1 else notifies[0]
    workers = "1 worker waits" if len(execution.stuck) == 1 else f"{len(execution.stuck)} workers wait"
    remedy = _remedy(events, waits, notifies)
    chain.append("back to step 1 (cycle)")
    return finding(events, "deadlock", [waits[0], second], f"{workers} for ever", chain, remedy)


def _remedy(events: Events, waiting: list[int], owed: list[int]) -> str:
    """What would end a cycle: each wait is for the notification of the same number, behind the next wait."""
    wait, notify, behind = waiting[0], owed[0], [*waiting[1:], waiting[0]]
    reused = events.program.tensors[events.tensor[wait]].kind == "token"
    if all(c[k] == c[w] for k, w in zip(owed, behind, strict=True) for c in (events.rank, events.role, events.tile)):
        later, first = line_of(events, notify), line_of(events, behind[0])
        if reused:
            return f"more buffers: a tile claims an entry ({first}) before it releases the one it holds ({later})"
        whose = "the tile waits for what it notifies itself later" if len(owed) == 1 else "tiles wait for each other"
        return f"{whose}, and no order of tiles ends that: notify ({later}) before the wait ({first})"
    waits, notifies = (events.program.roles[events.role[k]] for k in (wait, notify))
    if reused:
        return (
            "more buffers, or as many workers as there are tiles for the roles that release: a tile that has not begun "
            "releases nothing"
        )
    if waits is not notifies:
        first, then = (f"{r.name} ({r.site}: {r.site.text})" for r in (notifies, waits))
        return f"launch {first} before {then}, or give one of them SMs of its own"
    return (
        f"an order for {waits.name} in which each worker comes to the tiles that others wait for "
        "before the tiles that wait for those"
    )
