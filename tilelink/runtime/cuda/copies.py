"""Copies of a region as the copy engine takes them: rows of bytes, with a pitch between rows.

torch copies a region that is not contiguous by a kernel. The kernel needs an SM, and CUDA may load it when it is first
used. Neither is allowed while other kernels wait for the copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch


@dataclass(frozen=True)
class RowCopy:
    """`height` rows of `width` bytes. `source`, `target`: addresses; pitches are bytes from row to row."""

    source: int
    source_pitch: int
    target: int
    target_pitch: int
    width: int
    height: int


def row_copies(source: torch.Tensor, target: torch.Tensor) -> Iterator[RowCopy]:
    """Yields the row copies that make up `target.copy_(source)`, for tensors of one shape and dtype; a single one if
    both lie in rows."""
    assert source.shape == target.shape and source.dtype == target.dtype, (source.shape, target.shape)
    if not target.numel():
        return
    size = target.element_size()
    dims = _merged([
        (n, s * size, t * size)
        for n, s, t in zip(target.shape, source.stride(), target.stride(), strict=True) if n > 1
    ])  # fmt: skip
    width = size
    if dims and dims[-1][1:] == (size, size):
        width *= dims.pop()[0]
    height, source_pitch, target_pitch = dims.pop() if dims else (1, width, width)
    for at in product(*(range(n) for n, _, _ in dims)):
        first, second = (sum(k * d[side] for k, d in zip(at, dims, strict=True)) for side in (1, 2))
        yield RowCopy(
            source.data_ptr() + first, source_pitch, target.data_ptr() + second, target_pitch, width, height
        )


def _merged(dims: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The length and both strides of as few dimensions as possible, outermost first."""
    found: list[tuple[int, int, int]] = []
    for n, source, target in sorted(dims, key=lambda d: -d[2]):
        if found and found[-1][1:] == (n * source, n * target):
            n *= found.pop()[0]
        found.append((n, source, target))
    return found
