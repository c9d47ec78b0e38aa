"""Primitives that all targets share: they read running tables, report rows without room, and record times. A record of
a worker is two words: what, and when. (Only the clock differs between targets.)"""

import triton
import triton.language as tl

from tilelink.backend.targets.portable import HOST, REFUSED

# The record of the beginning of a tile has the numbers of its role and of the tile; other records have one of these.
TILE_ENDS = tl.constexpr(-1)
WAIT_BEGINS = tl.constexpr(-2)
WAIT_ENDS = tl.constexpr(-3)
STEPS = tl.constexpr(128)
"""Entries of a running table that are compared at a time."""
MOST = tl.constexpr(2**20)
"""The most steps of a row of such a table: a search for a block of values halves them 20 times."""


@triton.jit
def stamp(stamps, what, time):
    """Records what begins or ends, and when. Returns where the next record goes."""
    tl.store(stamps, what)
    tl.store(stamps + 1, time)
    return stamps + 2


@triton.jit
def segment_of(begins, value, first, count):
    """The step of a running table in which a value lies. The table's row has `count` steps from entry `first` on; the
    result is counted from there. `value`: an integer, or a block of integers."""
    value = tl.cast(value, tl.int32)  # the number of a tile may be a Python integer
    found = value * 0
    if value.type.is_block():  # by halving, in few registers
        half = count * 0 + MOST // 2
        for _ in range(20):
            step = found + half
            half = half // 2
            begin = tl.load(begins + first + tl.minimum(step, count - 1))
            found = tl.where((step < count) & (begin <= value), step, found)
    else:
        for k in range(1, count, STEPS):
            steps = k + tl.arange(0, STEPS)
            begin = tl.load(begins + first + steps, mask=steps < count, other=2147483647)
            found += tl.sum((begin <= value).to(tl.int32), 0)
    return found


@triton.jit
def picked(rows, count, what: tl.constexpr):
    """The numbers of rows that integers pick, -1 where an integer is no row of `count`. On a CPU such an integer is an
    error, unless it is -1. If there are no rows at all, because the run has no room for any, nothing is picked."""
    there = (rows >= 0) & (rows < count)
    tl.device_assert(there | (rows == -1) | (count == 0), what)
    return tl.where(there, rows, -1)


@triton.jit
def one_of(blocks, number):
    """One of several descriptors, by its number."""
    chosen = blocks[0]
    for k in tl.static_range(1, len(blocks)):
        if number == k:
            chosen = blocks[k]
    return chosen


@triton.jit
def refuse(control, run):
    """Tells the host that the rows of a run are left out, because there is no room for them."""
    tl.store(control + REFUSED, run + 1)
    host = tl.load(control + HOST)
    if host != 0:
        tl.store(host.to(tl.pointer_type(tl.int64)), 1)
