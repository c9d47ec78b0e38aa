"""Runs kernels of N ranks in one process, deterministically."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from tilelink.emulator import errors, sites
from tilelink.emulator.accesses import Accesses
from tilelink.emulator.errors import DeadlockError
from tilelink.emulator.interpreter import InterpretedKernel, installed
from tilelink.emulator.memory import Array, Region, RegionMap
from tilelink.emulator.network import Network
from tilelink.emulator.operation import Operation
from tilelink.emulator.ordering import Moment, Ordering, Strand, Who
from tilelink.emulator.policies import PolicyWord
from tilelink.emulator.programs import Program
from tilelink.emulator.races import Race, RaceDetector
from tilelink.emulator.scheduler import Scheduler, Task
from tilelink.emulator.streams import Launch, Mark, Stream
from tilelink.errors import TileLinkError

T = TypeVar("T")
Admission = Literal["in order", "last first"]
Races = bool | Literal["collect"]
Switch = Literal["atomics", "memory"]
FRUITLESS_ROUNDS = 16
"""How often all stuck programs look again without any change before this is a deadlock."""


class Elsewhere(Protocol):
    """The other processes whose programs reach the same memory; an execution with nothing to do waits for them.

    `heartbeat`: one int64 that grows with every memory operation of this process."""

    heartbeat: Array

    def wait(self, changed: Callable[[], bool], deadlock: Callable[[], DeadlockError]) -> None:
        """Returns once `changed()`. Raises where that can't be expected; the error of `deadlock()` says who waits."""


