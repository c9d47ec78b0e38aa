"""The kernels of the discipline "sync". Each pair of lines is marked `# one` and `# other`; what a constant argument
takes away is what orders them."""

from __future__ import annotations

import triton
import triton.language as tl

from tests.programs.signalling import (
    at,
    barrier,
    clear_lock,
    notify,
    set_lock,
    team_barrier,
    wait_until,
)
from tilelink.emulator import shmem


@triton.jit
def puts_under_a_lock(data, ready, rank, HELD: tl.constexpr):
    """Both ranks store to rank 1, holding a lock; rank 1 may have given it back before."""
    lock = at(ready, 0)
    if rank == 0:
        set_lock(lock)
        tl.store(at(data, 1), 42)  # one
        clear_lock(lock)
    else:
        set_lock(lock)
        if not HELD:
            clear_lock(lock)
        tl.store(at(data, 1), 1337)  # other
        if HELD:
            clear_lock(lock)


@triton.jit
def put_signal_polled_plainly(data, ready, rank):
    """Rank 1 stores to rank 0 and counts its signal up, at which rank 0 looks by plain loads."""
    if rank == 1:
        tl.store(at(data, 0), 1)
        notify(at(ready, 0))  # one
    else:
        while tl.load(at(ready, 0)) < 1:  # other
            pass


@triton.jit
def sum_reduce(source, reduced, words, rank, WORLD: tl.constexpr):
    """Every rank stores the sum of all sources to its `reduced`; it may go on before others have theirs."""
    barrier(words, rank, WORLD, 1)
    total = 0
    for other in range(WORLD):
        total += tl.load(at(source, other))
    tl.store(at(reduced, rank), total)  # one


@triton.jit
def put_after_reduce(source, reduced, words, rank, WORLD: tl.constexpr, SYNC: tl.constexpr):
    """After a collective sum rank 0 stores to what rank 1 has reduced."""
    tl.store(at(source, rank), 1)
    sum_reduce(source, reduced, words, rank, WORLD)
    if SYNC:
        barrier(words, rank, WORLD, 2)
    if rank == 0:
        tl.store(at(reduced, 1), 0)  # other


@triton.jit
def put_before_team_sync(data, words, out, rank, FROM: tl.constexpr, TO: tl.constexpr):
    """A team of ranks 0 and 2 meets after one of them has stored to a rank, which is of the team or not."""
    if rank == FROM:
        tl.store(at(data, TO), 42)  # one
    team_barrier(words, rank, 0, 2, 2, 1)
    if rank == TO:
        tl.store(out, tl.load(at(data, TO)))  # other


# ---- over a network: transfers are late, `remote` is named by its own address


@triton.jit
def meet(words, rank, WORLD: tl.constexpr, round):
    """All that a rank has started is complete, then all ranks meet."""
    shmem.quiet()
    barrier(words, rank, WORLD, round)


@triton.jit
def get_and_load(remote, buffer, words, out, rank, WORLD: tl.constexpr, ENDS: tl.constexpr, FIRST: tl.constexpr):
    """Rank 0 starts a get, and reads what it brings: when that has ended, by a barrier or by quiet, or before."""
    if rank == 0:
        shmem.get_nbi(buffer, remote, 1, 1)  # one
    if ENDS == "barrier" and FIRST:
        meet(words, rank, WORLD, 1)
    if ENDS == "quiet" and FIRST:
        shmem.quiet()
    if rank == 0:
        tl.store(out, tl.load(buffer))  # other
    shmem.quiet()


@triton.jit
def ping_and_pong(remote, buffer, flag, rank, ANSWERS: tl.constexpr):
    """Rank 0 starts a put with a signal, and overwrites its source when rank 1 has signalled: in answer, or not."""
    if rank == 0:
        tl.store(buffer, 42)
        shmem.put_signal_nbi(remote, buffer, 1, flag, 1, shmem.SIGNAL_SET, 1)  # one
        wait_until(flag, 1)
        tl.store(buffer, 1337)  # other
    else:
        tl.store(buffer, 1337)
        if ANSWERS:
            wait_until(flag, 1)
        shmem.put_signal(remote, buffer, 1, flag, 1, shmem.SIGNAL_SET, 0)
    shmem.quiet()


@triton.jit
def put_and_get(remote, buffer, words, rank, WORLD: tl.constexpr, SYNC: tl.constexpr):
    """Rank 0 puts to rank 1, and gets from there what it has put."""
    if rank == 0:
        tl.store(buffer, 42)
        shmem.put(remote, buffer, 1, 1)  # one
    if SYNC:
        meet(words, rank, WORLD, 1)
    if rank == 0:
        shmem.get(buffer + 1, remote, 1, 1)  # other
    shmem.quiet()


@triton.jit
def put_quiet_get(remote, buffer, words, rank, WORLD: tl.constexpr, SYNC: tl.constexpr):
    """Rank 0 puts to rank 1, and waits until that is complete; rank 1 gets it from itself: does it know?"""
    if rank == 0:
        tl.store(buffer, 42)
        shmem.put(remote, buffer, 1, 1)  # one
    shmem.quiet()
    if SYNC:
        barrier(words, rank, WORLD, 1)
    if rank == 1:
        shmem.get(buffer, remote, 1, 1)  # other


@triton.jit
def put_fence_put(remote, buffer, rank):
    """A fence orders two puts."""
    if rank == 0:
        tl.store(buffer, 42)
        shmem.put(remote, buffer, 1, 1)  # one
        shmem.fence()
        shmem.put(remote, buffer, 1, 1)  # other
    shmem.quiet()


@triton.jit
def get_fence_put(remote, buffer, rank):
    """A fence does not order a get that was started, which only quiet ends."""
    if rank == 0:
        tl.store(buffer + 1, 42)
        shmem.get_nbi(buffer, remote, 1, 1)  # one
        shmem.fence()
        shmem.put(remote, buffer + 1, 1, 1)  # other
    shmem.quiet()


@triton.jit
def puts_in_a_context(remote, buffer, rank, QUIET: tl.constexpr):
    """Two puts in context 1, the first of which is waited for: in the same context, or in another."""
    if rank == 0:
        tl.store(buffer, 42)
        shmem.put(remote, buffer, 1, 1, ctx=1)  # one
        shmem.quiet(ctx=QUIET)
        tl.store(buffer, 1337)
        shmem.put(remote, buffer, 1, 1, ctx=1)  # other
        shmem.quiet(ctx=1)
