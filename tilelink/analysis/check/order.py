"""One greedy execution decides whether a run can get stuck.

Signals only grow and every wait is for all that its signal is given in a run. So whatever order the workers are run in,
the same steps are reached in the end: if one execution comes to an end, each does (all workers being resident).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from tilelink.analysis.check.findings import SHOWN, TELL_ALL, Finding, about, firsts, line_of, step
from tilelink.analysis.check.synchronisation import Synchronisation
from tilelink.analysis.events import Events


@dataclass(frozen=True, eq=False)
class Execution:
    """The steps that were done, in order, and for each worker that is stuck the wait before which it stands."""

    done: np.ndarray
    stuck: dict[int, int]


def execute(sync: Synchronisation) -> Execution:
    """Runs each worker until it has to wait, and again once it need not."""
    signal, notifies = sync.signal.tolist(), sync.notifies.tolist()
    first, missing = sync.first.tolist(), sync.given.tolist()
    impossible = sync.events.expected[sync.at] > sync.given[sync.signal]
    for k in np.flatnonzero(impossible & ~sync.notifies).tolist():
        signal[k] = len(missing)
    missing.append(1)  # a signal that nobody gives
    position = first[:-1]
    blocked: dict[int, list[int]] = {}
    ready = [w for w in range(sync.workers) if first[w] < first[w + 1]][::-1]
    done: list[int] = []
    while ready:
        worker = ready.pop()
        k, end = position[worker], first[worker + 1]
        while k < end:
            s = signal[k]
            if notifies[k]:
                missing[s] -= 1
                if not missing[s] and s in blocked:
                    ready += blocked.pop(s)
            elif missing[s]:
                blocked.setdefault(s, []).append(worker)
                break
            done.append(k)
            k += 1
        position[worker] = k
    waiting = sorted(w for workers in blocked.values() for w in workers)
    return Execution(np.array(done, np.int64), {w: position[w] for w in waiting})


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
    given = int(sync.given[sync.signal[wait]])
    return Finding(
        kind="lost signal",
        what=f"a wait never ends: it expects {events.expected[at]} notifications of cell {events.cell[at]} on rank "
        f"{events.rank[at]}, and the run makes {given}",
        chain=(step(events, at),),
        remedy=TELL_ALL,
        **about(events, [at]),
    )


def _deadlock(sync: Synchronisation, execution: Execution, cycle: list[Hop]) -> Finding:
    events = sync.events
    chain = []
    for wait, k in cycle:
        chain += [
            step(events, int(sync.at[wait])),
            step(events, int(sync.at[k]), "which that needs, and stands behind:"),
        ]
    waits, notifies = ([int(sync.at[hop[k]]) for hop in cycle] for k in (0, 1))
    second = waits[1] if len(waits) > 1 else notifies[0]
    workers = "1 worker waits" if len(execution.stuck) == 1 else f"{len(execution.stuck)} workers wait"
    return Finding(
        kind="deadlock",
        what=f"{workers} for ever",
        chain=(*chain, "back to step 1 (cycle)"),
        remedy=_remedy(events, waits, notifies),
        **about(events, [waits[0], second]),
    )


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
