"""A transfer over the network: the places it goes between, what there is to know of it, and who does it.

An agent does it, in pieces, on two strands: one for what it does near the program that started it, one for what it
does far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilelink.emulator.memory import Array, strided
from tilelink.emulator.ordering import Moment, Strand
from tilelink.emulator.programs import Program

if TYPE_CHECKING:
    from tilelink.emulator.accesses import Accesses

PIECES = 2
"""In so many pieces a transfer reads and writes."""
Change = Callable[[Array], Any]
"""What an atomic makes of an old value; None leaves it."""


@dataclass(frozen=True)
class Place:
    """`count` elements in memory, `stride` elements apart."""

    address: int
    dtype: np.dtype[Any]
    count: int = 1
    stride: int = 1

    def pieces(self) -> Iterator[Place]:
        """Parts of it, in order."""
        length = max(-(-self.count // PIECES), 1)
        for first in range(0, self.count, length):
            address = self.address + first * self.stride * self.dtype.itemsize
            yield Place(address, self.dtype, min(length, self.count - first), self.stride)

    def pointers(self) -> Array:
        """The address of every element."""
        addresses = self.address + np.arange(self.count, dtype=np.int64) * (self.stride * self.dtype.itemsize)
        return addresses.view(np.uint64)

    def memory(self) -> Array:
        """The elements themselves."""
        return strided(self.address, self.dtype, self.count, self.stride)


@dataclass(frozen=True)
class Atomic:
    """What an atomic does to a word: what the execution calls it, its change, and to which others it is atomic."""

    kind: str
    change: Change
    domain: str


@dataclass
class Transfer:
    """A transfer under way. `issued`: the slot and the clock of the strand that started it, then. `delivers`: fences
    order it, as they do puts and atomics, and not what is started to be brought here. `fences`: the slots and clocks of
    the strands that fenced it. `read`, `end`: the moments at which its source was read, and at which it was complete.
    `value`: what it fetched."""

    pe: int
    context: int
    key: int
    issued: tuple[int, int]
    lane: object
    delivers: bool
    fences: list[tuple[int, int]] = field(default_factory=list)
    read: Moment | None = None
    end: Moment | None = None
    value: Array | None = None


class Agent:
    """Who does a transfer: a program with two strands in one slot, one for what it does near, one for far."""

    def __init__(self, accesses: Accesses, program: Program, near: Strand, far: Strand) -> None:
        self.accesses, self.program, self.near, self.far = accesses, program, near, far

    def go(self, strand: Strand) -> Moment:
        """What comes next is done on a strand, and is later than all before; the moment before it."""
        before = self.program.strand.publish()
        strand.clock[strand.slot] = self.program.strand.clock[strand.slot]
        self.program.strand = strand
        return before

    def read(self, source: Place) -> list[Array]:
        return [self._read(piece) for piece in source.pieces()]

    def _read(self, piece: Place) -> Array:
        self.accesses.pause()
        return self.accesses.load(piece.pointers(), None, None, piece.dtype, False, lambda: piece.memory().copy())

    def write(self, target: Place, values: list[Array]) -> None:
        for piece, block in zip(target.pieces(), values, strict=True):
            self.accesses.pause()
            memory = piece.memory()
            self.accesses.store(piece.pointers(), None, block, lambda m=memory, b=block: np.copyto(m, b))  # type: ignore[misc]

    def atomic(self, word: Place, atomic: Atomic, semantic: str) -> Array:
        memory = word.memory()

        def apply() -> Array:
            old = memory.copy()
            new = atomic.change(old)
            if new is not None:
                memory[:] = new
            return old

        self.accesses.pause()
        pointers = word.pointers()
        return self.accesses.atomic(atomic.kind, pointers, None, word.dtype, semantic, "sys", apply, atomic.domain)
