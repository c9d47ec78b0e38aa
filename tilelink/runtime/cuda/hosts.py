"""The host functions of several ranks in one process, without a race between them and without a deadlock.

One host runs at a time, on a thread of its own, until it comes to a launch. There it waits for the others, and when all
have come their launches are made in one go. So nothing stands between the launches of kernels that wait for each other:
no operation of torch behind which a launch would queue, no kernel that CUDA loads late (which may wait until the device
is idle), and no other thread with the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from tilelink.emulator.scheduler import Scheduler, Task

T = TypeVar("T")
STACK_BYTES = 16 << 20
"""Of a host's thread: Triton compiles there, whose compiler recurses."""
_LAUNCHED = 0
"""The key on which hosts are parked that wait for the launches of others."""


class Hosts:
    """The hosts of `world` ranks, in the order of their ranks. `check(ranks)` is called before the launches of these
    ranks are made, and may raise."""

    def __init__(self, world: int, check: Callable[[Sequence[int]], None] = lambda ranks: None) -> None:
        self.world, self.check = world, check
        self._scheduler: Scheduler | None = None
        self._waiting: dict[int, Callable[[], None]] = {}

    def run(self, body: Callable[[int], T]) -> list[T]:
        """Runs `body(rank)` for every rank; returns what it returned, by rank. Raises what a body raised first."""
        results: dict[int, T] = {}

        def host(rank: int) -> None:
            results[rank] = body(rank)

        self._scheduler = Scheduler(policy="round_robin", on_stall=self._some_never_come, stack_bytes=STACK_BYTES)
        self._waiting.clear()
        for rank in range(self.world):
            self._scheduler.spawn(partial(host, rank), rank, f"host of rank {rank}")
        try:
            self._scheduler.run()
        finally:
            self._scheduler = None
        return [results[rank] for rank in range(self.world)]

    @property
    def running(self) -> bool:
        return self._scheduler is not None

    def together(self, rank: int, launch: Callable[[], None]) -> None:
        """Returns once `launch` was called: when every rank has come here, or those that have not can't any more."""
        assert self._scheduler is not None, "outside of run"
        self._waiting[rank] = launch
        if len(self._waiting) == self.world:
            self._launch()
        else:
            self._scheduler.block((_LAUNCHED,))

    def _some_never_come(self, parked: Sequence[Task]) -> None:
        """All hosts that are left wait, so some rank has made fewer calls: the kernels of the others find that out."""
        self._launch()

    def _launch(self) -> None:
        assert self._scheduler is not None
        launches, self._waiting = self._waiting, {}
        self.check(sorted(launches))
        for rank in sorted(launches):
            launches[rank]()
        self._scheduler.wake(_LAUNCHED, _LAUNCHED + 1)
