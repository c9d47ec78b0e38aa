"""Hopper's matrix instructions (wgmma), which keep sums in registers: for warps that multiply stages of a ring.

One product is under way while the next is begun. The barrier `free` of a stage therefore says that the stage before it
has been multiplied, also over the end of a tile.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from tilelink.backend.gluon.ring import claim_behind


@triton.constexpr_function
def _sums(shape, warps):
    """Layout of sums: warps lie one below the other as far as there are rows, 16 each, and then side by side."""
    down = min(warps, shape[0] // 16)
    across = warps // down
    return tl.NVMMADistributedLayout([3, 0], [down, across], [16, min(256, shape[1] // across), 16])


@gluon.jit
def claim(ready, free, step, size: tl.constexpr, num_stages: tl.constexpr):
    """Until the stage of a step is free, as the one that follows says; then so many bytes are to come into it."""
    return claim_behind(ready, free, step, step + 1, size, num_stages)


@gluon.jit
def sums(shape: tl.constexpr):
    """A block of sums, zero, as matrix instructions have it."""
    return tl.zeros(shape, tl.float32, _sums(shape, tl.num_warps()))


@gluon.jit
def multiply(left, right, acc, ready, free, stage, phase):
    """acc + left @ right, for blocks of a stage when that is ready. Afterwards this product is under way; the last one
    is done, and its stage free."""
    mbarrier.wait(ready.index(stage), phase)
    acc = warpgroup_mma_wait(1, deps=[warpgroup_mma(left, right, acc, is_async=True)])
    mbarrier.arrive(free.index(stage), count=1)
    return acc


@gluon.jit
def multiplied(acc):
    """The sums, when all products are done."""
    return warpgroup_mma_wait(0, deps=[acc])
