"""One-sided operations of OpenSHMEM and NVSHMEM in hand-written kernels, executed by `KernelWorld`.

`@triton.jit` functions call them with the arguments of the C functions of the same names. `target` and `source` are
pointers to elements. Far memory is named by this rank's own address of the same symmetric place. `pe` is a rank.
Transfers are late, and only `fence` and `quiet` order them: see tilelink.emulator.network.

They serve checks on a CPU and can't be compiled. On GPUs the library's own functions take their place
(`nvshmem_putmem_nbi`, ...). Only OpenSHMEM has contexts and atomics with `_nbi`; NVSHMEM has neither.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl

from tilelink.emulator import sites
from tilelink.emulator.interpreter import installed_memory
from tilelink.emulator.kernel_values import as_element, as_tensor, number, pointee
from tilelink.emulator.memory import Array, Strided
from tilelink.emulator.network import Atomic, Change, Network, Transfer
from tilelink.emulator.operation import Mode
from tilelink.errors import ArgumentError, Site

SIGNAL_SET = tl.constexpr(9)
SIGNAL_ADD = tl.constexpr(10)


# ---- ranks


def my_pe() -> Any:
    """The rank that executes."""
    return as_tensor(np.array([_network().program.who.rank], np.int32), tl.int32)


def n_pes() -> Any:
    """The number of ranks."""
    return as_tensor(np.array([_network().world], np.int32), tl.int32)


# ---- transfers: `count` elements; a blocking put returns when its source may be written to, not when it has arrived


def put(target: Any, source: Any, count: Any, pe: Any, ctx: Any = 0) -> None:
    """Copies elements to a peer; returns once the source may be written to."""
    _network().sent(_put("put", _place(target, count), _place(source, count), pe, ctx))


def put_nbi(target: Any, source: Any, count: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to copy elements to a peer."""
    _put("put_nbi", _place(target, count), _place(source, count), pe, ctx)


def get(target: Any, source: Any, count: Any, pe: Any, ctx: Any = 0) -> None:
    """Copies elements of a peer to this rank; returns once they are here."""
    _network().complete(_get("get", _place(target, count), _place(source, count), pe, ctx))


