"""Kernels that send over a network, one thing each; `FAULT` leaves out what makes them right."""

import triton
import triton.language as tl

from tests.programs.signalling import wait
from tilelink.emulator import shmem

N = tl.constexpr(8)


@triton.jit
def reuse(data, buffer, HOW: tl.constexpr):
    """Rank 0 sends its buffer and writes to it again."""
    i = tl.arange(0, N)
    if shmem.my_pe() == 0:
        tl.store(buffer + i, i)
        if HOW == "put":
            shmem.put(data, buffer, N, 1)
        else:
            shmem.put_nbi(data, buffer, N, 1, 1)
        if HOW == "quiet":
            shmem.quiet(1)
        elif HOW == "quiet of another context":
            shmem.quiet()
        elif HOW == "fence":
            shmem.fence(1)
        tl.store(buffer + i, -1 - i)


@triton.jit
def twice(data, signal, out, HOW: tl.constexpr):
    """Rank 0 sends two values to one place, and a signal; rank 1 reads what is there."""
    if shmem.my_pe() == 0:
        shmem.p(data, 1, 1)
        if HOW == "fenced" or HOW == "fenced once":
            shmem.fence()
        shmem.p(data, 2, 1)
        if HOW == "fenced":
            shmem.fence()
        elif HOW == "quieted":
            shmem.quiet()
        shmem.signal_op(signal, 1, shmem.SIGNAL_SET, 1)
    else:
        wait(signal, 1)
        tl.store(out, tl.load(data))


@triton.jit
def signalled(data, buffer, signal, out, HOW: tl.constexpr):
    """Rank 0 sends the first half of its buffer, and then the second one with a signal; rank 1 reads both, or one."""
    i = tl.arange(0, N)
    if shmem.my_pe() == 0:
        tl.store(buffer + i, i)
        shmem.put_nbi(data, buffer, N // 2, 1)
        if HOW == "fenced":
            shmem.fence()
        shmem.put_signal_nbi(data + N // 2, buffer + N // 2, N // 2, signal, 3, shmem.SIGNAL_ADD, 1)
    else:
        wait(signal, 3)
        mask = (i >= N // 2) | (HOW != "second half")
        tl.store(out + i, tl.load(data + i, mask=mask, other=-1))


@triton.jit
def stored(theirs, signal, buffer, HOW: tl.constexpr):
    """Rank 0 stores to mapped memory of rank 1, and signals that over the network."""
    i = tl.arange(0, N)
    if shmem.my_pe() == 0:
        tl.store(tl.load(theirs + 1).to(buffer.dtype) + i, i)
        if HOW == "fenced":
            shmem.fence()
        shmem.signal_op(signal, 1, shmem.SIGNAL_ADD, 1)
    else:
        wait(signal, 1)
        mine = tl.load(theirs + 1).to(buffer.dtype) + i
        tl.store(buffer + i, tl.load(mine))


@triton.jit
def fetches(data, buffer, out):
    """Rank 0 brings the data of rank 1 in five ways."""
    i = tl.arange(0, N)
    if shmem.my_pe() == 0:
        shmem.get(buffer, data, N, 1)
        tl.store(out + i, tl.load(buffer + i))
        shmem.get_nbi(buffer + N, data, N, 1)
        shmem.quiet()
        tl.store(out + N + i, tl.load(buffer + N + i))
        shmem.iget(buffer, data + 1, 1, 2, N // 2, 1)
        shmem.iput(data + N, buffer, 2, 1, N // 2, 1)
        tl.store(out + 2 * N, shmem.g(data + 3, 1))
        tl.store(out + 2 * N + 1, shmem.n_pes())


@triton.jit
def counts(word, fetched, out):
    """Every rank counts a word of rank 0 up, thrice."""
    me = shmem.my_pe()
    tl.store(out, shmem.atomic_fetch_inc(word, 0))
    shmem.atomic_inc(word, 0)
    shmem.atomic_fetch_inc_nbi(fetched, word, 0)
    shmem.quiet()
    tl.store(out + 1, tl.load(fetched))
    if me == 1:
        shmem.atomic_set(word + 1, 5, 0)
        shmem.quiet()
        shmem.atomic_compare_swap_nbi(fetched + 1, word + 1, 5, 6, 0)
        shmem.quiet()
        tl.store(out + 2, shmem.atomic_compare_swap(word + 1, 5, 7, 0))
        shmem.atomic_add(word + 1, 10, 0)
        shmem.quiet()
        tl.store(out + 3, shmem.atomic_fetch(word + 1, 0))


@triton.jit
def mixed(word, HOW: tl.constexpr):
    """Two ranks do an atomic each on a word of rank 0."""
    if shmem.my_pe() == 1 or HOW == "network":
        shmem.atomic_inc(word, 0)
    elif HOW == "context":
        shmem.atomic_inc(word, 0, 1)
    elif HOW == "type":
        shmem.atomic_inc(word.to(tl.pointer_type(tl.float32)), 0)
    elif HOW == "program":
        tl.atomic_add(word, 1, sem="relaxed", scope="sys")
    elif HOW == "poll":
        tl.atomic_add(word, 0, sem="acquire", scope="sys")


@triton.jit
def wrong(data, out, COUNT: tl.constexpr, PE: tl.constexpr, STRIDE: tl.constexpr, OWN: tl.constexpr):
    """Rank 0 sends what it can't."""
    if shmem.my_pe() == 0:
        target = out if OWN else data
        shmem.iput(target, data, STRIDE, 1, COUNT, PE)


@triton.jit
def two_programs(data, buffer, flag, signal, out):
    """Program 0 sends; program 1 of the same rank learns of that, completes it for the rank, and tells the peer."""
    if shmem.my_pe() == 1:
        if tl.program_id(0) == 0:
            wait(signal, 1)
            tl.store(out, tl.load(data))
    elif tl.program_id(0) == 0:
        tl.store(buffer, 4)
        shmem.put_nbi(data, buffer, 1, 1)
        tl.atomic_xchg(flag, 1, sem="release", scope="gpu")
    else:
        while tl.atomic_add(flag, 0, sem="acquire", scope="gpu") == 0:
            pass
        shmem.quiet()
        shmem.signal_op(signal, 1, shmem.SIGNAL_SET, 1)


@triton.jit
def block(data):
    """A block of pointers is no place."""
    shmem.put_nbi(data + tl.arange(0, 2), data, 1, 1)
