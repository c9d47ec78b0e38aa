"""The function of a program's that makes means of sums over the ranks, in registers, before anything is rounded."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import triton
import triton.language as tl

from tilelink.frontend.kept import kept

PART = tl.constexpr(1.0)


def mean(total):  # type: ignore[no-untyped-def]
    return total * PART


@kept()
def mean_over(world: int) -> Any:
    """`mean` in a world, as the `epilogue` of a program: from the globals of a function Triton takes constants."""
    names = mean.__globals__ | {"PART": tl.constexpr(1 / world)}
    return triton.jit(FunctionType(mean.__code__, names, mean.__name__))
