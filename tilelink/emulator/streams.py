"""Streams of a rank: launches one after the other, and marks after which other streams go on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from tilelink.emulator.ordering import Moment
from tilelink.emulator.region_map import RegionMap

if TYPE_CHECKING:
    from tilelink.emulator.accesses import Accesses


class Work(Protocol):
    """What can be launched: an interpreted kernel, or what a copy engine does."""

    @property
    def name(self) -> str:
        """What it is called where a launch has no name."""

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as `run` takes them. Raises `TypeError` if they do not fit."""

    def run(self, memory: Accesses, arguments: Mapping[str, Any]) -> None:
        """Does the work of one program, whose accesses go through `memory`."""


class Launch:
    """Work with its arguments, on its way through a stream: `grid` programs, in a grid of this `shape`. `number` counts
    the launches of its rank. `agent`: the number of its one program, where that is an agent of the copy engine.
    `last_first`: programs with the highest numbers begin first."""

    def __init__(
        self,
        work: Work,
        shape: tuple[int, ...],
        arguments: dict[str, Any],
        regions: RegionMap,
        rank: int,
        name: str,
        number: int,
        start: Moment,
        agent: int | None = None,
        last_first: bool = False,
    ) -> None:
        self.work, self.arguments, self.regions = work, arguments, regions
        self.shape, self.grid = shape, prod(shape)
        self.rank, self.name, self.number, self.start, self.agent = rank, name, number, start, agent
        self.last_first = last_first
        self.started = self.finished = 0
        self.end = start

    @property
    def waiting(self) -> range:
        """The numbers of the programs that have not started."""
        low, high = (0, self.started) if self.last_first else (self.started, 0)
        first = self.agent or 0
        return range(first + low, first + self.grid - high)

    @property
    def next(self) -> int:
        """The number of the program that starts next."""
        return self.waiting[-1] if self.last_first else self.waiting[0]


class Mark:
    """A place in a stream that lets it go on once what is on other streams so far is done."""

    def __init__(self, streams: list[Stream]) -> None:
        self.after = [(stream, stream.done + len(stream.entries)) for stream in streams]

    def is_past(self) -> bool:
        return all(stream.done >= count for stream, count in self.after)

    def end(self) -> Moment:
        moment = Moment()
        for stream, count in self.after:
            moment = moment.join(stream.ends[count])
        return moment


class Stream:
    """The entries of a stream that are not done; a launch that is the first one runs. Hosts wait for it on `key`."""

    def __init__(self, rank: int, name: object, key: int) -> None:
        self.rank, self.name, self.key = rank, name, key
        self.entries: deque[Launch | Mark] = deque()
        self.ends = [Moment()]  # after none, one, two... entries

    @property
    def done(self) -> int:
        """How many entries are done."""
        return len(self.ends) - 1

    @property
    def end(self) -> Moment:
        return self.ends[-1]

    @property
    def launches(self) -> list[Launch]:
        """Those that are not done."""
        return [entry for entry in self.entries if isinstance(entry, Launch)]

    def pop(self, end: Moment) -> None:
        """The first entry is done."""
        self.entries.popleft()
        self.ends.append(self.end.join(end))
