"""Kernels as a person writes them by hand: ranks that push to their right neighbour, and what can go wrong there."""

import triton
import triton.language as tl


@triton.jit
def push(x, inboxes, signals, rank, WORLD: tl.constexpr, N: tl.constexpr, NOTIFY: tl.constexpr = True):
    """Every program stores N elements in the inbox of the rank to the right, and signals them."""
    right = (rank + 1) % WORLD
    there = tl.load(inboxes + right).to(x.dtype)
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(there + at, tl.load(x + at))
    if NOTIFY:
        tl.debug_barrier()
        tl.atomic_add(tl.load(signals + right).to(tl.pointer_type(tl.int32)), 1, sem="release", scope="sys")


@triton.jit
def take(inbox, signal, out, expected, N: tl.constexpr):
    """Reads the whole inbox, once it was signalled so often."""
    while tl.atomic_add(signal, 0, sem="acquire", scope="sys") < expected:
        pass
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + at, tl.load(inbox + at))


@triton.jit
def number(out, WIDTH: tl.constexpr):
    """Every program of a grid of three axes writes who it is."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(out + at, x + WIDTH * (y + WIDTH * z))
