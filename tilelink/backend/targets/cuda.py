"""Primitives for NVIDIA GPUs, in PTX: the forms that Triton's passes leave intact (docs/targets.md).

In a wait, one thread of the block polls without order. After the poll every thread acquires once. If the TMA reads what
the wait guards, a proxy fence follows, because the TMA is another proxy. The zero that a wait returns is computed from
the acquired word, in a way that no compiler sees through. An address with this zero added can't be moved before the
wait. In a notification, one thread releases after a barrier of the block.
"""

import triton
import triton.language as tl

from tilelink.backend.targets import portable
from tilelink.backend.targets.multimem import by_one_thread, multicast_notify, multicast_store, multicast_sum  # noqa: F401, kernels import them from here
from tilelink.backend.targets.polling import polling
from tilelink.backend.targets.portable import POISON, PROGRESS, RUN, SLOT_LEFT, alive, last_out, peer  # noqa: F401, kernels import them from here


@triton.jit
def _zero(seen):
    """0, made in a way that no compiler sees through."""
    return tl.inline_asm_elementwise("and.b32 $0, $1, 0;", "=r,r", [seen], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _until(control, word, expected, scope: tl.constexpr, lanes: tl.constexpr, fence: tl.constexpr):
    """Polls, acquires, and returns the zero that depends on the acquired word."""
    bits: tl.constexpr = word.dtype.scalar.element_ty.primitive_bitwidth
    asm: tl.constexpr = polling(bits, scope, lanes, fence)
    constraints: tl.constexpr = "=r,l,l,l,~{memory}" if bits == 64 else "=r,l,r,l,~{memory}"
    least = tl.cast(expected, word.dtype.scalar.element_ty)
    operands = [word, least, control.to(tl.int64)]
    return _zero(tl.inline_asm_elementwise(asm, constraints, operands, dtype=tl.int32, is_pure=False, pack=1))


@triton.jit
def tell(heaps, control, rank, progress, world: tl.constexpr):
    """Tells every peer this rank's progress: one release, then a store to each peer."""
    release: tl.constexpr = by_one_thread("fence.acq_rel.sys;")
    tl.inline_asm_elementwise(release, "=r,~{memory}", [], dtype=tl.int32, is_pure=False, pack=1)
    store: tl.constexpr = by_one_thread("st.relaxed.sys.global.s64 [$1], $2;")
    for other in range(world):
        word = peer(heaps, other, 0, tl.int64) + PROGRESS + rank
        tl.inline_asm_elementwise(
            store, "=r,l,l,~{memory}", [word, progress], dtype=tl.int32, is_pure=False, pack=1
        )


enter, leave = portable.over(globals(), portable.enter, portable.leave)


@triton.jit
def wait(control, word, expected, scope: tl.constexpr, tma: tl.constexpr = False):
    """Waits until the word is at least `expected`, with acquire order, for all threads. Returns 0, unknown to the
    compiler: added to an address or a coordinate, it makes the load depend on the wait."""
    return _until(control, word, expected, scope, "one", tma)


@triton.jit
def wait_all(control, words, expected, scope: tl.constexpr, tma: tl.constexpr = False):
    """The same as `wait` for a block of words, one for each thread of a warp. The barrier stands there because a thread
    acquires only some words, and other threads read what these guard."""
    seen = _until(control, words, expected, scope, "all", tma)
    tl.debug_barrier()
    return tl.sum(seen, 0)


@triton.jit
def wait_some(control, first, words, least, expected, scope: tl.constexpr, tma: tl.constexpr = False):
    """Waits until the word `first` is at least `least`. Returns the 0 of `wait`, and how many consecutive words of a
    block have come, from its first on, which is `first`: what they guard may be read, too. The block has a word for
    each thread: all threads have to find the same number, so no two look at one word."""
    asm: tl.constexpr = polling(32, scope, "first", tma)
    operands = [first, tl.cast(least, tl.int32), control.to(tl.int64), words]
    seen = tl.inline_asm_elementwise(asm, "=r,l,r,l,l,~{memory}", operands, dtype=tl.int32, is_pure=False, pack=1)
    some: tl.constexpr = words.shape[0]
    count = tl.min(tl.where(seen < expected, tl.arange(0, some), some), 0)
    tl.debug_barrier()
    return _zero(count), count


@triton.jit
def _complete():
    """Waits until the copy engine for tiles has completed all stores that this thread has begun."""
    asm: tl.constexpr = "cp.async.bulk.wait_group 0; mov.b32 $0, 0;"
    tl.inline_asm_elementwise(asm, "=r,~{memory}", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def settle():
    """Waits until the copy engine for tiles has completed all its stores for these threads."""
    _complete()
    tl.debug_barrier()


@triton.jit
def notify(signal, scope: tl.constexpr, bulk: tl.constexpr = False):
    """Adds 1 to a signal, with release order, when all threads have done their stores. `bulk`: stores of the copy
    engine for tiles for them have to be complete, too."""
    if bulk:
        _complete()
    tl.debug_barrier()
    add: tl.constexpr = "add.u64" if signal.dtype.element_ty.primitive_bitwidth == 64 else "add.s32"
    asm: tl.constexpr = by_one_thread("red.release." + scope + ".global." + add + " [$1], 1;")
    tl.inline_asm_elementwise(asm, "=r,l,~{memory}", [signal], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def entered(control, other, run, tma: tl.constexpr = False):
    """Waits until a peer has entered this run: its published inputs may be loaded. Returns 0 as `wait` does."""
    return _until(control, control + PROGRESS + other, 2 * run + 1, "sys", "one", tma)


@triton.jit
def credit(control, before, world: tl.constexpr, tma: tl.constexpr = False):
    """Waits until every rank has left the previous run of this slot. Then nobody reads any copy of the slot, and it may
    be written to. (It does not suffice that the home has left: others may still be reading there.)"""
    other = tl.minimum(tl.arange(0, triton.next_power_of_2(world)), world - 1)
    _until(control, control + PROGRESS + other, before, "sys", "all", tma)
    tl.debug_barrier()


@triton.jit
def drain(control, signals, expected, here, scope: tl.constexpr):
    """Waits until a block of signals have `expected` notifications, where `here` holds; then zeroes them. The barrier
    stands there because several threads may poll one signal, and none may see it zeroed."""
    _until(control, signals, tl.where(here, expected, 0), scope, "all", False)
    tl.debug_barrier()
    tl.store(signals, tl.zeros(signals.shape, tl.int32), mask=here)


@triton.jit
def clock(control):
    """Nanoseconds of the device's global timer."""
    asm: tl.constexpr = "mov.u64 $0, %globaltimer;"
    return tl.inline_asm_elementwise(asm, "=l,~{memory}", [], dtype=tl.int64, is_pure=False, pack=1)
