"""The adapter to Triton's interpreter: all that depends on its internals, in Triton 3.6 to 3.9, is here.

Nothing is patched at import. `installed` patches Triton for the duration of a run: `triton.language` computes
with numpy, calls of `@triton.jit` functions run their Python source, and every access to memory goes to a
handler.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import triton
import triton.language as tl
import triton.runtime.interpreter as stock
from triton.runtime.jit import JITFunction

from tilelink.runtime.cpu import bfloat16
from tilelink.runtime.cpu.handler import MemoryHandler
from tilelink.runtime.cpu.memory import Array
from tilelink.runtime.cpu.rewriting import rewritten
from tilelink.runtime.cpu.sites import SiteFinder

_Builder = stock.InterpreterBuilder
_Handle = stock.TensorHandle
_MISSING = object()
_TRITON = os.path.dirname(triton.__file__)
_SEMANTICS = {"RELAXED": "relaxed", "ACQUIRE": "acquire", "RELEASE": "release", "ACQUIRE_RELEASE": "acq_rel"}
_SCOPES = {"CTA": "cta", "GPU": "gpu", "SYSTEM": "sys"}
_OPERATIONS = {"FADD": "ADD", "UMIN": "MIN", "UMAX": "MAX"}
_TWIN = "__tilelink_interpreted__"
_installed: tuple[MemoryHandler, ExitStack] | None = None
_one_run = Lock()
_stock_numpy_dtype = stock._get_np_dtype
_numpy_dtypes: dict[str, np.dtype[Any]] = {}
sites = SiteFinder()
"""Finds lines of the functions that were interpreted."""


@dataclasses.dataclass(frozen=True, eq=False)
class InterpretedKernel:
    """What `interpreted` makes of a kernel."""

    kernel: Any
    name: str
    function: FunctionType
    parameters: tuple[str, ...]
    constexprs: frozenset[str]

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a launch as the interpreter takes them. Raises `TypeError` if they do not fit."""
        unknown = arguments.keys() - set(self.parameters)
        if unknown:
            raise TypeError(f"{self.name} has no parameter {', '.join(sorted(unknown))}")
        signature = self.kernel.signature.bind(**arguments)
        signature.apply_defaults()
        values = {name: _unwrapped(value) for name, value in signature.arguments.items()}
        return {
            name: value if name in self.constexprs else stock._implicit_cvt(value) for name, value in values.items()
        }

    def run(self, memory: MemoryHandler, arguments: Mapping[str, Any]) -> None:
        """Runs one program; what it accesses goes to the handler that is `installed`, which is `memory`."""
        self.function(**arguments)


def interpreted(kernel: Any) -> InterpretedKernel:
    """The twin of a `triton.jit` function that `Execution.launch` takes. The kernel itself stays as it is."""
    kernel = _jit_function(kernel)
    constexprs = frozenset(parameter.name for parameter in kernel.params if parameter.is_constexpr)
    names = tuple(kernel.signature.parameters)
    return InterpretedKernel(kernel, kernel.__name__, _python_function(kernel), names, constexprs)


