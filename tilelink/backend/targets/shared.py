"""What all targets have alike: where rows of a route lie, by tables of segments; and what workers write who record
times, two words a record, what and when. (Targets differ in their clock alone.)"""

import triton
import triton.language as tl

# A record of the beginning of a tile says its number, behind that of its role; the others say one of these.
TILE_ENDS = tl.constexpr(-1)
WAIT_BEGINS = tl.constexpr(-2)
WAIT_ENDS = tl.constexpr(-3)


@triton.jit
def stamp(stamps, what, time):
    """Records what begins or ends, and when. Returns where the next record goes."""
    tl.store(stamps, what)
    tl.store(stamps + 1, time)
    return stamps + 2


@triton.jit
def segment_of(begins, row, first, count):
    """Which of `count` segments holds a row, counted from number `first`. `begins`: where each segment begins."""
    found = 0
    for k in range(1, count):
        found += (tl.load(begins + first + k) <= row).to(tl.int32)
    return found
