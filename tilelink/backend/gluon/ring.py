"""The ring of blocks in shared memory, and the barriers, that the warps of a role that multiplies hand each other.

A phase of a barrier ends when all have arrived that it counts, mostly one; a wait for the phase before the first
returns at once. A stage of the ring is `ready` when all its bytes have come, and then `free` when it is multiplied. A
tile is `stored`, and then `told`. The copy engine for tiles (TMA) loads; `wgmma.py` (Hopper) and `tcgen05.py`
(Blackwell) multiply.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language import debug_barrier

# Triton 3.8 has given them other names.
_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def ring(blocks, shape: tl.constexpr, num_stages: tl.constexpr):
    """Shared memory for `num_stages` blocks of a descriptor, as matrices of a shape."""
    layout: tl.constexpr = tl.NVMMASharedLayout.get_default_for(shape, blocks.dtype)
    return tl.allocate_shared_memory(blocks.dtype, [num_stages, shape[0], shape[1]], layout)


@gluon.jit
def barriers(number: tl.constexpr, arrivals: tl.constexpr = 1):
    """Barriers, each complete after so many `arrivals`."""
    made = tl.allocate_shared_memory(tl.int64, [number, 1], mbarrier.MBarrierLayout())
    for k in tl.static_range(number):
        mbarrier.init(made.index(k), count=arrivals)
    return made


@gluon.jit
def end(barriers, number: tl.constexpr):
    """Turns barriers back into plain memory, when all warps have come together."""
    for k in tl.static_range(number):
        mbarrier.invalidate(barriers.index(k))


@gluon.jit
def place(step, num_stages: tl.constexpr):
    """The stage of a ring that holds the blocks of a step, and the phase of its barriers."""
    count = tl.cast(step, tl.uint32)
    return tl.cast(count % num_stages, tl.int32), tl.cast(count // num_stages & 1, tl.int32)


@gluon.jit
def next_place(stage, phase, num_stages: tl.constexpr):
    """The stage and the phase of the next step."""
    last = stage == num_stages - 1
    return tl.where(last, 0, stage + 1), tl.where(last, phase ^ 1, phase)


@gluon.jit
def claim_behind(ready, free, step, freed, size: tl.constexpr, num_stages: tl.constexpr):
    """Waits until the stage of a step is free, by the barrier of step `freed`, and makes the stage expect `size`
    bytes."""
    says, phase = place(freed, num_stages)
    mbarrier.wait(free.index(says), phase ^ 1)
    stage, _ = place(step, num_stages)
    mbarrier.expect(ready.index(stage), size)
    return stage


@gluon.jit
def fetch(blocks, at, ring, ready, stage):
    """Begins to load a block into a stage. Elements outside the tensor are zero."""
    _load(blocks, at, ready.index(stage), ring.index(stage).reshape(blocks.block_type.shape))


@gluon.jit
def until_ready(ready, stage, phase):
    """Waits until the blocks of a stage have come."""
    mbarrier.wait(ready.index(stage), phase)


@gluon.jit
def bring(ring, stage, blocks, at):
    """Begins to store the block in a stage. Elements outside the tensor are left out."""
    _store(blocks, at, ring.index(stage).reshape(blocks.block_type.shape))


@gluon.jit
def hand_over(stored, told, phase):
    """Hands a tile that all these warps have stored to the warps that tell, when those have told the tile before."""
    until_told(told, phase)
    debug_barrier()
    mbarrier.arrive(stored.index(0), count=1)


@gluon.jit
def tile_out(blocks, shape: tl.constexpr):
    """Shared memory for a block that a descriptor stores, as a matrix."""
    return ring(blocks, shape, 1)


@gluon.jit
def until_told(told, phase):
    """Waits until the tile before is told, so that its memory may be used again."""
    mbarrier.wait(told.index(0), phase ^ 1)


@gluon.jit
def lay_out(tile, value):
    """Lays a tile out in shared memory, for the copy engine to store it from there."""
    tile.index(0).store(value)
    fence_async_shared()


@gluon.jit
def send(tile, blocks, at):
    """Stores a tile from shared memory. Afterwards the shared memory may be used again, but the store may not be
    complete."""
    bring(tile, 0, blocks, at)
    tma.store_wait(0)


@gluon.jit
def take_over(stored, phase):
    """Waits until other warps have stored a tile. A release after this comes after their stores."""
    mbarrier.wait(stored.index(0), phase)


@gluon.jit
def give_back(told):
    """Says that a tile is told: the next may be handed over."""
    mbarrier.arrive(told.index(0), count=1)
