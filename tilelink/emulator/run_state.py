"""The state of one run: hosts, streams, launches, and the programs of which so many are under way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from tilelink.emulator.accesses import Accesses
from tilelink.emulator.errors import DeadlockError, KernelError, StuckProgram, UnstartedPrograms, WaitingHost
from tilelink.emulator.interpreter import sites
from tilelink.emulator.memory import Array, Region
from tilelink.emulator.network import Network
from tilelink.emulator.ordering import Moment, Ordering, Strand
from tilelink.emulator.programs import Program
from tilelink.emulator.region_map import RegionMap
from tilelink.emulator.scheduler import Scheduler, Task
from tilelink.emulator.streams import Launch, Mark, Stream, Work
from tilelink.errors import TileLinkError

FRUITLESS_ROUNDS = 16
"""How often all stuck programs may look again, with nothing changing, before that is a deadlock."""


class Elsewhere(Protocol):
    """The other processes whose programs reach the same memory, as one that has nothing to do sees them.

    `heartbeat`: one int64 that grows with every memory operation here.
    """

    heartbeat: Array

    def wait(self, changed: Callable[[], bool], deadlock: Callable[[], DeadlockError]) -> None:
        """Returns once `changed()`. Raises where that is not to be expected; `deadlock()` says who waits for what."""


class RunState:
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
