"""Kernels in which two accesses meet at one place, and nothing orders them; every line is marked with its operation."""

import triton
import triton.language as tl

from tilelink.emulator import shmem

N = tl.constexpr(4)


@triton.jit
def access(data, buffer, near, out, signal, pe, OPERATION: tl.constexpr):
    """One operation between the data of rank `pe` and the own buffer, or one of the own rank on what is near."""
    i = tl.arange(0, N)
    if OPERATION == "load":
        tl.store(out + i, tl.load(near + i))  # load
    elif OPERATION == "store":
        tl.store(near + i, i)  # store
    elif OPERATION == "put":
        shmem.put(data, buffer, N, pe)  # put
    elif OPERATION == "putnbi":
        shmem.put_nbi(data, buffer, N, pe)  # putnbi
    elif OPERATION == "get":
        shmem.get(buffer, data, N, pe)  # get
    elif OPERATION == "getnbi":
        shmem.get_nbi(buffer, data, N, pe)  # getnbi
    elif OPERATION == "p":
        shmem.p(data, 3, pe)  # p
    elif OPERATION == "g":
        tl.store(out, shmem.g(data, pe))  # g
    elif OPERATION == "iput":
        shmem.iput(data, buffer, 2, 1, N // 2, pe)  # iput
    elif OPERATION == "iget":
        shmem.iget(buffer, data, 1, 2, N // 2, pe)  # iget
    elif OPERATION == "put_signal":
        shmem.put_signal(data, buffer, N, signal, 1, shmem.SIGNAL_ADD, pe)  # put_signal
    elif OPERATION == "put_signal_nbi":
        shmem.put_signal_nbi(data, buffer, N, signal, 1, shmem.SIGNAL_ADD, pe)  # put_signal_nbi
    elif OPERATION == "atomicset":
        shmem.atomic_set(data, 5, pe)  # atomicset
    elif OPERATION == "atomicfetch":
        tl.store(out, shmem.atomic_fetch(data, pe))  # atomicfetch
    elif OPERATION == "atomicfetchinc":
        tl.store(out, shmem.atomic_fetch_inc(data, pe))  # atomicfetchinc
    elif OPERATION == "atomicfetchnbi":
        shmem.atomic_fetch_nbi(buffer, data, pe)  # atomicfetchnbi
    elif OPERATION == "atomicfetchincnbi":
        shmem.atomic_fetch_inc_nbi(buffer, data, pe)  # atomicfetchincnbi
    elif OPERATION == "atomiccompareswapnbi":
        shmem.atomic_compare_swap_nbi(buffer, data, 0, 1, pe)  # atomiccompareswapnbi
    else:
        tl.static_assert(False, "no such operation")


@triton.jit
def at_the_origin(data, buffer, out, signal, FIRST: tl.constexpr, SECOND: tl.constexpr):
    """Rank 0 starts something with its buffer, and does something else with it before the first is complete. At the
    peer, the two have places of their own."""
    if shmem.my_pe() == 0:
        access(data, buffer, buffer, out, signal, 1, FIRST)
        access(data + N, buffer, buffer, out, signal, 1, SECOND)
        shmem.quiet()


@triton.jit
def at_the_target(data, buffer, out, signal, FIRST: tl.constexpr, SECOND: tl.constexpr, OTHER: tl.constexpr):
    """Rank 1 and another one each do something with the data of rank 0; the other may be rank 0 itself."""
    me = shmem.my_pe()
    if me == 1:
        access(data, buffer, data, out, signal, 0, FIRST)
        shmem.quiet()
    elif me == OTHER:
        access(data, buffer, data, out, signal, 0, SECOND)
        shmem.quiet()
