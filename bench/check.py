"""Checks results by their relative RMS against float64, computed from the rounded inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

LIMITS = {"float32": 1e-6, "float16": 4e-4, "bfloat16": 2.5e-3}
"""The largest relative RMS. Rounding to nearest stays below; truncating stores and sums in low precision exceed it."""
LIMIT_OF = {getattr(torch, name): limit for name, limit in LIMITS.items()}
"""The same, by dtype."""
FEW = 32
"""With fewer results than this, rounding errors do not average out, and the RMS says little."""


def relative_rms(results: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> float:
    """Returns the largest error of a rank. It is infinite if a result has a wrong shape, or a value is not finite."""
    return max(relative_rms_of_all([y], [e]) for y, e in zip(results, right, strict=True))


def relative_rms_of_all(results: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> float:
    """Returns the error of all ranks together; infinite if a result has a wrong shape, or a value is not finite."""
    pairs = list(zip(results, right, strict=True))
    if not all(y.shape == e.shape and bool(torch.isfinite(y).all()) for y, e in pairs):
        return float("inf")
    wrong = sum(float((y.double() - e).square().sum()) for y, e in pairs)
    scale = sum(float(e.square().sum()) for e in right)
    return (wrong / scale) ** 0.5 if scale else float(wrong > 0)


def scatter(n: int) -> float:
    """Returns by which factor the RMS of n rounding errors may exceed the RMS of many. With fewer than FEW results, all
    may be small differences of large numbers."""
    return 10 if n < FEW else 1 + 3 / (2 * n) ** 0.5
