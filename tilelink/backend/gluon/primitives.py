"""Primitives of the specialised form on NVIDIA GPUs: the primitives of `cuda.py`, for warps that run separate code.

Three things differ. Blocks have layouts (`layouts.py`), and a store names its own. The first thread of the calling
warps does what one thread does, since these warps need not include the block's first. And a wait that gives up returns,
because warps that ended alone would leave the others waiting. It only returns when the lane is poisoned. Warps look at
the poison word (`alive`) before they store or notify, so they touch nothing then.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.language import debug_barrier

from tilelink.backend.targets import cuda, portable, shared
from tilelink.backend.targets.cuda import clock, leave  # noqa: F401, kernels import them from here
from tilelink.backend.targets.polling import returning as polling  # noqa: F401, `over` finds it here
from tilelink.backend.targets.portable import POISON, PROGRESS, RUN, SLOT_LEFT, alive, last_out, peer  # noqa: F401, kernels import them from here
from tilelink.backend.targets.shared import MOST, STEPS  # noqa: F401, `over` finds them here

(_zero,) = portable.over(globals(), cuda._zero)
(_until,) = portable.over(globals(), cuda._until)
(_complete,) = portable.over(globals(), cuda._complete)
wait, entered = portable.over(globals(), cuda.wait, cuda.entered)


@triton.constexpr_function
def _by_first_thread(instruction, warps=32, worker=False):
    """PTX by which the first thread of `warps` warps carries out an instruction, while the others go on. `worker`: only
    in the first worker. One warp compares its lane: if it compares its thread, ptxas keeps the number of the warp in a
    thread's register, also for the warps that multiply, whose steps take up to 30 instructions more."""
    thread = "%laneid" if warps == 1 else "%tid.x"
    return f"""{{
        .reg .pred %first; .reg .b32 %thread, %worker;
        mov.u32 %thread, {thread}; and.b32 %thread, %thread, {32 * warps - 1};
        mov.u32 %worker, {"%ctaid.x" if worker else "0"}; or.b32 %thread, %thread, %worker;
        setp.eq.u32 %first, %thread, 0;
        @%first {instruction}
        mov.b32 $0, 0;
    }}"""


@triton.constexpr_function
def by_one_thread(instruction):
    return _by_first_thread(instruction, worker=True)


@gluon.jit
def uniform():
    """An instruction of one thread, which does nothing. Behind such an instruction ptxas keeps what the warps of a role
    share in uniform registers. In a kernel without one, which does not enter the run itself, a step of a main loop took
    up to 92 instructions, and threads spilled; with it, at most 51 (compiled only, Triton 3.6.0 and 3.7.1)."""
    nothing: tl.constexpr = _by_first_thread("nanosleep.u32 0;", worker=True)
    tl.inline_asm_elementwise(nothing, "=r,~{memory}", [], dtype=tl.int32, is_pure=False, pack=1)


(tell,) = portable.over(globals(), cuda.tell)
(enter,) = portable.over(globals(), portable.enter)
"""The first worker enters. All call it: a branch would take uniform registers from the loop that multiplies."""


