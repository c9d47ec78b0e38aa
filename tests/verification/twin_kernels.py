"""Kernels written by hand with mistakes that real projects shipped; a constant argument mends each.

The accesses of the racing pair are marked `# one` and `# other`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tests.programs.signalling import at, barrier, notify, wait, wait_until
from tilelink.emulator import shmem

N = tl.constexpr(16)


@triton.jit
def send_each_call(data, ready, taken, out, rank, call, WORLD: tl.constexpr, CREDIT: tl.constexpr):
    """Stores to the right neighbour in every call. Has the neighbour read what the call before brought?"""
    i = tl.arange(0, N)
    right, left = (rank + 1) % WORLD, (rank + WORLD - 1) % WORLD
    if CREDIT:
        wait(at(taken, rank), call)
    tl.store(at(data, right) + i, call + rank + i)  # one
    notify(at(ready, right))
    wait(at(ready, rank), call + 1)
    tl.store(out + i, tl.load(at(data, rank) + i))  # other
    if CREDIT:
        notify(at(taken, left))


@triton.jit
def send_each_replay(data, ready, taken, runs, out, rank, WORLD: tl.constexpr, CREDIT: tl.constexpr):
    """The same in a graph: which run it is, the device counts, since arguments are those of the capture."""
    run = tl.load(runs)
    send_each_call(data, ready, taken, out, rank, run, WORLD, CREDIT)
    tl.store(runs, run + 1)


@triton.jit
def send_in_slots(data, ready, runs, out, rank, slot, COUNTED: tl.constexpr):
    """Two ranks exchange through two slots in turn: by the time a slot comes again, it has been read. `slot` is the
    host's choice; the device's own is `COUNTED`."""
    i = tl.arange(0, N)
    run = tl.load(runs)
    if COUNTED:
        slot = run % 2
    tl.store(at(data, 1 - rank) + slot * N + i, run + i)  # one
    notify(at(ready, 1 - rank))
    wait(at(ready, rank), run + 1)
    tl.store(out + i, tl.load(at(data, rank) + slot * N + i))  # other
    tl.store(runs, run + 1)


@triton.jit
def send_with_threshold(data, ready, taken, out, rank, call, RESET: tl.constexpr, GROWS: tl.constexpr):
    """Signals live on from call to call: they have to be zeroed, or waited for with a threshold that grows."""
    i = tl.arange(0, N)
    wait(at(taken, rank), call)
    tl.store(at(data, 1 - rank) + i, call + i)  # one
    notify(at(ready, 1 - rank))
    threshold = 1
    if GROWS:
        threshold = call + 1
    wait(at(ready, rank), threshold)
    tl.store(out + i, tl.load(at(data, rank) + i))  # other
    if RESET:
        tl.store(at(ready, rank), 0)
    notify(at(taken, 1 - rank))


@triton.jit
def message(data, ready, out, rank, SET: tl.constexpr, LOOK: tl.constexpr, SCOPE: tl.constexpr):
    """Rank 0 stores and sets a flag; rank 1 looks for the flag and reads."""
    i = tl.arange(0, N)
    flag = at(ready, 1)
    if rank == 0:
        tl.store(at(data, 1) + i, i + 1)  # one
        if SET == "plain":
            tl.store(flag, 1)
        else:
            tl.atomic_xchg(flag, 1, sem=SET, scope=SCOPE)
    else:
        if LOOK == "plain":
            while tl.load(flag) == 0:
                pass
        elif LOOK == "volatile":
            while tl.load(flag, volatile=True) == 0:
                pass
        else:
            while tl.atomic_add(flag, 0, sem=LOOK, scope=SCOPE) == 0:
                pass
        tl.store(out + i, tl.load(at(data, 1) + i))  # other


@triton.jit
def zero_then_exchange(data, ready, words, out, rank, call, WORLD: tl.constexpr, MEET: tl.constexpr):
    """Each call begins with a clean pad. A peer that is early has signalled already."""
    i = tl.arange(0, N)
    right = (rank + 1) % WORLD
    tl.store(at(ready, rank), 0)  # one
    if MEET:
        barrier(words, rank, WORLD, 2 * call + 1)
    tl.store(at(data, right) + i, call + i)
    tl.atomic_add(at(ready, right), 1, sem="release", scope="sys")  # other
    wait(at(ready, rank), 1)
    tl.store(out + i, tl.load(at(data, rank) + i))
    if MEET:
        barrier(words, rank, WORLD, 2 * call + 2)


@triton.jit
def one_after_the_other(data, ready, out, rank, AT_LEAST: tl.constexpr):
    """Rank 0 takes what ranks 1 and 2 send when the first has come, and again when both have."""
    i = tl.arange(0, N)
    if rank > 0:
        tl.store(at(data, 0) + rank * N + i, rank + i)
        notify(at(ready, 0))
    else:
        for arrived in range(1, 3):
            if AT_LEAST:
                wait(at(ready, 0), arrived)
            else:
                while tl.atomic_add(at(ready, 0), 0, sem="acquire", scope="sys") != arrived:  # one
                    pass
        tl.store(out + i, tl.load(at(data, 0) + N + i) + tl.load(at(data, 0) + 2 * N + i))


@triton.jit
def all_programs_meet(ready, programs):
    """A barrier of the grid."""
    notify(at(ready, 0))
    wait(at(ready, 0), programs)  # one


@triton.jit
def ring(data, ready, out, rank, WORLD: tl.constexpr, AHEAD: tl.constexpr):
    """Sums go round. Software pipelining waits for the next step before this one is sent."""
    i = tl.arange(0, N)
    right = (rank + 1) % WORLD
    block = i + rank
    for step in range(WORLD - 1):
        if AHEAD:
            wait(at(ready, rank) + step, 1)  # one
        tl.store(at(data, right) + step * N + i, block)
        notify(at(ready, right) + step)
        if not AHEAD:
            wait(at(ready, rank) + step, 1)
        block = tl.load(at(data, rank) + step * N + i) + i + rank
    tl.store(out + i, block)


@triton.jit
def pushes(data, ready, out, rank, WORLD: tl.constexpr, PARTS: tl.constexpr, EXPECTED: tl.constexpr):
    """All to all; the sender signals each of `PARTS` parts of a block, the receiver expects `EXPECTED` signals."""
    i = tl.arange(0, N // PARTS)
    for other in range(WORLD):
        for part in range(PARTS):
            tl.store(at(data, other) + rank * N + part * (N // PARTS) + i, rank + i)
            notify(at(ready, other) + rank)
    for other in range(WORLD):
        wait(at(ready, rank) + other, EXPECTED)  # one
        tl.store(out + other * N + tl.arange(0, N), tl.load(at(data, rank) + other * N + tl.arange(0, N)))


@triton.jit
def read_after_barrier(data, words, out, rank, JOINS: tl.constexpr, WORLD: tl.constexpr):
    """Every rank reads its right neighbour's data, after a barrier of the first `JOINS` ranks."""
    i = tl.arange(0, N)
    tl.store(at(data, rank) + i, rank + i)  # one
    if rank < JOINS:
        barrier(words, rank, JOINS, 1)
    tl.store(out + i, tl.load(at(data, (rank + 1) % WORLD) + i))  # other


