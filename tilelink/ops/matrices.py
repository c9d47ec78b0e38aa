"""Operators take tensors of any rank and spread any dimension of them; programs take matrices and spread their rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def as_rows(x: torch.Tensor, dim: int) -> torch.Tensor:
    """x as a matrix of its last dimension, its rows in the order in which `dim` comes first (if it is not the last)."""
    first = x if dim == x.dim() - 1 else x.movedim(dim, 0)
    return first.reshape(math.prod(first.shape[:-1]), first.shape[-1])


def of_rows(rows: torch.Tensor, shape: Sequence[int], dim: int) -> torch.Tensor:
    """Undoes `as_rows`: a tensor of this shape. In memory `dim` stays the first dimension."""
    if dim == len(shape) - 1:
        return rows.reshape(shape)
    return rows.reshape(shape[dim], *_others(shape, dim)).movedim(0, dim)


def resized(shape: Sequence[int], dim: int, n: int) -> list[int]:
    """The shape with n elements along `dim`."""
    return [n if d == dim else size for d, size in enumerate(shape)]


def times(lengths: Sequence[int], shape: Sequence[int], dim: int) -> list[int]:
    """Lengths along `dim` in rows of `as_rows`."""
    per = 1 if dim == len(shape) - 1 else math.prod(_others(shape, dim)[:-1])
    return [n * per for n in lengths]


def _others(shape: Sequence[int], dim: int) -> list[int]:
    return [n for d, n in enumerate(shape) if d != dim]
