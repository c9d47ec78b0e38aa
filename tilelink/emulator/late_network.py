"""Primitives for ranks on several nodes, with late puts: agents of the network do what `portable_network` does at once.

`nvshmem` only starts its puts, too. Where all ranks run in one process and races are looked for, lowered kernels are
therefore executed with the operations that `nvshmem` calls, in their order.
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
from tilelink.backend.targets.portable_network import drain, is_far, wait  # noqa: F401, kernels import them from here
from tilelink.emulator import shmem


@triton.jit
def put_far(heaps, other, target, source, count):
    """Starts to send `count` elements to a far rank. Both pointers are places of the own heap; `target` stands for the
    same place of the peer's heap."""
    shmem.put_nbi(target, source, count, other)


@triton.jit
def put_notify_far(heaps, other, target, source, count, signal):
    """Starts to send `count` elements and, when they are there, to add 1 to a signal of the peer."""
    shmem.put_signal_nbi(target, source, count, signal + 1, 1, shmem.SIGNAL_ADD, other)


@triton.jit
def fetch_far(heaps, other, target, source, count):
    """Brings `count` elements from a far rank, and returns when all threads may read them."""
    shmem.get(target, source, count, other)


@triton.jit
def complete_far():
    """Waits until everything that this rank has put has arrived."""
    shmem.quiet()
    tl.debug_barrier()


@triton.jit
def notify_far(heaps, other, signal):
    """Adds 1 to a signal of a far rank, after everything that was put there before."""
    tl.debug_barrier()
    shmem.fence()
    shmem.signal_op(signal + 1, 1, shmem.SIGNAL_ADD, other)


@triton.jit
def tell(heaps, control, rank, progress, world: tl.constexpr):
    """Tells every peer this rank's progress: writes it to a near peer, and adds 1 to the word of a far peer."""
    shmem.fence()
    for other in range(world):
        if is_far(heaps, other):
            shmem.signal_op(control + PROGRESS + rank, 1, shmem.SIGNAL_ADD, other)
        else:
            tl.atomic_xchg(peer(heaps, other, 0, tl.int64) + PROGRESS + rank, progress, sem="release", scope="sys")


enter, leave = portable.over(globals(), portable.enter, portable.leave)
