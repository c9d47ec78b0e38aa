"""Primitives for AMD GPUs (gfx942): waits in GCN assembly, releases as LLVM makes them (docs/targets.md).

A wait polls with loads that bypass the caches, and invalidates the caches once, after the poll. The zero that it
returns lies in a scalar register, so the compiler still knows that an address plus this zero is the same for all
threads. On AMD a barrier does not wait for stores: before it, each wave waits for its own, and writes the caches back.
"""

import triton
import triton.language as tl

from tilelink.backend.targets import portable
from tilelink.backend.targets.portable import POISON, RUN, SLOT_LEFT, alive, drain, enter, peer  # noqa: F401, kernels import them from here


@triton.constexpr_function
def _reach(scope):
    """The bits of an instruction that make it reach as far as a scope."""
    return {"gpu": "sc1", "sys": "sc0 sc1"}[scope]


@triton.jit
def _look(word, scope: tl.constexpr, then: tl.constexpr):
    """Loads words past the caches, and carries out the instruction `then` after that."""
    dtype = word.dtype.scalar.element_ty
    load: tl.constexpr = "global_load_dwordx2" if dtype == tl.int64 else "global_load_dword"
    asm: tl.constexpr = load + " $0, $1, off " + _reach(scope) + "\ns_waitcnt vmcnt(0)\n" + then
    return tl.inline_asm_elementwise(asm, "=&v,v,~{memory}", [word], dtype=dtype, is_pure=False, pack=1)


@triton.jit
def _stored(scope: tl.constexpr):
    """Waits until the stores of this wave are written back as far as a scope. LLVM's release writes back, too, but the
    LLVM of Triton 3.6 and 3.7 does not wait for it where it knows of no store (llvm-project 178316)."""
    back: tl.constexpr = "\nbuffer_wbl2 " + _reach(scope)
    asm: tl.constexpr = "s_waitcnt vmcnt(0)" + back + "\ns_waitcnt vmcnt(0)\nv_mov_b32 $0, 0"
    tl.inline_asm_elementwise(asm, "=v,~{memory}", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def wait(control, word, expected, scope: tl.constexpr, tma: tl.constexpr = False):
    """Waits until the word is at least `expected`, with acquire order. Returns 0, unknown to the compiler: added to an
    address, it makes the load depend on the wait. (The wait is not bounded: it does not look at the control block.)"""
    while _look(word, scope, "") < expected:
        pass
    seen = _look(word, scope, "buffer_inv " + _reach(scope)).to(tl.int32)
    asm: tl.constexpr = "v_readfirstlane_b32 $0, $1\ns_and_b32 $0, $0, 0"
    return tl.inline_asm_elementwise(asm, "=s,v,~{scc}", [seen], dtype=tl.int32, is_pure=True, pack=1)


entered, credit = portable.over(globals(), portable.entered, portable.credit)


@triton.jit
def notify(signal, scope: tl.constexpr):
    """Adds 1 to a signal, with release order, when all threads have done their stores."""
    _stored(scope)
    portable.notify(signal, scope)


@triton.jit
def last_out(control, workers):
    """Whether this is the last worker of the rank to be done."""
    _stored("gpu")
    return portable.last_out(control, workers)


@triton.jit
def leave(heaps, control, rank, slot, run, world: tl.constexpr):
    """Ends a run, in which all signals have come and are zero again: advances the run and tells the peers."""
    _stored("sys")
    portable.leave(heaps, control, rank, slot, run, world)


@triton.jit
def clock(control):
    """The device's real-time counter, in steps of 10 ns."""
    asm: tl.constexpr = "s_memrealtime $0\ns_waitcnt lgkmcnt(0)"
    return tl.inline_asm_elementwise(asm, "=s,~{memory}", [], dtype=tl.int64, is_pure=False, pack=1)
