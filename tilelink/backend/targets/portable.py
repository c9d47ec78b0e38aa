"""Primitives in Triton's own atomics: the interpreter runs them, and so can any GPU that Triton compiles for.

A target is a module with these functions. The lowering imports them by name and emits nothing else that depends on a
vendor. Another target (PTX for Hopper, AMD) is another module beside this one. It writes functions that differ, such as
`wait` and `tell`, and takes functions in terms of them from here (`over`).

The words of a rank's control block (int64, at the beginning of its heap; docs/protocol.md), in order:
- run number, ticket of workers that are done, and for each slot the progress that all ranks need before a write to it;
- the poison word, which ends all waits of the lane, and the mailbox of the worker that gave up waiting;
- if kernels bound their waits: nanoseconds of a wait while some rank has not entered the run, and after that (0: no
  bound); addresses of the table of heaps, and of a word that the host reads (0: none); number of ranks, this rank;
- on a CPU: address of the clock for recorded times, and rank 0's clock; 1 + the last run whose rows had no room;
- the progress of every rank: 2 * run + 1 when it has entered a run, 2 * run + 2 when it has left it.
"""

from types import FunctionType
from typing import Any

import triton
import triton.language as tl

RUN = tl.constexpr(0)
TICKET = tl.constexpr(1)
SLOT_LEFT = tl.constexpr(2)
POISON = tl.constexpr(10)
WAITER = tl.constexpr(11)
WORD = tl.constexpr(12)
EXPECTED = tl.constexpr(13)
OBSERVED = tl.constexpr(14)
REASON = tl.constexpr(15)
ENTER_NS = tl.constexpr(16)
STUCK_NS = tl.constexpr(17)
HEAPS = tl.constexpr(18)
HOST = tl.constexpr(19)
RANKS = tl.constexpr(20)
RANK = tl.constexpr(21)
CLOCK = tl.constexpr(22)
TICKS = tl.constexpr(23)
REFUSED = tl.constexpr(24)
PROGRESS = tl.constexpr(25)

NEVER_ENTERED = tl.constexpr(1)
STUCK = tl.constexpr(2)
DIED = tl.constexpr(3)
FAILED = tl.constexpr(4)


def over(target: dict[str, Any], *functions: Any) -> list[Any]:
    """Functions of this module over the primitives of another module, whose globals are `target`. A name that they call
    means the function of that name in the other module, if it has one."""
    made = [FunctionType(f.fn.__code__, globals() | target, f.fn.__name__, f.fn.__defaults__) for f in functions]
    for new, old in zip(made, functions, strict=True):
        new.__annotations__ = old.fn.__annotations__
    return [triton.jit(new) for new in made]


@triton.jit
def peer(heaps, rank, at, dtype: tl.constexpr):
    """A pointer to the place `at` bytes into the symmetric heap of a rank."""
    base = tl.load(heaps + rank) + at
    return tl.multiple_of(base.to(tl.pointer_type(dtype)), 16)


@triton.jit
def wait(control, word, expected, scope: tl.constexpr, tma: tl.constexpr = False):
    """Waits until the word is at least `expected`, with acquire order. Returns 0, unknown to the compiler: added to an
    address, it makes the load depend on the wait. `tma`: a tensor descriptor loads what the wait guards. (Other targets
    need `tma`, and read in the control block how long the wait may take.)"""
    missing = tl.minimum(tl.atomic_add(word, 0, sem="acquire", scope=scope) - expected, 0)
    while missing < 0:
        missing = tl.minimum(tl.atomic_add(word, 0, sem="acquire", scope=scope) - expected, 0)
    return missing.to(tl.int32)


@triton.jit
def wait_all(control, words, expected, scope: tl.constexpr, tma: tl.constexpr = False):
    """The same as `wait` for a block of words, all polled at once. The barrier stands there because a thread acquires
    only some words, and others read what these guard. (The interpreter polls them in turn, unless a target has wide
    polls.)"""
    missing = tl.min(tl.minimum(tl.atomic_add(words, 0, sem="acquire", scope=scope) - expected, 0), 0)
    while missing < 0:
        missing = tl.min(tl.minimum(tl.atomic_add(words, 0, sem="acquire", scope=scope) - expected, 0), 0)
    tl.debug_barrier()
    return missing.to(tl.int32)


