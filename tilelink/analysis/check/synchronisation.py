"""The waits and notifications of a run, in columns: all that decides in which orders its events can happen.

Signals only grow and every wait is for all that its signal is given in a run. So whatever order the workers are run in,
the same steps are reached in the end: if one execution comes to an end, each does (all workers being resident).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilelink.analysis.events import NOTIFY, WAIT, Events


class Synchronisation:
    """Waits and notifications ("steps"), in the order of `Events`, with their workers and signals numbered.

    `at`: the event of each step; `notifies`: whether it is a notification; `worker`: a number for its rank and worker;
    `signal`: a number for the word it is about; `first`: the first step of each worker, and the number of all steps.
    A stretch of a worker's events between two steps is one step's `after` and the next one's `until`.
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
        """Whether anybody waits for a signal."""
        return np.bincount(self.signal[~self.notifies], minlength=len(self.codes)) > 0

    def after(self, k: np.ndarray) -> np.ndarray:
        """The last step of its worker before each event; -1 where there is none."""
        step = np.searchsorted(self.at, k) - 1
        return np.where(step >= self.first[self.worker_of[k]], step, -1)

    def until(self, k: np.ndarray) -> np.ndarray:
        """The number of steps of all workers up to each event: the first step of its worker after it, if it has one."""
        return np.searchsorted(self.at, k)

    @cached_property
    def notified(self) -> np.ndarray:
        """How many notifications of its worker come before each step (one more entry: before the end of all)."""
        before = np.concatenate([[0], np.cumsum(self.notifies)])
        worker = np.append(self.worker, self.workers)
        return before - before[self.first[worker]]


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
