"""A copy of a region as the copy engine takes it: rows of bytes, so many bytes apart.

torch copies a region that is not contiguous by a kernel, which needs an SM, and which CUDA may load when it is first
used: neither may be where kernels wait for the copy.
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
    """The copies of which `target.copy_(source)` is made, of tensors of one shape and dtype; one where both lie in
    rows."""
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
    """Length and both strides of each dimension, outermost first, as few as there can be."""
    found: list[tuple[int, int, int]] = []
    for n, source, target in sorted(dims, key=lambda d: -d[2]):
        if found and found[-1][1:] == (n * source, n * target):
            n *= found.pop()[0]
        found.append((n, source, target))
    return found
