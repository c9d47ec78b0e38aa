"""What the warps of a role that multiplies hand each other: a ring of blocks in shared memory, and barriers.

Barriers have phases, which end when one has arrived; waiting for the phase before the first returns at once. A stage of
the ring is `ready` when all its bytes have come. One product is under way while the next is begun, so the barrier
`free` of a stage says that the stage before it has been multiplied, also over the end of a tile. A tile is `stored`,
and then `told`. Functions of Hopper: its copy engine for tiles (TMA) and its matrix instructions (wgmma).
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.language import debug_barrier

_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # Triton 3.8 has given it another name


@triton.constexpr_function
def _sums(shape, warps):
    """Layout of sums: warps lie one below the other as far as there are rows, 16 each, and then side by side."""
    down = min(warps, shape[0] // 16)
    across = warps // down
    return tl.NVMMADistributedLayout([3, 0], [down, across], [16, min(256, shape[1] // across), 16])


@gluon.jit
def ring(blocks, num_stages: tl.constexpr):
    """Shared memory for so many blocks of a descriptor."""
    shape: tl.constexpr = blocks.block_type.shape
    return tl.allocate_shared_memory(blocks.dtype, [num_stages, shape[0], shape[1]], blocks.layout)


@gluon.jit
def barriers(number: tl.constexpr):
    """Barriers at which one arrives a phase."""
    made = tl.allocate_shared_memory(tl.int64, [number, 1], mbarrier.MBarrierLayout())
    for k in tl.static_range(number):
        mbarrier.init(made.index(k), count=1)
    return made


@gluon.jit
def end(barriers, number: tl.constexpr):
    """Barriers become memory again, when all warps have come together."""
    for k in tl.static_range(number):
        mbarrier.invalidate(barriers.index(k))


@gluon.jit
def place(step, num_stages: tl.constexpr):
    """The stage of a ring in which the blocks of a step lie, and the phase in which its barriers are."""
    count = tl.cast(step, tl.uint32)
    return tl.cast(count % num_stages, tl.int32), tl.cast(count // num_stages & 1, tl.int32)


@gluon.jit
def claim(ready, free, step, size: tl.constexpr, num_stages: tl.constexpr):
    """Until the stage of a step is free, as the one that follows says; then so many bytes are to come into it."""
    following, phase = place(step + 1, num_stages)
    mbarrier.wait(free.index(following), phase ^ 1)
    stage, _ = place(step, num_stages)
    mbarrier.expect(ready.index(stage), size)
    return stage


@gluon.jit
def fetch(blocks, at, ring, ready, stage):
    """Begins to load a block into a stage. What lies outside its tensor is zero."""
    _load(blocks, at, ready.index(stage), ring.index(stage))


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


@gluon.jit
def hand_over(stored, told, phase):
    """All warps have stored their part of a tile, for those that tell; once these have told the tile before."""
    mbarrier.wait(told.index(0), phase ^ 1)
    debug_barrier()
    mbarrier.arrive(stored.index(0), count=1)


@gluon.jit
def take_over(stored, phase):
    """Until a tile is stored, by other warps: what is released now comes after that."""
    mbarrier.wait(stored.index(0), phase)


@gluon.jit
def give_back(told):
    """A tile is told, and the next may be handed over."""
    mbarrier.arrive(told.index(0), count=1)
