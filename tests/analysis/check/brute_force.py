"""What the check finds out by theory, found out by trying: every interleaving of a small run, one event at a time; and
for larger ones, whether any two accesses that conflict are ordered, by reachability between all events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from tilelink.analysis.events import NOTIFY, READ, WAIT, WRITE, Events
from tilelink.frontend.expressions import parts_of

Signal = tuple[int, int, int]


@dataclass(frozen=True)
class Action:
    """An event: what it does to memory (bits are elements, of an entry where those take turns) or to a signal. `event`:
    its index."""

    event: int
    op: int
    place: tuple[int, int]
    bits: int
    entry: int
    signal: Signal
    expected: int


class BruteForce:
    """The events of a run, as lists of actions of workers."""

    def __init__(self, events: Events) -> None:
        self.events = events
        written = {k for k, t in enumerate(events.program.tensors) if t.kind != "input"}
        self.workers: list[list[Action]] = []
        for rank, worker in events.workers:
            mine = [k for k in events.of_worker(rank, worker).tolist() if events.op[k] in (READ, WRITE, NOTIFY, WAIT)]
            self.workers.append([self.action(k) for k in mine if int(events.tensor[k]) in written])
        self.given = Counter(a.signal for w in self.workers for a in w if a.op == NOTIFY)
        self.waits = [a for w in self.workers for a in w if a.op == WAIT]

    def action(self, k: int) -> Action:
        e = self.events
        op, tensor = int(e.op[k]), int(e.tensor[k])
        rank = e.home[k] if op == NOTIFY else e.rank[k]
        bits = 0
        if op in (READ, WRITE):
            shape = e.hi[e.tensor == tensor].max(axis=0)
            elements = np.zeros(shape, bool)
            elements[tuple(slice(a, b) for a, b in zip(e.lo[k], e.hi[k], strict=True))] = True
            bits = int.from_bytes(np.packbits(elements).tobytes(), "big")
        signal = tensor, int(rank), int(e.cell[k])
        return Action(k, op, (tensor, int(e.home[k])), bits, int(e.entry[k]), signal, int(e.expected[k]))

    # ---- what needs no order

    def miscounted(self) -> bool:
        return any(a.expected < max(1, self.given[a.signal]) for a in self.waits)

    def outputs_wrong(self) -> bool:
        """Whether an element of an output is not written once."""
        e, sizes = self.events, self.events.sizes
        for index, tensor in enumerate(e.program.tensors):
            if tensor.kind != "output":
                continue
            for home in range(sizes.world):
                count = np.zeros(
                    [sizes.world if d == "ranks" else sizes.values[d] for d in tensor.dims]
                    + [1] * (e.lo.shape[1] - len(tensor.dims)), int,
                )  # fmt: skip
                for k in np.flatnonzero((e.op == WRITE) & (e.tensor == index) & (e.home == home)):
                    count[tuple(slice(a, b) for a, b in zip(e.lo[k], e.hi[k], strict=True))] += 1
                if tensor.sharded is not None:
                    begin, end = sizes.values[parts_of(tensor.dims[tensor.sharded])][home : home + 2]
                    count = count.take(range(begin, end), axis=tensor.sharded)
                if (count != 1).any():
                    return True
        return False

    def meets_itself(self) -> bool:
        """Whether two accesses of one worker conflict with no wait or notification between them."""
        for worker in self.workers:
            stretch: list[Action] = []
            for a in worker:
                stretch = stretch if a.op in (READ, WRITE) else []
                if any(_conflict(a, b) for b in stretch):
                    return True
                stretch += [a] if a.op in (READ, WRITE) else []
        return False

    # ---- all interleavings

    def unsafe_in_some_interleaving(self, most: int) -> bool | None:
        """Whether some interleaving gets stuck, brings two accesses that conflict side by side, or reads what is not
        written, or of another entry. None where there are more than `most` states. What memory holds in a state is the
        same on all ways there, unless two writes are side by side on one of them."""
        start = (0,) * len(self.workers)
        seen: set[tuple[int, ...]] = {start}
        stack: list[tuple[tuple[int, ...], tuple[Action, ...]]] = [(start, ())]
        while stack:
            state, writes = stack.pop()
            nexts = [w[p] if p < len(w) else None for w, p in zip(self.workers, state, strict=True)]
            if any(a and b and _conflict(a, b) for a, b in combinations(nexts, 2)):
                return True
            done = [a for w, p in zip(self.workers, state, strict=True) for a in w[:p]]
            counts = Counter(a.signal for a in done if a.op == NOTIFY)
            moved = False
            for k, a in enumerate(nexts):
                if a is None or (a.op == WAIT and counts[a.signal] < a.expected):
                    continue
                moved = True
                if a.op == READ and a.bits & ~_held(writes, a):
                    return True
                after = (*state[:k], state[k] + 1, *state[k + 1 :])
                if after not in seen:
                    seen.add(after)
                    stack.append((after, (*writes, a) if a.op == WRITE else writes))
            if not moved and any(nexts):
                return True
            if len(seen) > most:
                return None
        return False

    # ---- all pairs

    def unsafe_in_some_pair(self) -> bool:
        """The same, by one execution and the closure of what is ordered."""
        order, position = [], [0] * len(self.workers)
        counts: Counter[Signal] = Counter()
        moved = True
        while moved:
            moved = False
            for k, worker in enumerate(self.workers):
                while position[k] < len(worker):
                    a = worker[position[k]]
                    if a.op == WAIT and counts[a.signal] < a.expected:
                        break
                    counts[a.signal] += a.op == NOTIFY
                    order.append((k, a))
                    position[k] += 1
                    moved = True
        if any(p < len(w) for p, w in zip(position, self.workers, strict=True)):
            return True
        before: dict[int, int] = {}  # by event: the events before it, as bits of their number in the execution
        last = [0] * len(self.workers)
        told: dict[Signal, int] = {}
        for n, (k, a) in enumerate(order):
            heard = last[k] | (told.get(a.signal, 0) if a.op == WAIT else 0)
            before[n] = heard
            last[k] = heard | 1 << n
            if a.op == NOTIFY:
                told[a.signal] = told.get(a.signal, 0) | last[k]
        for (m, (j, a)), (n, (k, b)) in combinations(enumerate(order), 2):
            if j != k and _conflict(a, b) and not before[n] >> m & 1:
                return True
        for n, (_, a) in enumerate(order):
            known = [b for m, (_, b) in enumerate(order) if before[n] >> m & 1]
            if a.op == READ and a.bits & ~_held(known, a):
                return True
        return False


def _held(done: Sequence[Action], read: Action) -> int:
    """The elements that hold the entry of a read after these actions, in order."""
    bits = 0
    for a in done:
        if a.op == WRITE and a.place == read.place:
            bits = bits | a.bits if a.entry == read.entry else bits & ~a.bits
    return bits


def _conflict(a: Action, b: Action) -> bool:
    both = {a.op, b.op}
    return both <= {READ, WRITE} and WRITE in both and a.place == b.place and bool(a.bits & b.bits)
