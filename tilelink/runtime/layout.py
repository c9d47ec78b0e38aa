"""The symmetric heap of a lane: control words, then slots, each with a zone for signals and one for data.

All ranks lay it out alike, so an offset of one is an offset of all. Programs and sizes change from run to run, and the
data of a slot changes with them. The zone for signals holds only signals, which are zero between runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tilelink.analysis.placement import ALIGNMENT, Placement, aligned, placed
from tilelink.backend.targets import CPU, Target, portable
from tilelink.errors import HeapError, Site, counted
from tilelink.frontend.ir import TileProgram
from tilelink.frontend.sizes import Sizes

CONTROL_WORDS = portable.PROGRESS.value
MAX_SLOTS = 8
SIGNALS, CONTROL = "signals of ", "control words"
"""Names of memory regions that are not tensors; names of tensors have no spaces."""
CPU_HEAP, CPU_SIGNALS = 64 << 20, 256 << 10
CUDA_HEAP, CUDA_SIGNALS = 512 << 20, 4 << 20
"""Default bytes of a rank's heap, and for the signals of a slot."""
assert portable.SLOT_LEFT.value + MAX_SLOTS <= portable.POISON.value, "the words of the slots reach into the poison"
assert portable.RANK.value < CONTROL_WORDS, "what bounds the waits reaches into the words of progress"


def heap_in(memory: torch.Tensor) -> torch.Tensor:
    """The heap in `memory`, with an aligned base; `memory` has `ALIGNMENT` bytes more. The heap is filled with NaN of
    every dtype, so that elements that nobody wrote show."""
    skip = -memory.data_ptr() % ALIGNMENT
    return memory[skip : skip + len(memory) - ALIGNMENT].fill_(0xFF)


@dataclass(frozen=True)
class HeapLayout:
    """Where zones lie, in bytes from the beginning of the heap."""

    world: int
    heap_bytes: int
    slots: int
    signal_bytes: int

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= MAX_SLOTS:
            raise HeapError(f"slots={self.slots}; it must be from 1 to {MAX_SLOTS}", Site.of_user())
        if self.signal_bytes < ALIGNMENT or self.signal_bytes % ALIGNMENT:
            raise HeapError(
                f"signal_bytes={self.signal_bytes}; it must be a multiple of {ALIGNMENT}, not 0", Site.of_user()
            )
        least = self.control_bytes + self.slots * (self.signal_bytes + ALIGNMENT)
        if self.heap_bytes < least:
            raise HeapError(
                f"a heap of {self.heap_bytes} bytes is too small for {counted(self.slots, 'slot')} with "
                f"{self.signal_bytes} bytes of signals each, and data; at least {least}",
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


def place(program: TileProgram, sizes: Sizes, heap: HeapLayout, target: Target = CPU, stage: int = 0) -> Placement:
    """Lays a run out in a slot, with `stage` bytes for blocks that are on their way to another node. Raises HeapError,
    with the bytes needed, if it does not fit."""
    placement = placed(program, sizes, word=target.signal_bytes, stage=stage)
    at, signals_end = placement.data_bytes, placement.signal_bytes
    if at > heap.data_bytes or signals_end > heap.signal_bytes:
        names = ", ".join(n for n, _ in placement.data)
        slot = at + max(signals_end, heap.signal_bytes) + ALIGNMENT
        raise HeapError(
            f"the symmetric heap is too small for {program.name} at {dict(sizes.dims)} on "
            f"{counted(sizes.world, 'rank')}: a slot needs {at} bytes for {names} and {signals_end} for signals; it "
            f"has {heap.data_bytes} and {heap.signal_bytes}. Make the world with "
            f"heap_bytes={heap.control_bytes + heap.slots * slot}"
            + (f" and signal_bytes={signals_end}" if signals_end > heap.signal_bytes else "")
            + "; for operators, tilelink.ops.lane(group, heap_bytes=...) before the first call",
            Site.of_user(),
        )
    return placement
