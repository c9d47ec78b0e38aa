"""Waiting for other processes: how a process rests, how long it waits, and how it finds out that a peer has died."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilelink.errors import Site, WorldError

PROMPT_LOOKS = 50
LONGEST_REST = 2e-3
"""Seconds. At first a process only lets others run between two looks, then it rests, longer each time."""


@dataclass(frozen=True)
class Bounds:
    """How long waits last while nothing moves on any rank, in seconds. `enter`: while some peer has not entered the
    run, because it may be compiling. `stuck`: once all peers have entered it."""

    enter: float
    stuck: float

    def __post_init__(self) -> None:
        for name, seconds in vars(self).items():
            if not isinstance(seconds, int | float) or not seconds > 0:
                raise WorldError(
                    f"{name}_timeout={seconds!r}; it must be a number of seconds, more than 0", Site.of_user()
                )


class Processes:
    """Watches the processes of all ranks. Make it while all of them live."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids = list(pids)
        self._ranks: dict[int, int] = {}  # by the pidfd of their process
        self._gone: set[int] = set()
        self._exits = select.poll()
        for rank, pid in enumerate(pids):
            if pid == os.getpid():
                continue
            try:
                exit_ = os.pidfd_open(pid)
            except ProcessLookupError:
                self._gone.add(rank)
                continue
            self._ranks[exit_] = rank
            self._exits.register(exit_, select.POLLIN)

    def gone(self) -> set[int]:
        """The ranks whose processes have ended."""
        return self._gone | {self._ranks[exit_] for exit_, _ in self._exits.poll(0)}

    def named(self, rank: int) -> str:
        """The name of a rank's process in messages."""
        return str(self.pids[rank])

    def close(self) -> None:
        """Stops watching."""
        while self._ranks:
            exit_, _ = self._ranks.popitem()
            self._exits.unregister(exit_)
            os.close(exit_)


class Stillness:
    """How long nothing has moved on any rank. `heartbeats()`: counts that grow while ranks do something."""

    def __init__(self, heartbeats: Callable[[], tuple[int, ...]]) -> None:
        self._heartbeats, self._last, self._since = heartbeats, heartbeats(), time.monotonic()

    def seconds(self) -> float:
        now, latest = time.monotonic(), self._heartbeats()
        if latest != self._last:
            self._last, self._since = latest, now
        return now - self._since


def wait_until(done: Callable[[], bool], check: Callable[[], None]) -> None:
    """Returns once `done()`. At first it looks again at once, later it rests. `check()` may raise to end the wait."""
    looks, rest = 0, 20e-6
    while not done():
        check()
        looks += 1
        if looks < PROMPT_LOOKS:
            os.sched_yield()
        else:
            time.sleep(rest)
            rest = min(2 * rest, LONGEST_REST)
