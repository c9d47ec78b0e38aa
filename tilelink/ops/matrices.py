"""Operators spread any dimension of a tensor; programs spread the rows of a matrix. These functions convert."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def as_rows(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Returns x as a matrix whose columns are x's last dimension. Rows go by `dim` first, unless `dim` is the last."""
    if x.dim() == 2:
        return x
    first = x if dim == x.dim() - 1 else x.movedim(dim, 0)
    return first.reshape(math.prod(first.shape[:-1]), first.shape[-1])


def of_rows(rows: torch.Tensor, shape: Sequence[int], dim: int) -> torch.Tensor:
    """Undoes `as_rows`: returns a tensor of this shape. In memory `dim` stays the first dimension."""
    if len(shape) == 2:
        return rows
    if dim == len(shape) - 1:
        return rows.reshape(shape)
    return rows.reshape(shape[dim], *_others(shape, dim)).movedim(0, dim)


def resized(shape: Sequence[int], dim: int, n: int) -> list[int]:
    """Returns the shape with n elements along `dim`."""
    return [n if d == dim else size for d, size in enumerate(shape)]


def times(lengths: Sequence[int], shape: Sequence[int], dim: int) -> list[int]:
    """Returns lengths along `dim`, converted to numbers of rows of `as_rows`."""
    per = 1 if len(shape) == 2 or dim == len(shape) - 1 else math.prod(_others(shape, dim)[:-1])
    return [n * per for n in lengths]


def _others(shape: Sequence[int], dim: int) -> list[int]:
    return [n for d, n in enumerate(shape) if d != dim]