class Execution:
    """Runs `world` ranks deterministically on the CPU.

    `seed` and `policy` fix the schedule. `resident`: the most programs of a rank that are under way at a time (None:
    all). `admit`: the order in which programs of a launch begin; with "last first", programs that wait mostly come
    before the programs that they wait for. `races`: True raises `RaceError` at the end of a run, "collect" only keeps
    races in `races`, False does not look for them. `switch`: programs take turns at "atomics" (and volatile loads) or
    at every access to "memory". `observer` gets an `Operation` for every access. `livelock`: more accesses without an
    effect are an error. `ranks`: the ranks that run here, by default all; the others run `elsewhere`, in processes that
    reach the same memory. Then a program that polls is stuck only when `elsewhere` says so. Races can't be looked for,
    because this process does not see the accesses of the others, nor the order that they make."""

    def __init__(
        self,
        world: int,
        seed: int = 0,
        policy: PolicyWord = "random",
        resident: int | None = None,
        admit: Admission = "in order",
        races: Races = True,
        observer: Callable[[Operation], None] | None = None,
        switch: Switch = "atomics",
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
        self.schedule_hash = self.turns = self.operations = 0
        self._seed, self._policy, self._livelock = seed, policy, livelock
        self._resident, self._last_first = resident or sys.maxsize, admit == "last first"
        self._find_races, self._observer, self._switch = races, observer, switch
        self._ranks, self._elsewhere = range(world) if ranks is None else ranks, elsewhere
        self._start_anew()

    def _start_anew(self) -> None:
        """Makes the state of a run in which nothing has happened yet."""
        elsewhere = self._elsewhere
        self._scheduler = Scheduler(self._seed, self._policy)
        self._detector = RaceDetector() if self._find_races else None
        self._ordering = Ordering()
        self._accesses = Accesses(
            self._scheduler,
            ordering=self._ordering if self._detector or self._observer else None,
            races=self._detector,
            observer=self._observer,
            switch_always=self._switch == "memory",
            livelock=self._livelock,
            heartbeat=elsewhere.heartbeat if elsewhere else None,
        )
        self._hosts: dict[Task, Strand] = {}
        self._programs: dict[Task, Program] = {}
        self._streams: dict[tuple[int, object], Stream] = {}
        self._launched = [0] * self.world
        self._under_way = [0] * self.world
        self._rounds, self._effects_at_stall = 0, -1

    def run(self, host: Callable[[int], T]) -> list[T]:
        """Runs `host(rank)` and everything it launches, for every rank that runs here; returns the results in order.

        Raises what a host raised, `KernelError` for an exception in a kernel, `OutOfBoundsError`, `DeadlockError`,
        `LivelockError`, and `RaceError`."""
        if self._hosts:
            raise RuntimeError("the execution is running")
        results: dict[int, T] = {}

        def body(rank: int) -> None:
            try:
                results[rank] = host(rank)
            except Exception as e:
                e.add_note(f"raised on rank {rank} first; the other ranks may raise the same")
                raise
            self.synchronize(rank)

        self._scheduler.on_stall = self._await_others if self._elsewhere else self._stalled
        self._accesses.network = Network(self._accesses, self._ordering, self.world)
        try:
            with installed(self._accesses):
                for rank in self._ranks:
                    task = self._scheduler.spawn(partial(body, rank), rank, f"host of rank {rank}")
                    self._hosts[task] = self._ordering.strand(Who(rank, "host"), ("host", rank), Moment())
                self._scheduler.run()
        finally:
            self.schedule_hash, self.turns = self._scheduler.schedule_hash, self._scheduler.turns
            self.operations = self._accesses.operations
            self.races = self._detector.races if self._detector else []
            vars(self._accesses).clear()  # it and the other objects of a run hold each other: this frees them at once
            self._start_anew()
        if self.races and self._find_races is True:
            raise errors.RaceError(self.races)
        return [results[rank] for rank in self._ranks]

    # ---- calls of host functions

    def launch(
        self,
        work: InterpretedKernel | Callable[[Accesses], object],
        grid: int | tuple[int, ...],
        arguments: Mapping[str, Any],
        regions: Sequence[Region],
        rank: int,
        stream: object = 0,
        name: str | None = None,
        agent: int | None = None,
    ) -> None:
        """Puts a launch of `grid` programs (up to three axes) on a stream of a rank.

        `work`: a kernel, or a function such as those of `engine.py`. `agent`: the number of the launch's one program,
        if it is an agent of the copy engine, which is resident on no SM. `arguments`: tensors, numbers, and values of
        constexpr parameters, by name. The launch may touch `regions` and nothing else. Raises `TypeError` for arguments
        that do not fit the kernel."""
        for region in regions:
            self._accesses.shadows.add(region)
        start = self._host().publish()
        shape = grid if isinstance(grid, tuple) else (grid,)
        if isinstance(work, InterpretedKernel):
            body, name = work.bind(arguments), name or work.name
        else:
            body, name = partial(work, self._accesses), name or "copy engine"
        number = self._launched[rank]
        launch = Launch(body, shape, RegionMap(regions), rank, name, number, start, agent, self._last_first)
        self._launched[rank] += 1
        self._accesses.effects += 1
        if launch.grid > 0:
            self._stream(rank, stream).entries.append(launch)
            self._admit()

    def follow(self, rank: int, stream: object, others: Sequence[object]) -> None:
        """Makes later entries of a stream begin after everything that is on other streams of its rank now."""
        self._host()
        self._stream(rank, stream).entries.append(Mark([self._stream(rank, other) for other in others]))
        self._admit()

    def synchronize(self, rank: int, stream: object | None = None) -> None:
        """Waits until one stream of a rank, or all of its streams, are done."""
        host = self._host()
        streams = [s for s in self._streams.values() if s.rank == rank and stream in (None, s.name)]
        while any(s.entries for s in streams):
            self._scheduler.block(s.key for s in streams if s.entries)
        for s in streams:
            host.follow(s.end)

    def _host(self) -> Strand:
        host = self._hosts.get(self._scheduler.current) if self._scheduler.current else None
        if host is None:
            raise RuntimeError("only host functions can do this, while run() runs them")
        return host

    def _stream(self, rank: int, name: object) -> Stream:
        known = self._streams.get((rank, name))
        if known is None:
            known = self._streams[rank, name] = Stream(rank, name, -1 - len(self._streams))
        return known

    # ---- programs

    def _admit(self) -> None:
        """Starts programs of the first launch of every stream, as many as `resident` allows."""
        while any(self._pass_mark(stream) for stream in self._streams.values()):
            pass
        for stream in self._streams.values():
            launch, rank = stream.entries[0] if stream.entries else None, stream.rank
            if not isinstance(launch, Launch):
                continue
            while launch.started < launch.grid and (launch.agent is not None or self._under_way[rank] < self._resident):
                who = Who(rank, launch.name, launch.next, launch.number)
                start = launch.start.join(stream.end)
                program = Program(launch, self._ordering.strand(who, (rank, stream.name, who.program), start))
                body = partial(self._execute, program, stream)
                self._programs[self._scheduler.spawn(body, rank, f"{launch.name}[{who.program}]")] = program
                launch.started += 1
                self._under_way[rank] += launch.agent is None

    def _pass_mark(self, stream: Stream) -> bool:
        """Takes a mark off a stream if it is the first entry and its work on other streams is done. Returns whether."""
        mark = stream.entries[0] if stream.entries else None
        end = mark.end() if isinstance(mark, Mark) else None
        if end is None:
            return False
        self._pop(stream, end)
        return True

    def _pop(self, stream: Stream, end: Moment) -> None:
        stream.pop(end)
        self._scheduler.wake(stream.key, stream.key + 1)

    def _execute(self, program: Program, stream: Stream) -> None:
        """Runs a program; it is the body of the program's task."""
        launch = program.launch
        self._accesses.enter(program)
        try:
            launch.body()
        except TileLinkError:
            raise
        except Exception as error:
            raise errors.KernelError(program.who, sites.of_traceback(error.__traceback__), error) from error
        assert self._scheduler.current is not None
        del self._programs[self._scheduler.current]
        self._accesses.progress()
        self._under_way[launch.rank] -= launch.agent is None
        launch.finished += 1
        launch.end = launch.end.join(program.strand.now())
        if launch.finished == launch.grid:
            self._pop(stream, launch.end)
        self._admit()

    # ---- when no task can go on

    def _stalled(self, parked: Sequence[Task]) -> None:
        """Lets stuck programs look again, as they may only seem to poll. Raises `DeadlockError` after some rounds."""
        if self._effects_at_stall != self._accesses.effects:
            self._effects_at_stall, self._rounds = self._accesses.effects, 0
        self._rounds += 1
        polling = [task for task in parked if task in self._programs]
        if not polling or self._rounds > FRUITLESS_ROUNDS:
            raise self._deadlock(parked)
        for task in polling:
            self._scheduler.unpark(task)

    def _await_others(self, parked: Sequence[Task]) -> None:
        """Lets stuck programs look again once another process has written to memory that they poll."""
        assert self._elsewhere is not None
        polling = {task: self._programs[task] for task in parked if task in self._programs}
        if not polling:
            raise self._deadlock(parked)

        def outdated() -> list[Task]:
            return [task for task, program in polling.items() if not program.is_current()]

        self._elsewhere.wait(
            lambda: self._scheduler.stopping.is_set() or bool(outdated()), lambda: self._deadlock(parked)
        )
        self._accesses.progress()
        for task in outdated():
            self._scheduler.unpark(task)

    def _deadlock(self, parked: Sequence[Task]) -> DeadlockError:
        stuck = []
        for task in parked:
            program = self._programs.get(task)
            if program is not None:
                waits = [wait for poll in program.polls for wait in poll.waits()]
                stuck.append(errors.StuckProgram(task.rank, program.who.launch, program.who.program, tuple(waits)))
        unstarted = [
            errors.UnstartedPrograms(launch.rank, launch.name, launch.waiting, launch is stream.entries[0])
            for stream in self._streams.values()
            for launch in stream.entries
            if isinstance(launch, Launch) and launch.started < launch.grid
        ]
        keys = {stream.key: stream.name for stream in self._streams.values()}
        hosts = [
            errors.WaitingHost(task.rank, tuple(keys[key] for key in sorted(task.keys, reverse=True)))
            for task in parked
            if task in self._hosts
        ]
        return DeadlockError(stuck, unstarted, hosts)


sites.outermost = Execution._execute.__code__