@triton.jit
def wait_some(control, first, words, least, expected, scope: tl.constexpr, tma: tl.constexpr = False):
    """The same as `wait` for the word `first`. Also returns how many consecutive words of a block have come, from its
    first on, which is `first`: what they guard may be read, too. The barrier stands there as in `wait_all`."""
    zero = wait(control, first, least, scope)
    seen, some = tl.atomic_add(words, 0, sem="acquire", scope=scope), words.shape[0]
    count = tl.min(tl.where(seen < expected, tl.arange(0, some), some), 0)
    tl.debug_barrier()
    return zero, count


@triton.jit
def notify(signal, scope: tl.constexpr, bulk: tl.constexpr = False):
    """Adds 1 to a signal, with release order, when all threads have done their stores. `bulk`: stores of a copy engine
    for them have to be complete, too. (No engine stores here.)"""
    tl.debug_barrier()
    tl.atomic_add(signal, 1, sem="release", scope=scope)


@triton.jit
def settle():
    """Waits until the copy engine has completed all its stores for this worker. (No engine stores here.)"""
    tl.debug_barrier()


@triton.jit
def tell(heaps, control, rank, progress, world: tl.constexpr):
    """Tells every peer this rank's progress, with release order."""
    for other in range(world):
        tl.atomic_xchg(peer(heaps, other, 0, tl.int64) + PROGRESS + rank, progress, sem="release", scope="sys")


@triton.jit
def enter(heaps, control, rank, run, world: tl.constexpr):
    """Tells every peer that all earlier work of this rank is done, so that its inputs may be read."""
    tell(heaps, control, rank, 2 * run + 1, world)


@triton.jit
def entered(control, other, run, tma: tl.constexpr = False):
    """Waits until a peer has entered this run: its published inputs may be read. Returns 0 as `wait` does."""
    return wait(control, control + PROGRESS + other, 2 * run + 1, "sys")


@triton.jit
def credit(control, before, world: tl.constexpr, tma: tl.constexpr = False):
    """Waits until every rank has left the previous run of this slot. Then nobody reads any copy of the slot, and it may
    be written to. (It does not suffice that the home has left: others may still be reading there.)"""
    for other in range(world):
        wait(control, control + PROGRESS + other, before, "sys")
    tl.debug_barrier()


@triton.jit
def alive(control):
    """Whether the lane is not poisoned. One thread looks for all: threads that found different answers would not all
    reach the barriers behind it."""
    return tl.atomic_add(control + POISON, 0, sem="relaxed", scope="sys") == 0


@triton.jit
def last_out(control, workers):
    """Whether this is the last worker of the rank to be done."""
    tl.debug_barrier()
    return tl.atomic_add(control + TICKET, 1, sem="acq_rel", scope="gpu") == workers - 1


@triton.jit
def drain(control, signals, expected, here, scope: tl.constexpr):
    """Waits until a block of signals have `expected` notifications, where `here` holds; then zeroes them. The barrier
    stands there because several threads may hold one signal."""
    missing = tl.sum(tl.where(here, expected - tl.atomic_add(signals, 0, mask=here, sem="acquire", scope=scope), 0))
    while missing > 0:
        missing = tl.sum(tl.where(here, expected - tl.atomic_add(signals, 0, mask=here, sem="acquire", scope=scope), 0))
    tl.debug_barrier()
    tl.store(signals, tl.zeros(signals.shape, tl.int32), mask=here)


@triton.jit
def leave(heaps, control, rank, slot, run, world: tl.constexpr):
    """Ends a run, in which all signals have come and are zero again: advances the run and tells the peers."""
    tl.store(control + TICKET, 0)
    tl.store(control + SLOT_LEFT + slot, 2 * run + 2)
    tl.store(control + RUN, run + 1)
    tl.debug_barrier()
    tell(heaps, control, rank, 2 * run + 2, world)


@triton.jit
def clock(control):
    """The time: one more than when any worker of any rank asked before. (Other targets ask the chip.)"""
    ticks = tl.load(control + CLOCK).to(tl.pointer_type(tl.int64))
    return tl.atomic_add(ticks, 1, sem="relaxed", scope="sys")
