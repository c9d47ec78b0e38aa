"""Streams of a rank: launches one after the other, and marks after which other streams go on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

from tilelink.emulator.memory import RegionMap
from tilelink.emulator.ordering import Moment


class Entry:
    """What is put on a stream. `done`: the moment after it, and after all that was on the stream before."""

    done: Moment | None = None


@dataclass(eq=False)
class Launch(Entry):
    """A body on its way through a stream: that of programs in a grid of this `shape`. `number` counts the launches of
    its rank. `agent`: the number of its one program, where that is an agent of the copy engine. `last_first`: programs
    with the highest numbers begin first. `end`: after the programs that have finished."""

    body: Callable[[], object]
    shape: tuple[int, ...]
    regions: RegionMap
    rank: int
    name: str
    number: int
    start: Moment
    agent: int | None = None
    last_first: bool = False
    started: int = 0
    finished: int = 0

    def __post_init__(self) -> None:
        self.grid, self.end = prod(self.shape), self.start

    @property
    def waiting(self) -> range:
        """The numbers of the programs that have not started."""
        low, high = (0, self.started) if self.last_first else (self.started, 0)
        first = self.agent or 0
        return range(first + low, first + self.grid - high)

    @property
    def next(self) -> int:
        """The number of the program that starts next."""
        return self.waiting[-1 if self.last_first else 0]


class Mark(Entry):
    """Lets a stream go on once what is on other streams so far is done."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.start = reduce(Moment.join, [stream.end for stream in streams], Moment())
        self.before = [stream.entries[-1] for stream in streams if stream.entries]

    def end(self) -> Moment | None:
        """The moment after all that was there; None before it."""
        ends = [entry.done for entry in self.before if entry.done]
        return reduce(Moment.join, ends, self.start) if len(ends) == len(self.before) else None


class Stream:
    """The entries of a stream that are not done; a launch that is the first one runs. Hosts wait for it on `key`."""

    def __init__(self, rank: int, name: object, key: int) -> None:
        self.rank, self.name, self.key = rank, name, key
        self.entries: deque[Launch | Mark] = deque()
        self.end = Moment()

    def pop(self, end: Moment) -> None:
        """The first entry is done."""
        self.end = self.entries.popleft().done = self.end.join(end)