@triton.jit
def add_up(sums, words, out, rank, call, WORLD: tl.constexpr, ZEROED: tl.constexpr):
    """Each rank adds its part to the sums of rank 0, by atomics, into what was zero when it was allocated."""
    i = tl.arange(0, N)
    if ZEROED and rank == 0:
        tl.store(at(sums, 0, tl.float32) + i, tl.zeros((N,), tl.float32))
    barrier(words, rank, WORLD, 3 * call + 1)
    tl.atomic_add(at(sums, 0, tl.float32) + i, (rank + i).to(tl.float32), sem="relaxed", scope="sys")  # one
    barrier(words, rank, WORLD, 3 * call + 2)
    tl.store(out + i, tl.load(at(sums, 0, tl.float32) + i))
    barrier(words, rank, WORLD, 3 * call + 3)


@triton.jit
def reuse_the_source(remote, buffer, rank, QUIET: tl.constexpr):
    """Rank 0 sends two values, one after the other, from one place."""
    if rank == 0:
        tl.store(buffer, 1)
        shmem.put_nbi(remote, buffer, 1, 1)  # one
        if QUIET:
            shmem.quiet()
        tl.store(buffer, 2)  # other
        shmem.put(remote + 1, buffer, 1, 1)
    shmem.quiet()


@triton.jit
def tell_another(remote, buffer, flag, rank, QUIET: tl.constexpr):
    """Rank 0 puts to rank 1, then tells rank 2, which gets it from there. A fence orders, and completes nothing."""
    if rank == 0:
        tl.store(buffer, 1)
        shmem.put(remote, buffer, 1, 1)  # one
        if QUIET:
            shmem.quiet()
        else:
            shmem.fence()
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 2)
    elif rank == 2:
        wait_until(flag, 1)
        shmem.get(buffer, remote, 1, 1)  # other
    shmem.quiet()


