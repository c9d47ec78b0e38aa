"""One-sided operations of OpenSHMEM and NVSHMEM in hand-written kernels, executed by `KernelWorld`.

They are called in `@triton.jit` functions, with the arguments that the C functions of these names have: `target` and
`source` are pointers whose type says the elements, far memory is named by the own address of the same symmetric place,
`pe` is a rank. Transfers are late and in no order but that of `fence` and `quiet`: see tilelink.emulator.network.

This is for checking on a CPU alone, and can't be compiled: on GPUs the library's own functions of the same names take
their place (`nvshmem_putmem_nbi`, ...; of contexts and of atomics with `_nbi`, OpenSHMEM's, NVSHMEM has none).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl

from tilelink.emulator.accesses import Accesses
from tilelink.emulator.interpreter import handler, sites
from tilelink.emulator.kernel_values import as_element, as_tensor, number, pointee
from tilelink.emulator.network import Network
from tilelink.emulator.transfers import Atomic, Change, Place
from tilelink.errors import ArgumentError, Site

SIGNAL_SET = tl.constexpr(9)
SIGNAL_ADD = tl.constexpr(10)


# ---- who


def my_pe() -> Any:
    """The rank that executes."""
    return as_tensor(np.array([_network().program.launch.rank], np.int32), tl.int32)


def n_pes() -> Any:
    """The number of ranks."""
    return as_tensor(np.array([_network().world], np.int32), tl.int32)


# ---- transfers: `count` elements; a blocking put returns when its source may be written to, not when it has arrived


def put(target: Any, source: Any, count: Any, pe: Any, ctx: Any = 0) -> None:
    """Copies elements to a peer; returns once the source may be written to."""
    network = _network()
    network.sent(network.put("put", _place(target, count), _place(source, count), number(pe), number(ctx)))


def put_nbi(target: Any, source: Any, count: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to copy elements to a peer."""
    _network().put("put_nbi", _place(target, count), _place(source, count), number(pe), number(ctx))


def get(target: Any, source: Any, count: Any, pe: Any, ctx: Any = 0) -> None:
    """Copies elements of a peer to here; returns once they are here."""
    network = _network()
    network.complete(network.get("get", _place(target, count), _place(source, count), number(pe), number(ctx)))


