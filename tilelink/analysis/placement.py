"""Placement: where a run's tensors and signals lie in a slot of the symmetric heap, and the bytes that they take."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilelink.frontend.arithmetic import evaluate
from tilelink.frontend.cells import cell_count
from tilelink.frontend.ir import RANKS_DIM, Tensor, TileProgram
from tilelink.frontend.sizes import Sizes
from tilelink.frontend.values import ITEM_SIZE

ALIGNMENT = 256
GPU_SIGNAL = 32
"""Bytes from one signal to the next on GPUs; on CPUs they lie side by side."""


def aligned(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Placement:
    """Where a run's tensors and signals lie, in bytes from the begin of their zones; how many signals a tensor has.
    `stage`: where blocks lie that are on their way to another node, in the zone for data. `data_bytes`, `signal_bytes`:
    bytes taken in each zone."""

    data: tuple[tuple[str, int], ...]
    signals: tuple[tuple[str, int, int], ...]
    stage: int
    data_bytes: int
    signal_bytes: int

    def data_of(self, tensor: str) -> int:
        return next(at for name, at in self.data if name == tensor)

    def signals_of(self, tensor: str) -> int:
        return next(at for name, at, _ in self.signals if name == tensor)


def shape_on(tensor: Tensor, sizes: Sizes, rank: int | None) -> tuple[int, ...]:
    """The shape of a rank's tensor; with rank None, the shape of the longest part."""
    lengths = dict(sizes.dims)
    parts = dict(sizes.parts)
    shape = []
    for k, d in enumerate(tensor.dims):
        if d == RANKS_DIM:
            shape.append(tensor.buffers if k == 0 and tensor.buffers else sizes.world)
        elif k == tensor.sharded:
            shape.append(max(parts[d]) if rank is None else parts[d][rank])
        else:
            shape.append(lengths[d])
    return tuple(shape)


def bytes_on(tensor: Tensor, sizes: Sizes) -> int:
    """Bytes of a tensor on the rank with the longest part."""
    return prod(shape_on(tensor, sizes, None)) * ITEM_SIZE[tensor.dtype]


def placed(program: TileProgram, sizes: Sizes, *, word: int = GPU_SIGNAL, stage: int = 0) -> Placement:
    """Lays a run out in a slot, one tensor after the other. `word`: bytes of a signal, by default on GPUs. `stage`:
    bytes for blocks on their way to another node."""
    data, data_bytes = [], 0
    for tensor in program.on_heap:
        data.append((tensor.name, data_bytes))
        data_bytes += aligned(bytes_on(tensor, sizes))
    signals, signal_bytes = [], 0
    for s in program.signals:
        cells = int(evaluate(cell_count(s), sizes.values))
        signals.append((s.tensor, signal_bytes, cells))
        signal_bytes += aligned(word * cells)
    return Placement(tuple(data), tuple(signals), data_bytes, data_bytes + aligned(stage), signal_bytes)
