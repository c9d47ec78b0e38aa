"""The kernels of the discipline "atomic": two ranks, or one, reach a word of rank 1 by atomics."""

from __future__ import annotations

import triton
import triton.language as tl

from tests.verification.signalling import at


@triton.jit
def two_additions(data, rank):
    """Ranks 0 and 2 add to an int."""
    if rank == 0:
        tl.atomic_add(at(data, 1), 1, sem="relaxed", scope="sys")  # one
    elif rank == 2:
        tl.atomic_add(at(data, 1), 2, sem="relaxed", scope="sys")  # other


@triton.jit
def addition_in_scope(data, rank, SCOPE: tl.constexpr):
    """Rank 0 adds to an int of rank 1's, which adds to it, too: reaching as far as its own GPU, or all of them."""
    if rank == 0:
        tl.atomic_add(at(data, 1), 1, sem="relaxed", scope="sys")  # one
    elif rank == 1:
        tl.atomic_add(at(data, 1), 2, sem="relaxed", scope=SCOPE)  # other


@triton.jit
def addition_and_fetch(data, out, rank, SECOND: tl.constexpr):
    """Rank 0 adds to an int; a rank, the same or another, fetches it."""
    if rank == 0:
        tl.atomic_add(at(data, 1), 1, sem="relaxed", scope="sys")  # one
    if rank == SECOND:
        tl.store(out, tl.atomic_add(at(data, 1), 0, sem="relaxed", scope="sys"))  # other


@triton.jit
def int_and_long(data, rank):
    """Ranks 0 and 2 add to a word, which one takes for an int and the other for a long."""
    if rank == 0:
        tl.atomic_add(at(data, 1), 1, sem="relaxed", scope="sys")  # one
    elif rank == 2:
        tl.atomic_add(at(data, 1, tl.int64), 1, sem="relaxed", scope="sys")  # other