def get_nbi(target: Any, source: Any, count: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to copy elements of a peer to here."""
    _network().get("get_nbi", _place(target, count), _place(source, count), number(pe), number(ctx))


def iput(target: Any, source: Any, target_stride: Any, source_stride: Any, count: Any, pe: Any, ctx: Any = 0) -> None:
    """`put` of elements that lie so many elements apart, there and here."""
    there, here = _place(target, count, target_stride), _place(source, count, source_stride)
    network = _network()
    network.sent(network.put("iput", there, here, number(pe), number(ctx)))


def iget(target: Any, source: Any, target_stride: Any, source_stride: Any, count: Any, pe: Any, ctx: Any = 0) -> None:
    """`get` of elements that lie so many elements apart, here and there."""
    here, there = _place(target, count, target_stride), _place(source, count, source_stride)
    network = _network()
    network.complete(network.get("iget", here, there, number(pe), number(ctx)))


def p(target: Any, value: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to write one value to a peer."""
    _network().put("p", _place(target), as_element(value, target), number(pe), number(ctx))


def g(source: Any, pe: Any, ctx: Any = 0) -> Any:
    """One value of a peer."""
    network = _network()
    transfer = network.get("g", None, _place(source), number(pe), number(ctx))
    network.complete(transfer)
    return as_tensor(transfer.value, pointee(source)[2])


# ---- puts with a signal: a word of the peer that changes after the data has arrived, and before nothing else


def put_signal(
    target: Any, source: Any, count: Any, signal: Any, value: Any, operation: Any, pe: Any, ctx: Any = 0
) -> None:
    """`put`, then SIGNAL_SET or SIGNAL_ADD of a word of the peer."""
    network = _network()
    network.sent(_put_signal(network, "put_signal", target, source, count, signal, value, operation, pe, ctx))


def put_signal_nbi(
    target: Any, source: Any, count: Any, signal: Any, value: Any, operation: Any, pe: Any, ctx: Any = 0
) -> None:
    """`put_nbi`, then SIGNAL_SET or SIGNAL_ADD of a word of the peer."""
    _put_signal(_network(), "put_signal_nbi", target, source, count, signal, value, operation, pe, ctx)


def signal_op(signal: Any, value: Any, operation: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts SIGNAL_SET or SIGNAL_ADD of a word of a peer."""
    change = _signal(signal, value, operation)
    _network().atomic("signal_op", _place(signal), change, number(pe), number(ctx))


# ---- atomics, which are atomic to those of all contexts that take the word for one of the same type


def atomic_fetch(source: Any, pe: Any, ctx: Any = 0) -> Any:
    """A word of a peer."""
    return _fetched("atomic_fetch", source, _atomic("atomic_load", source, lambda old: None), pe, ctx)


def atomic_set(target: Any, value: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to write a word of a peer."""
    new = as_element(value, target)
    atomic = _atomic("atomic_store", target, lambda old: new)
    _network().atomic("atomic_set", _place(target), atomic, number(pe), number(ctx))


def atomic_add(target: Any, value: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to add to a word of a peer."""
    more = as_element(value, target)
    atomic = _atomic("atomic_add", target, lambda old: old + more)
    _network().atomic("atomic_add", _place(target), atomic, number(pe), number(ctx))


def atomic_inc(target: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to add 1 to a word of a peer."""
    _network().atomic("atomic_inc", _place(target), _increment(target), number(pe), number(ctx))


def atomic_fetch_inc(target: Any, pe: Any, ctx: Any = 0) -> Any:
    """Adds 1 to a word of a peer, and returns what it was."""
    return _fetched("atomic_fetch_inc", target, _increment(target), pe, ctx)


def atomic_compare_swap(target: Any, condition: Any, value: Any, pe: Any, ctx: Any = 0) -> Any:
    """Writes a word of a peer if it equals the condition, and returns what it was."""
    return _fetched("atomic_compare_swap", target, _compare_swap(target, condition, value), pe, ctx)


def atomic_fetch_nbi(fetch: Any, source: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to bring a word of a peer to memory."""
    atomic = _atomic("atomic_load", source, lambda old: None)
    _network().atomic("atomic_fetch_nbi", _place(source), atomic, number(pe), number(ctx), _place(fetch))


def atomic_fetch_inc_nbi(fetch: Any, target: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to add 1 to a word of a peer, and to bring what it was to memory."""
    atomic = _increment(target)
    _network().atomic("atomic_fetch_inc_nbi", _place(target), atomic, number(pe), number(ctx), _place(fetch))


def atomic_compare_swap_nbi(fetch: Any, target: Any, condition: Any, value: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to write a word of a peer if it equals the condition, and to bring what it was to memory."""
    atomic = _compare_swap(target, condition, value)
    _network().atomic("atomic_compare_swap_nbi", _place(target), atomic, number(pe), number(ctx), _place(fetch))


# ---- order


def fence(ctx: Any = 0) -> None:
    """What this rank has put to a peer, in a context, is there before what it puts next; so with atomics. Transfers to
    here are not ordered: not a get, nor an atomic that brings a word to memory."""
    _network().fence(number(ctx))


def quiet(ctx: Any = 0) -> None:
    """Waits until all that this rank has started in a context is complete."""
    _network().quiet(number(ctx))


# ---- inside


def _network() -> Network:
    memory = handler()
    if not isinstance(memory, Accesses) or memory.network is None:
        raise ArgumentError("operations of a network are for kernels that a KernelWorld runs", Site.of_user())
    return memory.network


def _place(pointer: Any, count: Any = 1, stride: Any = 1) -> Place:
    address, dtype, _ = pointee(pointer)
    count, stride = number(count), number(stride)
    if count < 0 or stride < 1:
        raise ArgumentError(f"{count} elements with a stride of {stride}: no less than 0, and 1", sites.current())
    return Place(address, dtype, count, stride)


def _put_signal(
    network: Network, name: str, target: Any, source: Any, count: Any, signal: Any, value: Any, operation: Any, pe: Any,
    ctx: Any,
) -> Any:  # fmt: skip
    word = _place(signal), _signal(signal, value, operation)
    return network.put(name, _place(target, count), _place(source, count), number(pe), number(ctx), word)


def _signal(signal: Any, value: Any, operation: Any) -> Atomic:
    """Signals are atomic to each other, whatever the context."""
    new, operation = as_element(value, signal), number(operation)
    if operation == SIGNAL_ADD.value:
        return Atomic("atomic_add", lambda old: old + new, "signals of the network")
    if operation == SIGNAL_SET.value:
        return Atomic("atomic_store", lambda old: new, "signals of the network")
    raise ArgumentError(f"operation {operation} of a signal: SIGNAL_SET or SIGNAL_ADD", sites.current())


def _atomic(kind: str, pointer: Any, change: Change) -> Atomic:
    """Contexts of one team, here that of all ranks, are one domain for each type of a word (OpenSHMEM 1.5, Atomicity
    Guarantees)."""
    return Atomic(kind, change, f"atomics of the network, {pointee(pointer)[2]}")


def _increment(pointer: Any) -> Atomic:
    return _atomic("atomic_add", pointer, lambda old: old + old.dtype.type(1))


def _compare_swap(pointer: Any, condition: Any, value: Any) -> Atomic:
    expected, new = as_element(condition, pointer), as_element(value, pointer)
    return _atomic("atomic_cas", pointer, lambda old: new if (old == expected).all() else None)


def _fetched(name: str, pointer: Any, atomic: Atomic, pe: Any, ctx: Any) -> Any:
    network = _network()
    transfer = network.atomic(name, _place(pointer), atomic, number(pe), number(ctx))
    network.complete(transfer)
    return as_tensor(transfer.value, pointee(pointer)[2])