def get_nbi(target: Any, source: Any, count: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to copy elements of a peer to this rank."""
    _get("get_nbi", _place(target, count), _place(source, count), pe, ctx)


def iput(target: Any, source: Any, target_stride: Any, source_stride: Any, count: Any, pe: Any, ctx: Any = 0) -> None:
    """`put` of elements with strides, there and here; strides count elements."""
    there, here = _place(target, count, target_stride), _place(source, count, source_stride)
    _network().sent(_put("iput", there, here, pe, ctx))


def iget(target: Any, source: Any, target_stride: Any, source_stride: Any, count: Any, pe: Any, ctx: Any = 0) -> None:
    """`get` of elements with strides, here and there; strides count elements."""
    here, there = _place(target, count, target_stride), _place(source, count, source_stride)
    _network().complete(_get("iget", here, there, pe, ctx))


def p(target: Any, value: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to write one value to a peer."""
    _put("p", _place(target), as_element(value, target), pe, ctx)


def g(source: Any, pe: Any, ctx: Any = 0) -> Any:
    """Returns one value of a peer."""
    return _fetched(_get("g", None, _place(source), pe, ctx), source)


# ---- puts with a signal: a word of the peer changes after the data has arrived; it orders no other transfer


def put_signal(
    target: Any, source: Any, count: Any, signal: Any, value: Any, operation: Any, pe: Any, ctx: Any = 0
) -> None:
    """`put`, then SIGNAL_SET or SIGNAL_ADD of a word of the peer."""
    word = _signal(signal, value, operation)
    _network().sent(_put("put_signal", _place(target, count), _place(source, count), pe, ctx, word))


def put_signal_nbi(
    target: Any, source: Any, count: Any, signal: Any, value: Any, operation: Any, pe: Any, ctx: Any = 0
) -> None:
    """`put_nbi`, then SIGNAL_SET or SIGNAL_ADD of a word of the peer."""
    word = _signal(signal, value, operation)
    _put("put_signal_nbi", _place(target, count), _place(source, count), pe, ctx, word)


def signal_op(signal: Any, value: Any, operation: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts SIGNAL_SET or SIGNAL_ADD of a word of a peer."""
    _change("signal_op", _signal(signal, value, operation), pe, ctx)


# ---- atomics: in all contexts, they are atomic to other atomics that take the word for one of the same type


def atomic_fetch(source: Any, pe: Any, ctx: Any = 0) -> Any:
    """Returns a word of a peer."""
    return _fetched(_change("atomic_fetch", _look(source), pe, ctx), source)


def atomic_set(target: Any, value: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to write a word of a peer."""
    new = as_element(value, target)
    _change("atomic_set", _atomic("atomic_store", target, lambda old: new), pe, ctx)


def atomic_add(target: Any, value: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to add to a word of a peer."""
    more = as_element(value, target)
    _change("atomic_add", _atomic("atomic_add", target, lambda old: old + more), pe, ctx)


def atomic_inc(target: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to add 1 to a word of a peer."""
    _change("atomic_inc", _increment(target), pe, ctx)


def atomic_fetch_inc(target: Any, pe: Any, ctx: Any = 0) -> Any:
    """Adds 1 to a word of a peer, and returns its old value."""
    return _fetched(_change("atomic_fetch_inc", _increment(target), pe, ctx), target)


def atomic_compare_swap(target: Any, condition: Any, value: Any, pe: Any, ctx: Any = 0) -> Any:
    """Writes a word of a peer if it equals the condition, and returns its old value."""
    return _fetched(_change("atomic_compare_swap", _compare_swap(target, condition, value), pe, ctx), target)


def atomic_fetch_nbi(fetch: Any, source: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to bring a word of a peer to memory."""
    _change("atomic_fetch_nbi", _look(source), pe, ctx, fetch)


def atomic_fetch_inc_nbi(fetch: Any, target: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to add 1 to a word of a peer, and to bring its old value to memory."""
    _change("atomic_fetch_inc_nbi", _increment(target), pe, ctx, fetch)


def atomic_compare_swap_nbi(fetch: Any, target: Any, condition: Any, value: Any, pe: Any, ctx: Any = 0) -> None:
    """Starts to write a word of a peer if it equals the condition, and to bring its old value to memory."""
    _change("atomic_compare_swap_nbi", _compare_swap(target, condition, value), pe, ctx, fetch)


# ---- order


def fence(ctx: Any = 0) -> None:
    """Orders this rank's later puts and atomics to a peer, in a context, after its earlier ones. It does not order
    transfers to this rank: gets, and atomics that bring a word to memory."""
    _network().fence(number(ctx))


def quiet(ctx: Any = 0) -> None:
    """Waits until all transfers that this rank has started in a context are complete."""
    _network().quiet(number(ctx))


# ---- inside


def _network() -> Network:
    memory = installed_memory()
    if memory is None or memory.network is None:
        raise ArgumentError("operations of a network are for kernels that a KernelWorld runs", Site.of_user())
    return memory.network


def _place(pointer: Any, count: Any = 1, stride: Any = 1) -> Strided:
    address, dtype, _ = pointee(pointer)
    count, stride = number(count), number(stride)
    if count < 0 or stride < 1:
        raise ArgumentError(f"{count} elements with a stride of {stride}: at least 0, and at least 1", sites.current())
    return Strided(address, dtype, (count,), (stride * dtype.itemsize,))


def _put(
    name: str, target: Strided, source: Strided | Array, pe: Any, ctx: Any, signal: Atomic | None = None
) -> Transfer:
    return _network().put(name, target, source, number(pe), number(ctx), signal)


def _get(name: str, target: Strided | None, source: Strided, pe: Any, ctx: Any) -> Transfer:
    return _network().get(name, target, source, number(pe), number(ctx))


def _change(name: str, atomic: Atomic, pe: Any, ctx: Any, fetch: Any = None) -> Transfer:
    return _network().atomic(name, atomic, number(pe), number(ctx), None if fetch is None else _place(fetch))


def _fetched(transfer: Transfer, pointer: Any) -> Any:
    """Waits for a transfer, and returns the value that it brings."""
    _network().complete(transfer)
    return as_tensor(transfer.value, pointee(pointer)[2])


def _signal(signal: Any, value: Any, operation: Any) -> Atomic:
    """The atomic that changes a signal. Signals are atomic to each other in all contexts."""
    new, operation = as_element(value, signal), number(operation)
    known: dict[int, tuple[str, Change]] = {
        SIGNAL_ADD.value: ("atomic_add", lambda old: old + new),
        SIGNAL_SET.value: ("atomic_store", lambda old: new),
    }
    if operation not in known:
        raise ArgumentError(f"operation {operation} of a signal: SIGNAL_SET or SIGNAL_ADD", sites.current())
    kind, change = known[operation]
    return Atomic(_place(signal), Mode(kind, "release", "sys", "signals of the network"), change)


def _atomic(kind: str, pointer: Any, change: Change, semantic: str = "release") -> Atomic:
    """An atomic on a word. All contexts of one team, here the team of all ranks, are one domain for each type of a word
    (OpenSHMEM 1.5, Atomicity Guarantees)."""
    domain = f"atomics of the network, {pointee(pointer)[2]}"
    return Atomic(_place(pointer), Mode(kind, semantic, "sys", domain), change)


def _look(pointer: Any) -> Atomic:
    return _atomic("atomic_load", pointer, lambda old: None, "relaxed")


def _increment(pointer: Any) -> Atomic:
    return _atomic("atomic_add", pointer, lambda old: old + old.dtype.type(1))


def _compare_swap(pointer: Any, condition: Any, value: Any) -> Atomic:
    expected, new = as_element(condition, pointer), as_element(value, pointer)
    return _atomic("atomic_cas", pointer, lambda old: new if (old == expected).all() else None)
