"""Where rows of a route lie, for kernels: what tables of segments say."""

import triton
import triton.language as tl


@triton.jit
def segment_of(begins, row, first, count):
    """Which of `count` segments holds a row, counted from number `first`. `begins`: where each segment begins."""
    found = 0
    for k in range(1, count):
        found += (tl.load(begins + first + k) <= row).to(tl.int32)
    return found
