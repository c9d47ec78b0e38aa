"""The happens-before order of a run: vector clocks and Lamport times of programs and hosts.

A strand (a program of a launch, or the host function of a rank) has its own order. Edges between strands come from
launches and streams, and from a release that an acquire reads: between ranks if both have scope "sys", within a rank if
both have at least scope "gpu". Relaxed operations make no edge.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tilelink.emulator.memory import Array
from tilelink.emulator.shadow import Cells

SYSTEM = -1
"""Stands for all ranks where a rank is expected."""


@dataclass(frozen=True)
class Moment:
    """A point in a run: everything in `clock` happened before it. `time` is its Lamport time."""

    clock: Array = field(default_factory=lambda: np.zeros(1, np.int32))
    time: int = 0

    def join(self, other: Moment) -> Moment:
        """The earliest moment after both."""
        return Moment(joined(self.clock, other.clock), max(self.time, other.time))


class Who(NamedTuple):
    """A program of a launch, or the `agent` that does a transfer for it. `number` counts the launches of the rank."""

    rank: int
    launch: str
    program: int = 0
    number: int = 0
    agent: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank} {self.launch}[{self.program}]"


class Strand:
    """A sequence of operations in program order. `clock[slot]` counts its own releases and launches."""

    __slots__ = ("clock", "slot", "time", "who")

    def __init__(self, who: Who, slot: int, start: Moment) -> None:
        self.who, self.slot = who, slot
        self.clock = joined(start.clock, np.zeros(slot + 1, np.int32))
        self.clock[slot] += 1
        self.time = start.time

    def now(self) -> Moment:
        """The moment after everything that the strand has done and seen so far."""
        return Moment(self.clock.copy(), self.time)

    def publish(self) -> Moment:
        """Returns this moment, for others to follow; the next operations of the strand are later."""
        moment = self.now()
        self.clock[self.slot] += 1
        return moment

    def follow(self, moment: Moment) -> None:
        """Orders the next operations of the strand after a moment."""
        if len(moment.clock) == len(self.clock):
            np.maximum(self.clock, moment.clock, out=self.clock)
        else:
            self.clock = joined(self.clock, moment.clock)
        self.time = max(self.time, moment.time)

    def follows(self, moment: Moment) -> bool:
        """Whether the strand is ordered after a moment."""
        known = len(moment.clock)
        return known <= len(self.clock) and bool((self.clock[:known] >= moment.clock).all())

    def after(self, slot: int, clock: int) -> bool:
        """Whether the strand is ordered after the operations of a slot's strand at the given clock."""
        return slot < len(self.clock) and self.clock[slot] >= clock


def joined(a: Array, b: Array) -> Array:
    """The elementwise maximum of two clocks; one may be shorter, without the newest strands."""
    if len(a) < len(b):
        a, b = b, a
    result = a.copy()
    np.maximum(result[: len(b)], b, out=result[: len(b)])
    return result


Released = dict[int, Moment]
"""The moments that a word of memory releases to acquires: per rank, and for all ranks (`SYSTEM`)."""


class Ordering:
    """Hands out strands and carries order from releases to acquires."""

    def __init__(self) -> None:
        self._slots: dict[Hashable, int] = {}
        self._released: list[Released] = [{}]

    def strand(self, who: Who, lane: Hashable, start: Moment) -> Strand:
        """Makes a strand that begins after `start`. Strands of one lane follow each other, so they share a slot."""
        return Strand(who, self._slots.setdefault(lane, len(self._slots)), start)

    def acquire(self, strand: Strand, cells: Cells, scope: str) -> None:
        """Orders the strand after the releases that the memory holds, as far as the scopes reach."""
        for state in cells.distinct("released"):
            released = self._released[state]
            for rank in _reached(strand.who.rank, scope):
                if rank in released:
                    strand.follow(released[rank])

    def release(self, strand: Strand, cells: Cells, scope: str, replaces: bool) -> None:
        """Makes memory release all that the strand did. A store `replaces` earlier releases; others keep them."""
        moment = strand.publish()

        def add(state: int) -> int:
            released = {} if replaces else dict(self._released[state])
            for rank in _reached(strand.who.rank, scope):
                released[rank] = released[rank].join(moment) if rank in released else moment
            self._released.append(released)
            return len(self._released) - 1

        cells.update("released", add)

    def forget(self, cells: Cells) -> None:
        """Ends the releases of memory that a store without release order has overwritten."""
        if cells.shadow.has("released"):
            cells.fill("released", 0)


def _reached(rank: int, scope: str) -> Iterable[int]:
    if scope == "sys":
        return rank, SYSTEM
    return (rank,) if scope == "gpu" else ()
