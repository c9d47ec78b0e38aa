"""Blackwell's matrix instructions (tcgen05), which keep sums in tensor memory: one warp issues the products of stages
of a ring, and other warps finish the sums.

There are two sums. One is read while the next tile is multiplied into the other. A sum is `full` when its products are
done, and `empty` when all warps have read it. Matrix instructions end in the order in which one thread issued them, so
the barrier behind the last stands for all. PTX requires a fence of tensor memory on both sides of a barrier where
threads hand a sum to each other.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.nvidia import blackwell
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma,
)
from triton.language import debug_barrier

from tilelink.backend.gluon import takes
from tilelink.backend.gluon.ring import claim_behind, place

SUMS = tl.constexpr(takes.SUMS)


@triton.constexpr_function
def _lies(shape):
    return TensorMemoryLayout((min(int(shape[0]), takes.LANES), int(shape[1])), col_stride=1)


@triton.constexpr_function
def _read(shape, layout, warps):
    """The layout of a sum as instructions read it. (Triton 3.8 has moved the function.)"""
    shape = [int(n) for n in shape]
    if hasattr(blackwell, "get_tmem_reg_layout"):
        return blackwell.get_tmem_reg_layout(tl.float32, shape, layout, warps)
    return blackwell.tensor_memory_descriptor_type(tl.float32, shape, layout, shape).get_reg_layout(warps)


@gluon.jit
def _fence(side: tl.constexpr):
    """Orders accesses of other threads to tensor memory "before" or "after" a barrier."""
    fence: tl.constexpr = "tcgen05.fence::" + side + "_thread_sync; mov.b32 $0, 0;"
    tl.inline_asm_elementwise(fence, "=r,~{memory}", [], dtype=tl.int32, is_pure=False, pack=1)


@gluon.jit
def accumulators(shape: tl.constexpr):
    """Tensor memory for the sums."""
    return allocate_tensor_memory(tl.float32, [SUMS, shape[0], shape[1]], _lies(shape))


@gluon.jit
def claim(ready, free, step, size: tl.constexpr, num_stages: tl.constexpr):
    """Waits until the stage of a step is free, and makes it expect `size` bytes."""
    return claim_behind(ready, free, step, step, size, num_stages)


@gluon.jit
def emptied(sums, empty, tile):
    """Waits until the sum of two tiles before is read, and returns its memory. The first product overwrites it."""
    number, phase = place(tile, SUMS)
    mbarrier.wait(empty.index(number), phase ^ 1)
    _fence("after")
    return sums.index(number)


@gluon.jit
def multiply(left, right, acc, adds, free, stage):
    """Issues acc + left @ right for blocks of a stage; left @ right if not `adds`. The stage is free when all its
    products are done."""
    tcgen05_mma(left, right, acc, use_acc=adds, mbarriers=[free.index(stage)])


@gluon.jit
def complete(full, tile):
    """Makes the sum of a tile full when all products that were issued are done."""
    number, _ = place(tile, SUMS)
    tcgen05_commit(full.index(number))


@gluon.jit
def until_full(full, tile):
    """Waits until the sums of a tile are full."""
    number, phase = place(tile, SUMS)
    mbarrier.wait(full.index(number), phase)
    _fence("after")


@gluon.jit
def of_tile(sums, tile):
    """The sum of a tile, read from its memory."""
    number, _ = place(tile, SUMS)
    memory = sums.index(number)
    return memory.load(_read(memory.shape, memory.layout, tl.num_warps()))


@gluon.jit
def or_zeros(total, made):
    """The sum of a tile if it was made; else zeros."""
    return tl.where(made, total, 0.0)


@gluon.jit
def finished(empty, tile):
    """Says that the sums of a tile are read: their memory is empty."""
    number, _ = place(tile, SUMS)
    _fence("before")
    debug_barrier()
    mbarrier.arrive(empty.index(number), count=1)
