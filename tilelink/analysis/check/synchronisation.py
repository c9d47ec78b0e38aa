"""The waits and notifications of a run, in columns. They alone decide in which orders its events can happen.

Signals only grow, and every wait expects all notifications of its signal in the run. All executions therefore reach the
same steps: if one execution comes to its end, each does (if all workers are resident).

An event happens before another if it comes first in every execution. That follows from program order (across a wait or
a notification, where the threads of a worker meet) and from notifications, which come before all waits for their
signal. One notification and one wait order most pairs that matter; these are looked up. Vector clocks decide the rest,
with a component for each worker whose event has to come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilelink.analysis.events import NOTIFY, WAIT, Events, word
from tilelink.frontend.ir import token_name

COLUMNS = 256
"""The most components of clocks that are computed at once; this bounds their memory."""


class Synchronisation:
    """Waits and notifications ("steps"), in the order of `Events`, with their workers and signals numbered.

    `at`: the event of each step. `notifies`: whether it is a notification. `worker`: the number of its worker, over all
    ranks. `signal`: the number of its signal. `first`: the first step of each worker, then the number of all steps. The
    events between two steps of a worker are `after` the first of them and `until` the second.
    """

    def __init__(self, events: Events) -> None:
        self.events = events
        workers = int(events.worker.max(initial=-1)) + 1
        self.workers = workers * events.sizes.world
        self.worker_of = events.rank.astype(np.int64) * workers + events.worker
        self.at = np.flatnonzero((events.op == NOTIFY) | (events.op == WAIT))
        self.notifies = events.op[self.at] == NOTIFY
        self.worker = self.worker_of[self.at]
        self.first = np.searchsorted(self.worker, np.arange(self.workers + 1))
        self.codes, self.signal = np.unique(events.words(self.at), return_inverse=True)

    @cached_property
    def given(self) -> np.ndarray:
        """How often each signal is given in the run."""
        return np.bincount(self.signal[self.notifies], minlength=len(self.codes))

    @cached_property
    def awaited(self) -> np.ndarray:
        """Whether anybody waits for each signal."""
        return np.bincount(self.signal[~self.notifies], minlength=len(self.codes)) > 0

    def after(self, k: np.ndarray) -> np.ndarray:
        """The last step before each event on its worker; -1 if there is none."""
        step = np.searchsorted(self.at, k) - 1
        return np.where(step >= self.first[self.worker_of[k]], step, -1)

    def until(self, k: np.ndarray) -> np.ndarray:
        """The first step after each event on its worker; if there is none, the first step of the next worker."""
        return np.searchsorted(self.at, k)

    @cached_property
    def notified(self) -> np.ndarray:
        """How many notifications of its worker come before each step; one more entry is for the end of all."""
        before = np.concatenate([[0], np.cumsum(self.notifies)])
        worker = np.append(self.worker, self.workers)
        return before - before[self.first[worker]]


@dataclass(frozen=True, eq=False)
class Executed:
    """The steps that were done, in order, and the wait before which each stuck worker stands."""

    done: np.ndarray
    stuck: dict[int, int]


def execute(sync: Synchronisation) -> Executed:
    """Runs each worker until it has to wait, and goes on with it when the wait is over."""
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
    return Executed(np.array(done, np.int64), {w: position[w] for w in waiting})


# ---- happens-before


class Before:
    """`Before(sync, done)(x, y)`: whether events x come before events y in every execution, elementwise. `done`: the
    steps of a complete execution, in order. Every wait must expect all notifications of its signal."""

    def __init__(self, sync: Synchronisation, done: np.ndarray) -> None:
        self.sync, self.done = sync, done
        count = len(sync.codes)
        steps = np.arange(len(sync.at))
        pair = sync.worker * count + sync.signal
        self.gives, last = np.unique(pair[sync.notifies][::-1], return_index=True)
        self.gives_last = steps[sync.notifies][::-1][last]
        self.awaits, first = np.unique(pair[~sync.notifies], return_index=True)
        self.awaits_first = steps[~sync.notifies][first]
        tensors = sync.events.tensor[sync.at]
        self.by_tensor = {
            int(t): tuple(steps[(tensors == t) & kind] for kind in (sync.notifies, ~sync.notifies))
            for t in np.unique(tensors)
        }

    def __call__(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        ordered = self.directly(x, y)
        left = np.flatnonzero(~ordered)
        if len(left):
            ordered[left] = self._by_clocks(x[left], y[left])
        return ordered

    def directly(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Whether x comes before y by program order, or by one signal of a related tensor."""
        sync, events = self.sync, self.sync.events
        same = sync.worker_of[x] == sync.worker_of[y]
        ordered = same & (sync.after(x) < sync.after(y))
        for tensor in np.unique(events.tensor[x]):
            for name in related(sync, int(tensor)):
                notifies, waits = self.by_tensor.get(name, (np.zeros(0, int), np.zeros(0, int)))
                mine = np.flatnonzero((events.tensor[x] == tensor) & ~ordered)
                if len(notifies) and len(waits) and len(mine):
                    ordered[mine] = self._by_signal(x[mine], y[mine], notifies, waits)
        return ordered

    def _by_signal(self, x: np.ndarray, y: np.ndarray, notifies: np.ndarray, waits: np.ndarray) -> np.ndarray:
        """Whether one of two signals orders x before y: the signal of the first notification after x, on the rank of y;
        or the signal of the last wait before y."""
        sync, events = self.sync, self.sync.events
        next_one = notifies[np.minimum(np.searchsorted(notifies, sync.until(x)), len(notifies) - 1)]
        at = sync.at[next_one]
        code = word(events.tensor[at], events.rank[y], events.cell[at])
        one = np.minimum(np.searchsorted(sync.codes, code), len(sync.codes) - 1)
        ordered = self._through(x, y, one) & (sync.codes[one] == code)
        last_one = waits[np.maximum(np.searchsorted(waits, sync.until(y)) - 1, 0)]
        return ordered | self._through(x, y, sync.signal[last_one])

    def _through(self, x: np.ndarray, y: np.ndarray, signal: np.ndarray) -> np.ndarray:
        """Whether the worker of x gives the signal after x, and the worker of y waits for it before y."""
        sync, count = self.sync, len(self.sync.codes)
        given, step = _look_up(self.gives, self.gives_last, sync.worker_of[x] * count + signal)
        given &= step >= sync.until(x)
        awaited, step = _look_up(self.awaits, self.awaits_first, sync.worker_of[y] * count + signal)
        return given & awaited & (step < sync.until(y))

    # ---- clocks

    def _by_clocks(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Whether x comes before y: the worker of y has heard of the first notification after x on the worker of x."""
        sync = self.sync
        worker, until = sync.worker_of[x], sync.until(x)
        more = until < sync.first[worker + 1]
        number = np.where(more, sync.notified[until] + 1, np.iinfo(np.int32).max)
        at = sync.after(y)
        heard = np.zeros(len(x), np.int64)
        known = np.flatnonzero((at >= 0) & (worker != sync.worker_of[y]))
        sources = np.unique(worker[known])
        for k in range(0, len(sources), COLUMNS):
            some = sources[k : k + COLUMNS]
            here = known[np.isin(worker[known], some)]
            heard[here] = self._clocks(some, at[here], np.searchsorted(some, worker[here]))
        return heard >= number

    def _clocks(self, sources: np.ndarray, steps: np.ndarray, column: np.ndarray) -> np.ndarray:
        """How many notifications of worker sources[column] a step's worker has heard of after the step, elementwise."""
        sync = self.sync
        columns = {int(w): c for c, w in enumerate(sources)}
        rows = [np.zeros(len(sources), np.int32)]
        known = {rows[0].tobytes(): 0}
        joined: dict[tuple[int, int], int] = {}

        def intern(row: np.ndarray) -> int:
            key = row.tobytes()
            if key not in known:
                known[key] = len(rows)
                rows.append(row)
            return known[key]

        clock = [0] * sync.workers
        told: dict[int, list[tuple[int, int, int]]] = {}
        arrived: dict[int, int] = {}
        wanted = np.zeros(len(sync.at), bool)
        wanted[steps] = True
        row_of = np.zeros(len(sync.at), np.int64)
        worker_of, signal, notifies = sync.worker.tolist(), sync.signal.tolist(), sync.notifies.tolist()
        counts = (sync.notified[:-1] + 1).tolist()
        for k in self.done.tolist():
            worker, s = worker_of[k], signal[k]
            if notifies[k]:
                told.setdefault(s, []).append((clock[worker], columns.get(worker, -1), counts[k]))
            else:
                if s not in arrived:
                    arrived[s] = intern(_join(rows, told.pop(s, [])))
                pair = clock[worker], arrived[s]
                if pair not in joined:
                    joined[pair] = intern(np.maximum(rows[pair[0]], rows[pair[1]]))
                clock[worker] = joined[pair]
            if wanted[k]:
                row_of[k] = clock[worker]
        return np.array([rows[r][c] for r, c in zip(row_of[steps].tolist(), column.tolist(), strict=True)])


def related(sync: Synchronisation, tensor: int) -> tuple[int, ...]:
    """The tensors whose signals order accesses to a tensor: the tensor, and the token that releases its entries."""
    tensors = sync.events.program.tensors
    name = token_name(tensors[tensor].name)
    return (tensor, *(k for k, t in enumerate(tensors) if t.kind == "token" and t.name == name))


def _join(rows: list[np.ndarray], told: list[tuple[int, int, int]]) -> np.ndarray:
    """The clock after all of these notifications. `told`: (clock of the notifier, its component, its count)."""
    known = np.maximum.reduce([rows[r] for r in {r for r, _, _ in told} | {0}]).copy()
    own = [(c, n) for _, c, n in told if c >= 0]
    if own:
        np.maximum.at(known, [c for c, _ in own], [n for _, n in own])
    return known


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(whether `keys` has each wanted key, its value)."""
    if not len(keys):
        return np.zeros(len(wanted), bool), np.zeros(len(wanted), np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return keys[at] == wanted, values[at]