def set_program(program: int, shape: tuple[int, ...]) -> None:
    """Says which program's code runs from now on: its number in a grid of this shape, whose first axis goes fastest."""
    x, y, z = (*shape, 1, 1)[:3]
    stock.interpreter_builder.grid_idx = (program % x, program // x % y, program // (x * y))
    stock.interpreter_builder.grid_dim = (x, y, z)


@contextmanager
def installed(handler: MemoryHandler) -> Iterator[None]:
    """Patches Triton so that interpreted kernels run and reach memory through `handler`; undone at the end."""
    global _installed
    if not _one_run.acquire(blocking=False):
        raise RuntimeError("another execution is running in this process")
    try:
        _installed = handler, _patched(handler)
        yield
    finally:
        if _installed is not None:
            _installed[1].close()
        _installed = None
        _one_run.release()


def handler() -> MemoryHandler | None:
    """The handler that is installed, if there is one."""
    return None if _installed is None else _installed[0]


@contextmanager
def suspended() -> Iterator[None]:
    """Triton as it is when nothing runs, for a host function that reads or compiles kernels; no switch in between."""
    global _installed
    if _installed is None:
        yield
        return
    handler, patches = _installed
    patches.close()
    try:
        yield
    finally:
        _installed = handler, _patched(handler)


def _patched(handler: MemoryHandler) -> ExitStack:
    """Puts all patches in place; closing what is returned removes them."""
    with ExitStack() as patches:
        language = stock._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        if language is not None:
            patches.callback(language.restore)
        # numpy 2.4 refuses int() of one-element arrays, on which Triton 3.6 relies.
        _replace(patches, tl.tensor, "__index__", lambda self: int(self.handle.data.item()))
        _replace(patches, stock, "_get_np_dtype", _numpy_dtype)
        _replace(patches, JITFunction, "__call__", _call)
        _replace(patches, JITFunction, "__get__", _bound)
        _replace(patches, stock.InterpretedFunction, "__call__", _call)
        _replace(patches, stock.ReduceScanOpInterface, "apply", _apply)
        options = dataclasses.replace(stock.interpreter_builder.options, sanitize_overflow=False, debug=True)
        _replace(patches, stock.interpreter_builder, "options", options)
        for name, hook in (_memory_hooks(handler) | _ARITHMETIC).items():
            if hasattr(_Builder, name) or name == "get_bf16":
                _replace(patches, _Builder, name, hook)
        return patches.pop_all()


def _replace(patches: ExitStack, owner: Any, name: str, value: Any) -> None:
    before = vars(owner).get(name, _MISSING)
    setattr(owner, name, value)
    if before is _MISSING:
        patches.callback(delattr, owner, name)
    else:
        patches.callback(setattr, owner, name, before)


# Values of kernels, for functions that kernels call -----------------------------------------------------------


def number(value: Any) -> int:
    """An integer of a kernel."""
    value = _unwrapped(value)
    return int(value.handle.data.item()) if isinstance(value, tl.tensor) else int(value)


def pointee(pointer: Any) -> tuple[int, np.dtype[Any], Any]:
    """The address in a pointer, and the elements there: numpy's dtype and Triton's. Raises TypeError."""
    if not (isinstance(pointer, tl.tensor) and pointer.dtype.is_ptr() and pointer.handle.data.size == 1):
        raise TypeError(f"{pointer} is not one pointer")
    element = pointer.dtype.element_ty
    return int(pointer.handle.data.item()), _numpy_dtype(element), element


def as_element(value: Any, pointer: Any) -> Array:
    """A number of a kernel as the one element that a pointer leads to."""
    semantic = stock.interpreter_semantic
    data = semantic.cast(semantic.to_tensor(value), pointer.dtype.element_ty).handle.data
    return np.array(data, _numpy_dtype(pointer.dtype.element_ty)).reshape(1)


def as_tensor(values: Array | None, element: Any) -> Any:
    """One element as a number of a kernel."""
    return tl.tensor(_Handle(values, element), element)


def _unwrapped(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def _jit_function(kernel: Any) -> Any:
    # With TRITON_INTERPRET set, triton.jit makes an InterpretedFunction.
    return kernel if isinstance(kernel, JITFunction) else JITFunction(kernel.fn)


def _python_function(kernel: Any) -> FunctionType:
    """The Python function that the interpreter runs for a jitted one."""
    function: FunctionType | None = getattr(kernel.fn, _TWIN, None)
    if function is None:
        kernel = _jit_function(kernel)
        names = {"interpreter_semantic": stock.interpreter_semantic}
        if hasattr(stock, "_InterpreterComparison"):
            names["_InterpreterComparison"] = stock._InterpreterComparison
        function = rewritten(kernel.fn, kernel.raw_src, kernel.starting_line_number, stock.ASTTransformer(), names)
        setattr(kernel.fn, _TWIN, function)  # a table would keep generated kernels alive
        if not function.__code__.co_filename.startswith(_TRITON):
            sites.files.add(function.__code__.co_filename)
    return function


def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Stock builds a table of all dtypes for every call, and it is called for every operation."""
    dtype = dtype.scalar
    key = "pointer" if dtype.is_ptr() else dtype.name
    found = _numpy_dtypes.get(key)
    if found is None:
        found = _numpy_dtypes[key] = _stock_numpy_dtype(dtype)
    return found


def _call(kernel: Any, *arguments: Any, **named: Any) -> Any:
    return _python_function(kernel)(*arguments, **named)


def _bound(kernel: Any, instance: Any, owner: type | None = None) -> Any:
    """Makes `x.sum()` work: Triton puts jitted functions into the class of tensors."""
    return partial(_call, kernel, instance) if isinstance(instance, tl.tensor) else kernel


# Memory ----------------------------------------------------------------------------------------------------


def _memory_hooks(handler: MemoryHandler) -> dict[str, Callable[..., Any]]:
    stock_load, stock_store = _Builder.create_masked_load, _Builder.create_masked_store
    stock_rmw, stock_cas = _Builder.create_atomic_rmw, _Builder.create_atomic_cas

    def masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *policy: Any, **named: Any) -> Any:
        # What is between `other` and `is_volatile` differs from version to version, and means nothing here.
        volatile = bool(named["is_volatile"] if "is_volatile" in named else policy[-1])
        element = ptrs.get_element_ty()

        def gather() -> Array:
            full = _Handle(np.ones(ptrs.data.shape, bool), tl.int1) if mask is None else mask
            return stock_load(self, ptrs, full, other, *policy, **named).data

        data = handler.load(
            ptrs.data,
            _mask(mask),
            None if other is None else other.data,
            _numpy_dtype(element),
            volatile,
            gather,
        )
        return _Handle(data, element)

    def load(self: Any, ptr: Any, *policy: Any, **named: Any) -> Any:
        return masked_load(self, ptr, None, None, *policy, **named)

    def masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *policy: Any, **named: Any) -> None:
        values = value.data.astype(_numpy_dtype(ptrs.get_element_ty()), copy=False)

        def scatter() -> None:
            full = _Handle(np.ones(ptrs.data.shape, bool), tl.int1) if mask is None else mask
            stock_store(self, ptrs, _Handle(values, value.dtype), full, *policy, **named)

        handler.store(ptrs.data, _mask(mask), values, scatter)

    def store(self: Any, ptr: Any, value: Any, *policy: Any, **named: Any) -> None:
        masked_store(self, ptr, value, None, *policy, **named)

    def atomic(kind: str, ptr: Any, mask: Any, sem: Any, scope: Any, apply: Callable[[], Array]) -> Any:
        element = ptr.get_element_ty()
        dtype = _numpy_dtype(element)
        order, reach = _SEMANTICS[sem.name], _SCOPES[scope.name]
        return _Handle(handler.atomic(kind, ptr.data, _mask(mask), dtype, order, reach, apply), element)

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
            found = atomic_load(self, ptr, _Handle(waiting, tl.int1), sem, scope)
            waiting = waiting & (found.data != expected.data)
        return _Handle(~waiting, tl.int1)

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


def _mask(mask: Any) -> Array | None:
    # Descriptors of Triton 3.6 and 3.7 pass arrays, everything else handles.
    return mask if mask is None or isinstance(mask, np.ndarray) else mask.data


# Arithmetic: Triton holds bfloat16 as uint16 and computes with the words. Here it is float32 ---------------


def _is_bfloat16(handle: Any) -> bool:
    return bool(handle.data.dtype == np.uint16 and handle.dtype.scalar == tl.bfloat16)


def _widened(handle: Any) -> Any:
    return _Handle(bfloat16.to_float32(handle.data), tl.float32) if _is_bfloat16(handle) else handle


def _narrowed(handle: Any) -> Any:
    if handle.data.dtype == np.float32:
        return _Handle(bfloat16.from_float32(handle.data), tl.bfloat16)
    return _Handle(handle.data, tl.bfloat16)


def _computed_wide(operation: Callable[..., Any], operands: int) -> Callable[..., Any]:
    def wide(self: Any, *arguments: Any) -> Any:
        handles, rest = arguments[:operands], arguments[operands:]
        if not _is_bfloat16(handles[-1]) or rest[:1] == (np.where,):
            return operation(self, *arguments)
        return _narrowed(operation(self, *map(_widened, handles), *rest))

    return wide


def _cast(self: Any, source: Any, target: Any) -> Any:
    before, after = source.dtype.scalar, target.scalar
    if before == after or tl.bfloat16 not in (before, after):
        return _stock_cast(self, source, target)
    if after == tl.bfloat16:
        return _Handle(bfloat16.from_float32(source.data), tl.bfloat16)
    return _stock_cast(self, _widened(source), target) if after != tl.float32 else _widened(source)


def _float_cast(self: Any, source: Any, target: Any, rounding: Any) -> Any:
    to_nearest = rounding is None or rounding == stock._ir.ROUNDING_MODE.RTNE
    if source.dtype.scalar == tl.float32 and target.scalar == tl.bfloat16 and to_nearest:
        return _cast(self, source, target)
    return _stock_float_cast(self, source, target, rounding)


def _dot(self: Any, a: Any, b: Any, accumulator: Any, *precision: Any) -> Any:
    if all(operand.dtype.scalar in (tl.float16, tl.bfloat16, tl.float32) for operand in (a, b)):
        # Explicit float32 arrays let numpy use BLAS.
        left, right = (_widened(operand).data.astype(np.float32, copy=False) for operand in (a, b))
        total = left @ right + _widened(accumulator).data
        if _is_bfloat16(accumulator):
            return _Handle(bfloat16.from_float32(total), tl.bfloat16)
        return _Handle(total.astype(accumulator.data.dtype, copy=False), accumulator.dtype.scalar)
    return _stock_dot(self, a, b, accumulator, *precision)


def _apply(self: Any, inputs: Any) -> Any:
    """Reductions and scans."""
    if not isinstance(inputs, tuple):
        return _apply(self, (inputs,))[0]
    narrow = [isinstance(x, tl.tensor) and _is_bfloat16(x.handle) for x in inputs]
    if not any(narrow):
        return _stock_apply(self, inputs)
    results = _stock_apply(self, tuple(x.to(tl.float32) if n else x for x, n in zip(inputs, narrow, strict=True)))
    return tuple(x.to(tl.bfloat16) if n else x for x, n in zip(results, narrow, strict=True))


_stock_cast, _stock_float_cast, _stock_dot = _Builder.cast_impl, _Builder.create_fp_to_fp, _Builder.create_dot
_stock_apply = stock.ReduceScanOpInterface.apply
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "unary_op": _computed_wide(_Builder.unary_op, 1),
    "binary_op": _computed_wide(_Builder.binary_op, 2),
    "ternary_op": _computed_wide(_Builder.ternary_op, 3),
    "create_fma": _computed_wide(_Builder.create_fma, 3),
    "create_clampf": _computed_wide(_Builder.create_clampf, 3),
    "cast_impl": _cast,
    "create_fp_to_fp": _float_cast,
    "create_dot": _dot,
    "get_bf16": lambda self, value: _cast(self, self.get_fp32(value), tl.bfloat16),
}
