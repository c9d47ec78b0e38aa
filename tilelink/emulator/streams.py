"""Streams of a rank: launches that run one after the other, and marks that wait for other streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

from tilelink.emulator.memory import RegionMap
from tilelink.emulator.ordering import Moment


class Entry:
    """An entry of a stream. `done`: the moment after it and after all earlier entries, None before that."""

    done: Moment | None = None


@dataclass(eq=False)
class Launch(Entry):
    """A launch on its stream: every program in a grid of this `shape` runs `body`. `number` counts the launches of its
    rank. `agent`: the number of its one program, if that is an agent of the copy engine. `last_first`: programs with
    the highest numbers begin first. `end`: the moment after the programs that have finished."""

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
    """Lets a stream go on once the present entries of other streams are done."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.start = reduce(Moment.join, [stream.end for stream in streams], Moment())
        self.before = [stream.entries[-1] for stream in streams if stream.entries]

    def end(self) -> Moment | None:
        """The moment after all these entries; None while some are not done."""
        ends = [entry.done for entry in self.before if entry.done]
        return reduce(Moment.join, ends, self.start) if len(ends) == len(self.before) else None


class Stream:
    """The entries of a stream that are not done. A launch runs while it is the first one. Hosts wait on `key`."""

    def __init__(self, rank: int, name: object, key: int) -> None:
        self.rank, self.name, self.key = rank, name, key
        self.entries: deque[Launch | Mark] = deque()
        self.end = Moment()

    def pop(self, end: Moment) -> None:
        """Takes off the first entry, which is done at `end`."""
        self.end = self.entries.popleft().done = self.end.join(end)
