"""What the warps of a role that multiplies hand each other: a ring of blocks in shared memory, and barriers.

Barriers have phases, which end when one has arrived; waiting for the phase before the first returns at once. A stage of
the ring is `ready` when all its bytes have come, and then `free` when it is multiplied. A tile is `stored`, and then
`told`. The copy engine for tiles (TMA) loads. What multiplies stands in `wgmma.py` (Hopper) and `tcgen05.py`
(Blackwell).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language import debug_barrier

# Triton 3.8 has given them other names.
_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


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
def next_place(stage, phase, num_stages: tl.constexpr):
    """The stage and the phase of the step behind one."""
    last = stage == num_stages - 1
    return tl.where(last, 0, stage + 1), tl.where(last, phase ^ 1, phase)


@gluon.jit
def claim_behind(ready, free, step, freed, size: tl.constexpr, num_stages: tl.constexpr):
    """Until the stage of a step is free, as the barrier of the step `freed` says; then so many bytes are to come into
    it."""
    says, phase = place(freed, num_stages)
    mbarrier.wait(free.index(says), phase ^ 1)
    stage, _ = place(step, num_stages)
    mbarrier.expect(ready.index(stage), size)
    return stage


@gluon.jit
def fetch(blocks, at, ring, ready, stage):
    """Begins to load a block into a stage. What lies outside its tensor is zero."""
    _load(blocks, at, ready.index(stage), ring.index(stage))


@gluon.jit
def bring(ring, stage, blocks, at):
    """Begins to store what lies in a stage. What lies outside of the tensor is left out."""
    _store(blocks, at, ring.index(stage).reshape(blocks.block_type.shape))


@gluon.jit
def hand_over(stored, told, phase):
    """All warps have stored their part of a tile, for those that tell; once these have told the tile before."""
    until_told(told, phase)
    debug_barrier()
    mbarrier.arrive(stored.index(0), count=1)


@gluon.jit
def tile_out(blocks, shape: tl.constexpr):
    """Shared memory for a block that a descriptor stores, as a matrix."""
    layout: tl.constexpr = tl.NVMMASharedLayout.get_default_for(shape, blocks.dtype)
    return tl.allocate_shared_memory(blocks.dtype, [1, shape[0], shape[1]], layout)


@gluon.jit
def until_told(told, phase):
    """Until the tile before is told: its memory may be used again."""
    mbarrier.wait(told.index(0), phase ^ 1)


@gluon.jit
def lay_out(tile, value):
    """Lays a tile out in shared memory, for the copy engine to store it from there."""
    tile.index(0).store(value)
    fence_async_shared()


@gluon.jit
def send(tile, blocks, at):
    """Stores a tile that is laid out, from shared memory. Afterwards that may be used again, and the tile may not be
    complete."""
    bring(tile, 0, blocks, at)
    tma.store_wait(0)


@gluon.jit
def take_over(stored, phase):
    """Until a tile is stored, by other warps: what is released now comes after that."""
    mbarrier.wait(stored.index(0), phase)


@gluon.jit
def give_back(told):
    """A tile is told, and the next may be handed over."""
    mbarrier.arrive(told.index(0), count=1)
