"""The kernels of the discipline "atomic": two ranks, or one, reach a word of rank 1 by atomics."""

from __future__ import annotations

import triton
import triton.language as tl

from tests.programs.signalling import at
from tilelink.emulator import shmem


@triton.jit
def additions(remote, rank, FIRST: tl.constexpr, SECOND: tl.constexpr):
    """Ranks 0 and 2 add to an int over the network, each in a context."""
    if rank == 0:
        shmem.atomic_add(remote, 1, 1, ctx=FIRST)  # one
    elif rank == 2:
        shmem.atomic_add(remote, 1, 1, ctx=SECOND)  # other
    shmem.quiet(ctx=FIRST)
    shmem.quiet(ctx=SECOND)


@triton.jit
def additions_on_two_ways(remote, remote_of_all, rank):
    """Rank 0 adds to an int over the network, rank 2 through mapped memory."""
    if rank == 0:
        shmem.atomic_add(remote, 1, 1)  # one
        shmem.quiet()
    elif rank == 2:
        tl.atomic_add(at(remote_of_all, 1), 1, sem="relaxed", scope="sys")  # other


@triton.jit
def addition_and_fetch(remote, out, rank, SECOND: tl.constexpr):
    """Rank 0 adds to an int; a rank, the same or another, fetches it."""
    if rank == 0:
        shmem.atomic_add(remote, 1, 1)  # one
    if rank == SECOND:
        tl.store(out, shmem.atomic_fetch(remote, 1))  # other
    shmem.quiet()


@triton.jit
def set_as_double_and_long(remote_long, rank):
    """Ranks 0 and 2 set a word of 8 bytes, as one type and as another."""
    if rank == 0:
        shmem.atomic_set(remote_long.to(tl.pointer_type(tl.float64)), 2.0, 1)  # one
    elif rank == 2:
        shmem.atomic_set(remote_long, 3, 1)  # other
    shmem.quiet()


@triton.jit
def add_as_int_and_long(remote_long, rank):
    """Ranks 0 and 2 add to a word of 8 bytes, of which one takes the half."""
    if rank == 0:
        shmem.atomic_add(remote_long.to(tl.pointer_type(tl.int32)), 1, 1)  # one
    elif rank == 2:
        shmem.atomic_add(remote_long, 1, 1)  # other
    shmem.quiet()


@triton.jit
def set_as_int_and_float(remote, rank, SECOND: tl.constexpr):
    """A word is set as an int by rank 0, and as a float by a rank, the same or another."""
    if rank == 0:
        shmem.atomic_set(remote, 1, 1)  # one
    if rank == SECOND:
        shmem.atomic_set(remote.to(tl.pointer_type(tl.float32)), 2.1, 1)  # other
    shmem.quiet()
