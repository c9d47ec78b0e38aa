"""Runs kernels of N ranks in one process, deterministically: what may be asked for, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from tilelink.emulator.accesses import Accesses
from tilelink.emulator.errors import RaceError
from tilelink.emulator.interpreter import installed
from tilelink.emulator.memory import Region
from tilelink.emulator.ordering import Ordering
from tilelink.emulator.policies import PolicyWord
from tilelink.emulator.races import Race, RaceDetector
from tilelink.emulator.run_state import Elsewhere, RunState
from tilelink.emulator.scheduler import Scheduler
from tilelink.emulator.streams import Work
from tilelink.emulator.trace import Operation

T = TypeVar("T")
Admission = Literal["in order", "last first"]


class Execution:
    """Runs `world` ranks deterministically on the CPU.

    `seed` and `policy` fix the schedule. `resident`: at most so many programs of a rank are under way at a
    time (None: all of them). `admit`: the order in which those of a launch begin; "last first", those that wait
    mostly come before those that they wait for. `races`: True raises `RaceError` at the end of a run, "collect"
    leaves what was found in `races`, False does not look. `switch`: programs take turns at "atomics" (and volatile
    loads) or at every access to "memory". `observer` gets an `Operation` for every access. `livelock`: so many
    accesses without an effect are an error. `ranks`: those that run here, by default all; the others run
    `elsewhere`, in processes that reach the same memory. Then nobody who polls is stuck before `elsewhere` says so,
    and races are not looked for: what others do, and the order that they make, can't be seen from here.
    """

    def __init__(
        self,
        world: int,
        seed: int = 0,
        policy: PolicyWord = "random",
        resident: int | None = None,
        admit: Admission = "in order",
        races: bool | Literal["collect"] = True,
        observer: Callable[[Operation], None] | None = None,
        switch: Literal["atomics", "memory"] = "atomics",
        livelock: int = 200_000,
        ranks: Sequence[int] | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        if elsewhere is not None and races:
            raise ValueError("races are looked for where all ranks run in one process")
        if world < 1 or (resident is not None and resident < 1):
            raise ValueError("world and resident must be positive")
        self.world = world
        self.races: list[Race] = []
        self.schedule_hash = 0
        self.turns = 0
        self.operations = 0
        self._seed, self._policy, self._livelock = seed, policy, livelock
        self._resident, self._last_first = resident, admit == "last first"
        self._find_races, self._observer, self._switch = races, observer, switch
        self._ranks, self._elsewhere = range(world) if ranks is None else ranks, elsewhere
        self._run: RunState | None = None

    def run(self, host: Callable[[int], T]) -> list[T]:
        """Runs `host(rank)` for every rank that runs here and all it launches, and returns what it returned.

        Raises what a host raised, `KernelError` for what a kernel raised, `OutOfBoundsError`,
        `DeadlockError`, `LivelockError`, and `RaceError`.
        """
        if self._run is not None:
            raise RuntimeError("the execution is running")
        detector = RaceDetector() if self._find_races else None
        scheduler = Scheduler(self._seed, self._policy)
        accesses = Accesses(
            scheduler,
            ordering=Ordering() if detector or self._observer else None,
            races=detector,
            observer=self._observer,
            switch_always=self._switch == "memory",
            livelock=self._livelock,
            heartbeat=self._elsewhere.heartbeat if self._elsewhere else None,
        )
        run = self._run = RunState(self.world, self._resident, self._last_first, scheduler, accesses, self._elsewhere)
        results: dict[int, T] = {}

        def body(rank: int) -> None:
            try:
                results[rank] = host(rank)
            except Exception as e:
                e.add_note(f"raised by the function of rank {rank}")
                raise
            run.synchronize(rank)

        try:
            with installed(accesses):
                for rank in self._ranks:
                    run.spawn_host(rank, partial(body, rank))
                scheduler.run()
        finally:
            self._run = None
            self.schedule_hash, self.turns = scheduler.schedule_hash, scheduler.turns
            self.operations = accesses.operations
            self.races = detector.races if detector else []
        if self.races and self._find_races is True:
            raise RaceError(self.races)
        return [results[rank] for rank in self._ranks]

    def launch(
        self,
        work: Work,
        grid: int | tuple[int, ...],
        arguments: Mapping[str, Any],
        regions: Sequence[Region],
        rank: int,
        stream: object = 0,
        name: str | None = None,
        agent: int | None = None,
    ) -> None:
        """Puts a launch of `grid` programs (up to three axes) on a stream of a rank; to be called by a host function.
        `agent`: the number of the program, where it is an agent of the copy engine, which is resident on no SM.

        `arguments`: tensors, numbers, and values of constexpr parameters, by name. The launch may touch
        `regions` and nothing else. Raises `TypeError` for arguments that do not fit the kernel.
        """
        shape = grid if isinstance(grid, tuple) else (grid,)
        self._running().launch(work, shape, arguments, regions, rank, stream, name or work.name, agent)

    def follow(self, rank: int, stream: object, others: Sequence[object]) -> None:
        """What is put on a stream from now on begins after what is on other streams of its rank now; to be called by a
        host function."""
        self._running().follow(rank, stream, others)

    def synchronize(self, rank: int, stream: object | None = None) -> None:
        """Waits until a stream of a rank, or all of them, are done; to be called by a host function."""
        self._running().synchronize(rank, stream)

    def _running(self) -> RunState:
        if self._run is None:
            raise RuntimeError("only host functions can do this, while run() runs them")
        return self._run
