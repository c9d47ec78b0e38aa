"""Device functions that kernels written by hand share: addresses of peers, signals, a barrier of all ranks."""

import triton
import triton.language as tl


@triton.jit
def at(table, rank, dtype: tl.constexpr = tl.int32):
    """Pointer to a rank's part of a symmetric tensor."""
    return tl.load(table + rank).to(tl.pointer_type(dtype))


@triton.jit
def notify(signal):
    """Counts one up, with release order, for all ranks."""
    tl.atomic_add(signal, 1, sem="release", scope="sys")


@triton.jit
def wait(signal, value):
    """Until a signal is at least so much, with acquire order, from all ranks."""
    while tl.atomic_add(signal, 0, sem="acquire", scope="sys") < value:
        pass


@triton.jit
def barrier(words, rank, ranks, round):
    """Ranks 0 to `ranks` - 1 meet, for the `round`-th time; `words`, one a rank, count rounds and are never zeroed."""
    for other in range(ranks):
        notify(at(words, other) + rank)
    for other in range(ranks):
        wait(at(words, rank) + other, round)


@triton.jit
def wait_until(flag, value):
    """Until a flag is this value, with acquire order."""
    while tl.atomic_add(flag, 0, sem="acquire", scope="sys") != value:
        pass


@triton.jit
def team_barrier(words, rank, first, stride, size, round):
    """`size` ranks from `first` on in steps of `stride` meet, for the `round`-th time, if this is one of them."""
    if (rank - first) % stride == 0 and rank >= first and rank < first + stride * size:
        for member in range(size):
            notify(at(words, first + stride * member) + rank)
        for member in range(size):
            wait(at(words, rank) + first + stride * member, round)


@triton.jit
def set_lock(word):
    """Takes a lock, which all ranks know by one word."""
    while tl.atomic_cas(word, 0, 1, sem="acquire", scope="sys") != 0:
        pass


@triton.jit
def clear_lock(word):
    """Gives a lock back."""
    tl.atomic_xchg(word, 0, sem="release", scope="sys")
