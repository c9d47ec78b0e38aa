"""The symmetric heap of a lane: control words, then slots, each with a zone for signals and one for data.

All ranks lay it out alike, so an offset of one is an offset of all. Programs and sizes change from run to run, and what
a slot holds with them; the zone of the signals holds nothing but signals, which are zero between runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilelink.backend.targets import CPU, Target, portable
from tilelink.errors import HeapError, Site
from tilelink.frontend.expressions import evaluate
from tilelink.frontend.ir import RANKS_DIM, Tensor, TileProgram
from tilelink.frontend.signals import cell_count
from tilelink.frontend.sizes import Sizes
from tilelink.frontend.values import ITEM_SIZE

ALIGNMENT = 256
CONTROL_WORDS = portable.PROGRESS.value
MAX_SLOTS = 8
assert portable.SLOT_LEFT.value + MAX_SLOTS <= portable.POISON.value, "the words of the slots reach into the poison"
assert portable.RANK.value < CONTROL_WORDS, "what bounds the waits reaches into the words of progress"


def aligned(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class HeapLayout:
    """Where zones lie, in bytes from the beginning of the heap."""

    world: int
    heap_bytes: int
    slots: int
    signal_bytes: int

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= MAX_SLOTS:
            raise HeapError(f"{self.slots} slots: from 1 to {MAX_SLOTS}", Site.of_user())
        if self.signal_bytes < ALIGNMENT or self.signal_bytes % ALIGNMENT:
            raise HeapError(f"{self.signal_bytes} bytes of signals: a multiple of {ALIGNMENT}", Site.of_user())
        least = self.control_bytes + self.slots * (self.signal_bytes + ALIGNMENT)
        if self.heap_bytes < least:
            raise HeapError(
                f"a heap of {self.heap_bytes} bytes is too small: {self.slots} slots with {self.signal_bytes} bytes of "
                f"signals each leave nothing for data; at least {least}",
                Site.of_user(),
            )

    @property
    def control_bytes(self) -> int:
        return aligned(8 * (CONTROL_WORDS + self.world))

    @property
    def slot_bytes(self) -> int:
        return (self.heap_bytes - self.control_bytes) // self.slots // ALIGNMENT * ALIGNMENT

    @property
    def data_bytes(self) -> int:
        """Bytes for data in a slot."""
        return self.slot_bytes - self.signal_bytes

    def signals_at(self, slot: int) -> int:
        return self.control_bytes + slot * self.slot_bytes

    def data_at(self, slot: int) -> int:
        return self.signals_at(slot) + self.signal_bytes


@dataclass(frozen=True)
class Placement:
    """Where a run's tensors and signals lie, in bytes from the zones' beginnings; how many signals a tensor has.
    `stage`: where the workers' blocks lie that are on their way to another node, among the data."""

    data: tuple[tuple[str, int], ...]
    signals: tuple[tuple[str, int, int], ...]
    stage: int

    def data_of(self, tensor: str) -> int:
        return next(at for name, at in self.data if name == tensor)

    def signals_of(self, tensor: str) -> int:
        return next(at for name, at, _ in self.signals if name == tensor)


def shape_on(tensor: Tensor, sizes: Sizes, rank: int | None) -> tuple[int, ...]:
    """The shape of a rank's tensor; with rank None, of the longest part."""
    lengths = dict(sizes.dims)
    parts = dict(sizes.parts)
    shape = []
    for k, d in enumerate(tensor.dims):
        if d == RANKS_DIM:
            shape.append(sizes.world)
        elif k == tensor.sharded:
            shape.append(max(parts[d]) if rank is None else parts[d][rank])
        else:
            shape.append(lengths[d])
    return tuple(shape)


def place(program: TileProgram, sizes: Sizes, heap: HeapLayout, target: Target = CPU, stage: int = 0) -> Placement:
    """Lays a run out in a slot, with `stage` bytes for blocks that are on their way to another node. Raises HeapError
    where it does not fit, with what it needs."""
    data, at = [], 0
    for tensor in program.on_heap:
        data.append((tensor.name, at))
        at += aligned(prod(shape_on(tensor, sizes, None)) * ITEM_SIZE[tensor.dtype])
    at += aligned(stage)
    signals, signals_end = [], 0
    for s in program.signals:
        cells = int(evaluate(cell_count(s), sizes.values))
        signals.append((s.tensor, signals_end, cells))
        signals_end += aligned(target.signal_bytes * cells)
    if at > heap.data_bytes or signals_end > heap.signal_bytes:
        names = ", ".join(n for n, _ in data)
        slot = at + max(signals_end, heap.signal_bytes) + ALIGNMENT
        raise HeapError(
            f"the symmetric heap is too small for {program.name} at {dict(sizes.dims)} on {sizes.world} ranks: a slot "
            f"needs {at} bytes for {names} and {signals_end} for signals; it has {heap.data_bytes} and "
            f"{heap.signal_bytes}. Make the world with heap_bytes={heap.control_bytes + heap.slots * slot}"
            + (f" and signal_bytes={signals_end}" if signals_end > heap.signal_bytes else ""),
            Site.of_user(),
        )
    return Placement(tuple(data), tuple(signals), at - aligned(stage))
