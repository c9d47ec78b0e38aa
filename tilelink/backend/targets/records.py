"""What workers write who record times: two words a record, what and when. Targets differ in their clock alone."""

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
