"""Accesses of interpreted kernels, handed to `Accesses` in place of Triton's own loads, stores and atomics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as stock

from tilelink.emulator.accesses import Accesses
from tilelink.emulator.kernel_values import Handle, numpy_dtype
from tilelink.emulator.memory import Array
from tilelink.emulator.operation import Mode
from tilelink.frontend.kept import kept

_Builder = stock.InterpreterBuilder
_SEMANTICS = {"RELAXED": "relaxed", "ACQUIRE": "acquire", "RELEASE": "release", "ACQUIRE_RELEASE": "acq_rel"}
_SCOPES = {"CTA": "cta", "GPU": "gpu", "SYSTEM": "sys"}
_OPERATIONS = {"FADD": "ADD", "UMIN": "MIN", "UMAX": "MAX"}


def memory_hooks(memory: Accesses) -> dict[str, Callable[..., Any]]:
    """Replacements for methods of Triton's builder, of any version, by name. They access `memory`."""
    stock_load, stock_store = _Builder.create_masked_load, _Builder.create_masked_store
    stock_rmw, stock_cas = _Builder.create_atomic_rmw, _Builder.create_atomic_cas

    def masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *policy: Any, **named: Any) -> Any:
        # The arguments between `other` and `is_volatile` differ between versions, and mean nothing here.
        volatile = bool(named["is_volatile"] if "is_volatile" in named else policy[-1])
        element = ptrs.get_element_ty()
        background = None if other is None else other.data
        return Handle(memory.load(ptrs.data, numpy_dtype(element), _mask(mask), background, volatile), element)

    def load(self: Any, ptr: Any, *policy: Any, **named: Any) -> Any:
        return masked_load(self, ptr, None, None, *policy, **named)

    def masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *policy: Any, **named: Any) -> None:
        memory.store(ptrs.data, value.data.astype(numpy_dtype(ptrs.get_element_ty()), copy=False), _mask(mask))

    def store(self: Any, ptr: Any, value: Any, *policy: Any, **named: Any) -> None:
        masked_store(self, ptr, value, None, *policy, **named)

    def atomic(kind: str, ptr: Any, mask: Any, sem: Any, scope: Any, apply: Callable[[], Array]) -> Any:
        element, mode = ptr.get_element_ty(), _mode(kind, sem, scope)
        return Handle(memory.atomic(mode, ptr.data, numpy_dtype(element), apply, _mask(mask)), element)

    def rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        kind = f"atomic_{_OPERATIONS.get(op.name, op.name).lower()}"
        return atomic(kind, ptr, mask, sem, scope, lambda: stock_rmw(self, op, ptr, val, mask, sem, scope).data)

    def cas(self: Any, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        return atomic("atomic_cas", ptr, None, sem, scope, lambda: stock_cas(self, ptr, cmp, val, sem, scope).data)

    # Triton 3.9 and newer.
    def atomic_load(self: Any, ptr: Any, mask: Any, sem: Any, scope: Any) -> Any:
        return atomic("atomic_load", ptr, mask, sem, scope, lambda: stock_load(self, ptr, mask, None, None, True).data)

    def atomic_store(self: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> None:
        def apply() -> Array:
            old = stock_load(self, ptr, mask, None, None, True).data
            stock_store(self, ptr, val, mask, None)
            return old

        atomic("atomic_store", ptr, mask, sem, scope, apply)

    def atomic_poll(self: Any, ptr: Any, expected: Any, timeout_ns: Any, sem: Any, scope: Any) -> Any:
        # There is no time here: a poll that would time out on a GPU is a deadlock.
        waiting = np.ones(ptr.data.shape, bool)
        while waiting.any():
            found = atomic_load(self, ptr, Handle(waiting, tl.int1), sem, scope)
            waiting = waiting & (found.data != expected.data)
        return Handle(~waiting, tl.int1)

    return {
        "create_load": load,
        "create_masked_load": masked_load,
        "create_store": store,
        "create_masked_store": masked_store,
        "create_atomic_rmw": rmw,
        "create_atomic_cas": cas,
        "create_atomic_load": atomic_load,
        "create_atomic_store": atomic_store,
        "create_atomic_poll": atomic_poll,
    }


@kept()
def _mode(kind: str, sem: Any, scope: Any) -> Mode:
    return Mode(kind, _SEMANTICS[sem.name], _SCOPES[scope.name])


def _mask(mask: Any) -> Array | None:
    # Descriptors of Triton 3.6 and 3.7 pass arrays, everything else handles.
    return mask if mask is None or isinstance(mask, np.ndarray) else mask.data