@triton.constexpr_function
def _layout(shape, warps):
    """The layout of a block that is stored. A thread has eight neighbours along the last dimension, which are 16 bytes
    of the dtypes that are multiplied; of a vector it has as few as possible. The layout depends on no dtype, so that a
    block can be stored twice, in two dtypes."""
    shape = [int(n) for n in shape]
    if len(shape) == 1:
        return tl.BlockedLayout([max(1, min(8, shape[0] // (32 * warps)))], [32], [warps], [0])
    wide = min(8, shape[-1])
    across = min(32, shape[-1] // wide)
    ahead = [1] * (len(shape) - 2)
    return tl.BlockedLayout(
        [*ahead, 1, wide], [*ahead, 32 // across, across], [*ahead, warps, 1], list(range(len(shape)))[::-1]
    )


@triton.constexpr_function
def _is_open(type):
    """Whether a value of this type is a block whose layout is still to be found."""
    return isinstance(getattr(type, "layout", None), tl.AutoLayout)


@triton.constexpr_function
def _has_layout(type):
    """Whether a value of this type is a block whose layout is known."""
    return getattr(type, "layout", None) is not None and not _is_open(type)


@triton.constexpr_function
def _is_laid(type, warps):
    """Whether a value of this type is a block in the layout of its shape."""
    return _has_layout(type) and type.layout == _layout(type.shape, warps)


@gluon.jit
def laid(value):
    """The value, in the layout of its shape if it is a block without a layout."""
    if _is_open(value.type):
        value = tl.set_auto_layout(value, _layout(value.shape, tl.num_warps()))
    return value


@gluon.jit
def loose(value):
    """The value, as a block whose layout follows from what reads it."""
    if _has_layout(value.type):
        value = tl.convert_layout(value, tl.AutoLayout())
    return value


@gluon.jit
def reuse(value):
    """The value of a name: a block that is `laid` out becomes `loose`; sums of matrix instructions stay as they lie."""
    if _is_laid(value.type, tl.num_warps()):
        value = loose(value)
    return value


@gluon.jit
def as_stored(value):
    """The block in the layout in which it is stored."""
    return tl.convert_layout(laid(value), _layout(value.shape, tl.num_warps()))


@gluon.jit
def store(pointers, value, mask=None):
    """Stores a block, 16 bytes at a time where its rows allow it."""
    layout: tl.constexpr = _layout(value.shape, tl.num_warps())
    block = as_stored(value)
    if mask is None:
        tl.store(tl.set_auto_layout(pointers, layout), block)
    else:
        tl.store(tl.set_auto_layout(pointers, layout), block, mask=tl.set_auto_layout(mask, layout))


@triton.constexpr_function
def _in_each_warp(number, warps):
    """The layout of numbers that each warp has all of, so that it reduces them alone."""
    return tl.BlockedLayout([int(number) // 32], [32], [warps], [0])


(picked, _segments_of) = portable.over(globals(), shared.picked, shared.segment_of)


@gluon.jit
def _segment_of(begins, value, first, count):
    """The step of a running table in which a value lies, as in `shared.py`. Each warp has all entries that it compares,
    so no warp needs another one to add up."""
    value = tl.cast(value, tl.int32)
    found = value * 0
    if value.type.is_block():
        found = _segments_of(begins, value, first, count)
    else:
        lanes: tl.constexpr = _in_each_warp(STEPS, tl.num_warps())
        for k in range(1, count, STEPS):
            steps = k + tl.arange(0, STEPS, lanes)
            begin = tl.load(begins + first + steps, mask=steps < count, other=2147483647)
            found += tl.sum((begin <= value).to(tl.int32), 0)
    return found


segment_of = _segment_of  # in Triton its name has to differ from that of the function that it calls


@gluon.jit
def wait_all(control, words, expected, scope: tl.constexpr, tma: tl.constexpr = False):
    """The same as `wait` for a block of words, one for each thread of a warp. The barrier stands there because a thread
    acquires only some words, and other threads read what these guard."""
    lanes: tl.constexpr = _in_each_warp(words.shape[0], tl.num_warps())
    least = tl.zeros(words.shape, tl.int32, lanes) + expected
    seen = _until(control, tl.set_auto_layout(words, lanes), least, scope, "all", tma)
    debug_barrier()
    return tl.sum(seen, 0)


@gluon.jit
def settle():
    """Waits until the copy engine for tiles has completed all its stores for these warps."""
    _complete()
    debug_barrier()


@gluon.jit
def notify(signal, scope: tl.constexpr, bulk: tl.constexpr = False):
    """Adds 1 to a signal, with release order, when all threads of these warps have done their stores. `bulk`: the
    stores of the copy engine for tiles for them are complete, too."""
    if bulk:
        _complete()
    debug_barrier()
    add: tl.constexpr = _by_first_thread("red.release." + scope + ".global.add.s32 [$1], 1;", tl.num_warps())
    tl.inline_asm_elementwise(add, "=r,l,~{memory}", [signal], dtype=tl.int32, is_pure=False, pack=1)


@gluon.jit
def credit(control, before, world: tl.constexpr, tma: tl.constexpr = False):
    """Waits until every rank has left the previous run of this slot: nobody reads the slot any more."""
    lanes: tl.constexpr = _layout([triton.next_power_of_2(world)], tl.num_warps())
    other = tl.minimum(tl.arange(0, triton.next_power_of_2(world), lanes), world - 1)
    _until(control, control + PROGRESS + other, before, "sys", "all", tma)
    debug_barrier()


@gluon.jit
def drain(control, signals, expected, here, scope: tl.constexpr):
    """Waits until a block of signals have `expected` notifications, where `here` holds; then zeroes them."""
    _until(control, signals, tl.where(here, expected, 0), scope, "all", False)
    debug_barrier()
    if alive(control):
        store(signals, tl.zeros(signals.shape, tl.int32), here)