@triton.jit
def tell_in_a_context(remote, buffer, flag, out, rank, CONTEXT: tl.constexpr):
    """Rank 0 puts in context 1, then signals in another, or in the same."""
    if rank == 0:
        tl.store(buffer, 1)
        shmem.put(remote, buffer, 1, 1, ctx=1)  # one
        shmem.fence(ctx=CONTEXT)
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 1, ctx=CONTEXT)
    else:
        wait_until(flag, 1)
        tl.store(out, tl.load(remote))  # other
    shmem.quiet(ctx=CONTEXT)
    shmem.quiet(ctx=1)


@triton.jit
def groups_on_one_pad(data, ready, taken, out, rank, APART: tl.constexpr):
    """Ranks 0 and 1 are a group, ranks 1 and 2 are another. In both, rank 1 is sent to; that of rank 0 comes last."""
    i = tl.arange(0, N)
    if rank == 1:
        wait(at(ready, 1), 1)
        tl.store(out + i, tl.load(at(data, 1) + i))  # other
    elif rank == 2:
        word = 0
        if APART:
            word = 1
        tl.store(at(data, 1) + N + i, rank + i)
        notify(at(ready, 1) + word)
        notify(at(taken, 0))
    else:
        wait(at(taken, 0), 1)
        tl.store(at(data, 1) + i, rank + i)  # one
        notify(at(ready, 1))


@triton.jit
def read_on_a_stream(data, words, out, rank, part, WORLD: tl.constexpr):
    """Every rank reads its right neighbour's data of this stream, after a barrier."""
    i = part * N + tl.arange(0, N)
    tl.store(at(data, rank) + i, rank + i)  # one
    barrier(words, rank, WORLD, 1)
    tl.store(out + i, tl.load(at(data, (rank + 1) % WORLD) + i))  # other


@triton.jit
def programs_of_all_ranks_meet(words, rank, WORLD: tl.constexpr, programs):
    """A barrier of the grids of all ranks."""
    for other in range(WORLD):
        notify(at(words, other))
    wait(at(words, rank), WORLD * programs)  # one


@triton.jit
def count_under_a_lock(data, ready, SCOPE: tl.constexpr):
    """Each rank takes the lock of rank 0 by compare-and-swap, and counts there."""
    while tl.atomic_cas(at(ready, 0), 0, 1, sem="acquire", scope=SCOPE) != 0:
        pass
    tl.store(at(data, 0), tl.load(at(data, 0)) + 1)  # one
    tl.atomic_xchg(at(ready, 0), 0, sem="release", scope=SCOPE)


@triton.jit
def told_by_kernel_and_proxy(flag_of_all, flag, ready, rank, APART: tl.constexpr):
    """The kernel of rank 2 counts a flag of rank 1 up; the network sets it for rank 0."""
    if rank == 0:
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 1)  # one
    elif rank == 2:
        if APART:
            notify(at(ready, 1))
        else:
            tl.atomic_add(at(flag_of_all, 1), 1, sem="release", scope="sys")  # other
    shmem.quiet()


@triton.jit
def spend(ready, out):
    """A replay sends as much as its budget says."""
    tl.store(out, tl.load(ready))  # one


@triton.jit
def clear(ready):
    """The budget of the next."""
    tl.store(ready, 0)  # other
