"""Runs kernels of N ranks in one process: hosts, streams, launches and their programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from tilelink.errors import TileLinkError
from tilelink.runtime.cpu.accesses import Accesses
from tilelink.runtime.cpu.errors import (
    DeadlockError,
    KernelError,
    RaceError,
    StuckProgram,
    UnstartedPrograms,
    WaitingHost,
)
from tilelink.runtime.cpu.interpreter import installed, sites
from tilelink.runtime.cpu.memory import Array, Region, RegionMap
from tilelink.runtime.cpu.network import Network
from tilelink.runtime.cpu.ordering import Moment, Ordering, Strand
from tilelink.runtime.cpu.policies import PolicyWord
from tilelink.runtime.cpu.programs import Program
from tilelink.runtime.cpu.races import Race, RaceDetector
from tilelink.runtime.cpu.scheduler import Scheduler, Task
from tilelink.runtime.cpu.streams import Launch, Mark, Stream, Work
from tilelink.runtime.cpu.trace import Operation

T = TypeVar("T")
Admission = Literal["in order", "last first"]

FRUITLESS_ROUNDS = 16
"""How often all stuck programs may look again, with nothing changing, before that is a deadlock."""


class Elsewhere(Protocol):
    """The other processes whose programs reach the same memory, as one that has nothing to do sees them.

    `heartbeat`: one int64 that grows with every memory operation here.
    """

    heartbeat: Array

    def wait(self, changed: Callable[[], bool], deadlock: Callable[[], DeadlockError]) -> None:
        """Returns once `changed()`. Raises where that is not to be expected; `deadlock()` says who waits for what."""


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
        self._run: _Run | None = None

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
        run = self._run = _Run(self.world, self._resident, self._last_first, scheduler, accesses, self._elsewhere)
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

    def _running(self) -> _Run:
        if self._run is None:
            raise RuntimeError("only host functions can do this, while run() runs them")
        return self._run


class _Run:
    """The state of one run."""

    def __init__(
        self,
        world: int,
        resident: int | None,
        last_first: bool,
        scheduler: Scheduler,
        accesses: Accesses,
        elsewhere: Elsewhere | None,
    ) -> None:
        self.elsewhere = elsewhere
        scheduler.on_stall = self.stalled if elsewhere is None else self.await_others
        self.scheduler, self.accesses = scheduler, accesses
        self.resident, self.last_first = resident or sys.maxsize, last_first
        self.ordering = accesses.ordering or Ordering()
        accesses.network = Network(accesses, self.ordering, world)
        self.hosts: dict[Task, Strand] = {}
        self.programs: dict[Task, Program] = {}
        self.streams: dict[tuple[int, object], Stream] = {}
        self.launched = [0] * world
        self.under_way = [0] * world
        self.rounds = 0
        self.effects_at_stall = -1

    def spawn_host(self, rank: int, body: Callable[[], None]) -> None:
        task = self.scheduler.spawn(body, rank, f"host of rank {rank}")
        self.hosts[task] = self.ordering.strand(rank, "host", 0, ("host", rank), Moment())

    def launch(
        self,
        work: Work,
        shape: tuple[int, ...],
        arguments: Mapping[str, Any],
        regions: Sequence[Region],
        rank: int,
        stream_name: object,
        name: str,
        agent: int | None,
    ) -> None:
        for region in regions:
            self.accesses.shadows.add(region)
        start = self._host().publish()
        bound = work.bind(arguments)
        launch = Launch(
            work, shape, bound, RegionMap(regions), rank, name, self.launched[rank], start, agent, self.last_first
        )
        self.launched[rank] += 1
        self.accesses.effects += 1
        if launch.grid > 0:
            self._stream(rank, stream_name).entries.append(launch)
            self._admit()

    def follow(self, rank: int, stream_name: object, others: Sequence[object]) -> None:
        self._stream(rank, stream_name).entries.append(Mark([self._stream(rank, other) for other in others]))
        self._admit()

    def _stream(self, rank: int, name: object) -> Stream:
        known = self.streams.get((rank, name))
        if known is None:
            known = self.streams[rank, name] = Stream(rank, name, -1 - len(self.streams))
        return known

    def synchronize(self, rank: int, stream_name: object | None = None) -> None:
        host = self._host()
        streams = [s for s in self.streams.values() if s.rank == rank and stream_name in (None, s.name)]
        while any(stream.entries for stream in streams):
            self.scheduler.block(stream.key for stream in streams if stream.entries)
        for stream in streams:
            host.follow(stream.end)

    def stalled(self, parked: Sequence[Task]) -> None:
        """Lets stuck programs look again: they may only seem to poll. After some rounds it is a deadlock."""
        if self.effects_at_stall != self.accesses.effects:
            self.effects_at_stall, self.rounds = self.accesses.effects, 0
        self.rounds += 1
        polling = [task for task in parked if task in self.programs]
        if not polling or self.rounds > FRUITLESS_ROUNDS:
            raise self._deadlock(parked)
        for task in polling:
            self.scheduler.unpark(task)

    def await_others(self, parked: Sequence[Task]) -> None:
        """Lets stuck programs look again once another process has written what they poll."""
        assert self.elsewhere is not None
        polling = {task: self.programs[task] for task in parked if task in self.programs}
        if not polling:
            raise self._deadlock(parked)

        def outdated() -> list[Task]:
            return [task for task, program in polling.items() if not program.is_current()]

        self.elsewhere.wait(lambda: self.scheduler.stopping or bool(outdated()), lambda: self._deadlock(parked))
        self.accesses.disturbed()
        for task in outdated():
            self.scheduler.unpark(task)

    def _host(self) -> Strand:
        host = self.hosts.get(self.scheduler.current) if self.scheduler.current else None
        if host is None:
            raise RuntimeError("only a host function can do this")
        return host

    def _admit(self) -> None:
        """Starts programs of the first launch of every stream, as far as they may be under way."""
        while any(self._pass_mark(stream) for stream in self.streams.values()):
            pass
        for stream in self.streams.values():
            launch, rank = stream.entries[0] if stream.entries else None, stream.rank
            if not isinstance(launch, Launch):
                continue
            while launch.started < launch.grid and (launch.agent is not None or self.under_way[rank] < self.resident):
                index = launch.next
                lane = rank, stream.name, index
                start = launch.start.join(stream.end)
                strand = self.ordering.strand(rank, launch.name, index, lane, start, launch.number)
                program = Program(launch, index, strand)
                body = partial(self._execute, program, stream)
                program.task = self.scheduler.spawn(body, rank, f"{launch.name}[{index}]")
                self.programs[program.task] = program
                launch.started += 1
                self.under_way[rank] += launch.agent is None

    def _pass_mark(self, stream: Stream) -> bool:
        """Takes a mark off a stream, if it is the first entry and the other streams have come so far."""
        mark = stream.entries[0] if stream.entries else None
        if not isinstance(mark, Mark) or not mark.is_past():
            return False
        self._pop(stream, mark.end())
        return True

    def _pop(self, stream: Stream, end: Moment) -> None:
        stream.pop(end)
        self.scheduler.wake(stream.key, stream.key + 1)

    def _execute(self, program: Program, stream: Stream) -> None:
        """The body of a program's task."""
        launch = program.launch
        self.accesses.enter(program)
        try:
            launch.work.run(self.accesses, launch.arguments)
        except TileLinkError:
            raise
        except Exception as error:
            site = sites.of_traceback(error.__traceback__)
            raise KernelError(launch.rank, launch.name, program.index, site, error) from error
        assert program.task is not None
        del self.programs[program.task]
        self.accesses.ended(program)
        self.under_way[launch.rank] -= launch.agent is None
        launch.finished += 1
        launch.end = launch.end.join(program.strand.now())
        if launch.finished == launch.grid:
            self._pop(stream, launch.end)
        self._admit()

    def _deadlock(self, parked: Sequence[Task]) -> DeadlockError:
        stuck = []
        for task in parked:
            program = self.programs.get(task)
            if program is not None:
                waits = [wait for poll in program.polls for wait in poll.waits()]
                stuck.append(StuckProgram(task.rank, program.launch.name, program.index, tuple(waits)))
        unstarted = [
            UnstartedPrograms(launch.rank, launch.name, launch.waiting, launch.started > 0)
            for stream in self.streams.values()
            for launch in stream.launches
            if launch.started < launch.grid
        ]
        keys = {stream.key: stream.name for stream in self.streams.values()}
        hosts = [
            WaitingHost(task.rank, tuple(keys[key] for key in sorted(task.keys, reverse=True)))
            for task in parked
            if task in self.hosts
        ]
        return DeadlockError(stuck, unstarted, hosts)
