"""The waits and notifications of a run, in columns: all that decides in which orders its events can happen."""

from __future__ import annotations

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
        holder = np.where(self.notifies, events.home[self.at], events.rank[self.at])
        self.codes, self.signal = np.unique(
            self.code(events.tensor[self.at], holder, events.cell[self.at]), return_inverse=True
        )

    def code(self, tensor: np.ndarray, rank: np.ndarray, cell: np.ndarray) -> np.ndarray:
        """A signal as one integer: of which tensor, on which rank, which cell."""
        return (tensor.astype(np.int64) << 16 | rank.astype(np.int64)) << 31 | cell.astype(np.int64)

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
