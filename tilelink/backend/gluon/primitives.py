"""Primitives of the specialised form on NVIDIA GPUs: those of `cuda.py`, for warps that go separate ways.

Three things differ. Blocks have layouts: a store says which, and all that leads to it follows. The first thread of the
warps that are here carries out what one thread does: they need not have the block's first. And a wait that gives up
returns: warps that ended alone would leave the others waiting. Whoever stores or notifies looks at the poison word
first (`alive`), so nothing is touched after a wait in vain: none returns so before the lane is poisoned.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.language import debug_barrier

from tilelink.backend.targets import cuda, portable
from tilelink.backend.targets.cuda import clock, leave  # noqa: F401, kernels import them from here
from tilelink.backend.targets.polling import returning as polling  # noqa: F401, `over` finds it here
from tilelink.backend.targets.portable import POISON, PROGRESS, RUN, SLOT_LEFT, alive, last_out, peer  # noqa: F401, kernels import them from here

(_zero,) = portable.over(globals(), cuda._zero)
(_until,) = portable.over(globals(), cuda._until)
(_complete,) = portable.over(globals(), cuda._complete)
wait, entered = portable.over(globals(), cuda.wait, cuda.entered)


@triton.constexpr_function
def _by_first_thread(instruction, warps=32, worker=False):
    """PTX by which the first thread of `warps` warps carries out an instruction, while the others go on; `worker`: that
    of the first worker alone. One warp asks for its lane: where it asks for its thread, ptxas keeps the number of the
    warp in a thread's register, also for the warps that multiply, whose steps take up to 30 instructions more."""
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


(tell,) = portable.over(globals(), cuda.tell)
(enter,) = portable.over(globals(), portable.enter)
"""By the first worker. All call it: a branch around it takes uniform registers from the loop that multiplies."""


@triton.constexpr_function
def _layout(shape, warps):
    """Of a block that is stored: eight neighbours along the last dimension a thread, which are 16 bytes of the dtypes
    that are multiplied; of a vector, as few as there can be. It depends on no dtype, so that a block can be stored
    twice, in two of them."""
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
def _is_open(layout):
    return isinstance(layout, tl.AutoLayout)


@gluon.jit
def store(pointers, value, mask=None):
    """Stores a block, 16 bytes at a time where its rows allow it."""
    layout: tl.constexpr = _layout(value.shape, tl.num_warps())
    laid = tl.set_auto_layout(value, layout) if _is_open(value.type.layout) else tl.convert_layout(value, layout)
    if mask is None:
        tl.store(tl.set_auto_layout(pointers, layout), laid)
    else:
        tl.store(tl.set_auto_layout(pointers, layout), laid, mask=tl.set_auto_layout(mask, layout))


@gluon.jit
def settle():
    """Until the copy engine for tiles has stored all that it stores for these warps."""
    _complete()
    debug_barrier()


@gluon.jit
def notify(signal, scope: tl.constexpr, bulk: tl.constexpr = False):
    """Counts one up, with release order, once all threads of these warps have stored what they had to, and what the
    copy engine for tiles has stored for them is complete."""
    if bulk:
        _complete()
    debug_barrier()
    add: tl.constexpr = _by_first_thread("red.release." + scope + ".global.add.s32 [$1], 1;", tl.num_warps())
    tl.inline_asm_elementwise(add, "=r,l,~{memory}", [signal], dtype=tl.int32, is_pure=False, pack=1)


@gluon.jit
def credit(control, before, world: tl.constexpr, tma: tl.constexpr = False):
    """Until every rank has left the previous run of this slot: nobody reads what lies in it any more."""
    lanes: tl.constexpr = _layout([triton.next_power_of_2(world)], tl.num_warps())
    other = tl.minimum(tl.arange(0, triton.next_power_of_2(world), lanes), world - 1)
    _until(control, control + PROGRESS + other, before, "sys", "all", tma)
    debug_barrier()


@gluon.jit
def drain(control, signals, expected, here, scope: tl.constexpr):
    """Until a block of signals have been given `expected` times, where `here` holds; then zeroes them."""
    _until(control, signals, tl.where(here, expected, 0), scope, "all", False)
    debug_barrier()
    if alive(control):
        store(signals, tl.zeros(signals.shape, tl.int32), here)
