"""Whether a result is right: relative RMS against float64 of the rounded inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

LIMITS = {"float32": 1e-6, "float16": 4e-4, "bfloat16": 2.5e-3}
"""Each lets rounding to nearest pass; stores that truncate and sums in low precision exceed it."""


def relative_rms(results: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> float:
    """Of the rank that is furthest off. Infinite where a result has another shape, or a value that is no number."""
    return max(map(_of_rank, results, right))


def _of_rank(result: torch.Tensor, right: torch.Tensor) -> float:
    if result.shape != right.shape or not bool(torch.isfinite(result).all()):
        return float("inf")
    off = torch.linalg.vector_norm(result.double() - right)
    return float(off / torch.linalg.vector_norm(right))
