"""Primitives for ranks on several nodes, in Triton's own loads, stores and atomics, which the interpreter runs.

The module has the functions of `nvshmem`, so a CPU can execute programs across nodes. The table `heaps` holds the
address of the heap of a near rank. For a far rank it holds the distance from the own heap to the far one, less `FAR`. A
place in the own heap thus leads to the same place in the peer's heap, which is how a network names far memory.
"""

import triton
import triton.language as tl

from tilelink.backend.targets import portable
from tilelink.backend.targets.portable import (  # noqa: F401, kernels import them from here
    PROGRESS,
    RUN,
    SLOT_LEFT,
    clock,
    credit,
    entered,
    last_out,
    notify,
    peer,
)

FAR = tl.constexpr(2**62)
CHUNK = tl.constexpr(128)


@triton.jit
def is_far(heaps, other):
    """Whether a rank is on another node."""
    return tl.load(heaps + other) < 0


@triton.jit
def there(heaps, other, pointer):
    """The place in a far rank's heap that the pointer names in the own heap."""
    return (pointer.to(tl.int64) + tl.load(heaps + other) + FAR).to(pointer.dtype)


@triton.jit
def copy(target, source, count):
    """Copies elements that lie in one piece."""
    for first in range(0, count, CHUNK):
        here = first + tl.arange(0, CHUNK) < count
        tl.store(target + first + tl.arange(0, CHUNK), tl.load(source + first + tl.arange(0, CHUNK), mask=here), here)


@triton.jit
def put_far(heaps, other, target, source, count):
    """Sends `count` elements to a far rank. Both are places of the own heap; `target` means the same place there."""
    copy(there(heaps, other, target), source, count)


@triton.jit
def put_notify_far(heaps, other, target, source, count, signal):
    """Sends `count` elements, then adds 1 to a signal of the peer."""
    put_far(heaps, other, target, source, count)
    notify_far(heaps, other, signal)


@triton.jit
def fetch_far(heaps, other, target, source, count):
    """Brings `count` elements from a far rank, and returns when all threads may read them."""
    copy(target, there(heaps, other, source), count)


@triton.jit
def complete_far():
    """Waits until everything that this rank has put has arrived: at once, here."""
    tl.debug_barrier()


@triton.jit
def notify_far(heaps, other, signal):
    """Adds 1 to a signal of a far rank, after everything that was put there before."""
    notify(there(heaps, other, signal + 1), "sys")


@triton.jit
def missing(signal, expected, scope: tl.constexpr):
    """How many notifications of near and far ranks a signal still lacks, with acquire order."""
    near = tl.atomic_add(signal, 0, sem="acquire", scope=scope)
    return expected - near - tl.atomic_add(signal + 1, 0, sem="acquire", scope=scope)


@triton.jit
def wait(control, signal, expected, scope: tl.constexpr, tma: tl.constexpr = False):
    """Waits until a signal is at least `expected`, with acquire order. Returns 0 as `portable.wait` does."""
    left = tl.maximum(missing(signal, expected, scope), 0)
    while left > 0:
        left = tl.maximum(missing(signal, expected, scope), 0)
    return left.to(tl.int32)


@triton.jit
def drain(control, signals, expected, here, scope: tl.constexpr):
    """Waits until a block of signals have `expected` notifications, where `here` holds; then zeroes them."""
    words = signals[:, None] + tl.arange(0, 2)[None, :]
    given = tl.atomic_add(words, 0, mask=here[:, None], sem="acquire", scope=scope)
    left = tl.sum(tl.where(here, expected - tl.sum(given, 1), 0))
    while left > 0:
        given = tl.atomic_add(words, 0, mask=here[:, None], sem="acquire", scope=scope)
        left = tl.sum(tl.where(here, expected - tl.sum(given, 1), 0))
    tl.store(words, tl.zeros(words.shape, tl.int64), mask=here[:, None])


@triton.jit
def tell(heaps, control, rank, progress, world: tl.constexpr):
    """Tells every peer this rank's progress: a near one its value, a far one that it has grown by one."""
    for other in range(world):
        if is_far(heaps, other):
            word = there(heaps, other, control + PROGRESS + rank)
            tl.atomic_add(word, 1, sem="release", scope="sys")
        else:
            tl.atomic_xchg(peer(heaps, other, 0, tl.int64) + PROGRESS + rank, progress, sem="release", scope="sys")


enter, leave = portable.over(globals(), portable.enter, portable.leave)
