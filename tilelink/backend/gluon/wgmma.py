"""Hopper's matrix instructions (wgmma), which keep sums in registers, for warps that multiply stages of a ring.

One product is under way while the next is begun. The barrier `free` of a stage therefore says that the stage before it
has been multiplied, also across the end of a tile.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from tilelink.backend.gluon.ring import claim_behind


@triton.constexpr_function
def _sums(shape, warps):
    """The layout of sums: warps lie one below the other as far as there are rows, 16 each, and then side by side."""
    down = min(warps, shape[0] // 16)
    across = warps // down
    return tl.NVMMADistributedLayout([3, 0], [down, across], [16, min(256, shape[1] // across), 16])


@gluon.jit
def claim(ready, free, step, size: tl.constexpr, num_stages: tl.constexpr):
    """Waits until the stage of a step is free, by the barrier of the next step, and makes it expect `size` bytes."""
    return claim_behind(ready, free, step, step + 1, size, num_stages)


@gluon.jit
def sums(shape: tl.constexpr):
    """A block of zeros, in the layout of sums of matrix instructions."""
    return tl.zeros(shape, tl.float32, _sums(shape, tl.num_warps()))


@gluon.jit
def multiply(left, right, acc):
    """Begins acc + left @ right for blocks of a stage. The product before is then done; this one is under way."""
    return warpgroup_mma_wait(1, deps=[warpgroup_mma(left, right, acc, is_async=True)])


@gluon.jit
def give_back_stage(free, stage):
    """Says that the stage before is multiplied."""
    mbarrier.arrive(free.index(stage), count=1)


@gluon.jit
def multiplied(acc):
    """Waits until all products are done, and returns the sums."""
    return warpgroup_mma_wait(0, deps=[acc])
