"""Whether a result is right: relative RMS against float64 of the rounded inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

LIMITS = {"float32": 1e-6, "float16": 4e-4, "bfloat16": 2.5e-3}
"""Each lets rounding to nearest pass; stores that truncate and sums in low precision exceed it."""
FEW = 32
"""Of fewer results the rounding errors do not average out, and their RMS says little."""


def relative_rms(results: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> float:
    """Of the rank that is furthest off. Infinite where a result has another shape, or a value that is no number."""
    return max(relative_rms_of_all([y], [e]) for y, e in zip(results, right, strict=True))


def relative_rms_of_all(results: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> float:
    """Of all ranks together. Infinite where a result has another shape, or a value that is no number."""
    pairs = list(zip(results, right, strict=True))
    if not all(y.shape == e.shape and bool(torch.isfinite(y).all()) for y, e in pairs):
        return float("inf")
    wrong = sum(float((y.double() - e).square().sum()) for y, e in pairs)
    scale = sum(float(e.square().sum()) for e in right)
    return (wrong / scale) ** 0.5 if scale else float(wrong > 0)


def scatter(n: int) -> float:
    """By how much an RMS of n rounding errors may be more than that of many. Fewer than FEW results may all be small
    differences of large numbers."""
    return 10 if n < FEW else 1 + 3 / (2 * n) ** 0.5
