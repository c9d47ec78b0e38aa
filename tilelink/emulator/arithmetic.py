"""Arithmetic of interpreted kernels: bfloat16 in float32, where Triton's interpreter would add its uint16 words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as stock

from tilelink.emulator.kernel_values import Handle
from tilelink.emulator.memory import Array

_Builder = stock.InterpreterBuilder
_QUIET_NAN = np.uint16(0x7FC0)


def to_float32(words: Array) -> Array:
    """The exact values of bfloat16 words, which are the upper halves of float32 words."""
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def from_float32(values: Array) -> Array:
    """The bfloat16 words nearest to float32 values; ties go to even, NaN to the quiet NaN."""
    values = np.ascontiguousarray(values, np.float32)
    bits = values.view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    with np.errstate(over="ignore"):
        words = ((bits + half) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), _QUIET_NAN, words)


def _is_bfloat16(handle: Any) -> bool:
    return bool(handle.data.dtype == np.uint16 and handle.dtype.scalar == tl.bfloat16)


def _widened(handle: Any) -> Any:
    return Handle(to_float32(handle.data), tl.float32) if _is_bfloat16(handle) else handle


def _narrowed(handle: Any) -> Any:
    if handle.data.dtype == np.float32:
        return Handle(from_float32(handle.data), tl.bfloat16)
    return Handle(handle.data, tl.bfloat16)


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
        return Handle(from_float32(source.data), tl.bfloat16)
    return _stock_cast(self, _widened(source), target) if after != tl.float32 else _widened(source)


def _float_cast(self: Any, source: Any, target: Any, rounding: Any) -> Any:
    to_nearest = rounding is None or rounding == stock._ir.ROUNDING_MODE.RTNE
    if source.dtype.scalar == tl.float32 and target.scalar == tl.bfloat16 and to_nearest:
        return _cast(self, source, target)
    return _stock_float_cast(self, source, target, rounding)


def _dot(self: Any, a: Any, b: Any, accumulator: Any, *precision: Any) -> Any:
    if all(operand.dtype.scalar in (tl.float16, tl.bfloat16, tl.float32) for operand in (a, b)):
        # In float64, because in float32 the BLAS of some CPUs adds up a row in an order that depends on its place.
        left, right = (_widened(operand).data.astype(np.float64) for operand in (a, b))
        total = (left @ right).astype(np.float32) + _widened(accumulator).data
        if _is_bfloat16(accumulator):
            return Handle(from_float32(total), tl.bfloat16)
        return Handle(total.astype(accumulator.data.dtype, copy=False), accumulator.dtype.scalar)
    return _stock_dot(self, a, b, accumulator, *precision)


def reduce_or_scan(self: Any, inputs: Any) -> Any:
    """Replaces `ReduceScanOpInterface.apply`; computes bfloat16 in float32."""
    if not isinstance(inputs, tuple):
        return reduce_or_scan(self, (inputs,))[0]
    narrow = [isinstance(x, tl.tensor) and _is_bfloat16(x.handle) for x in inputs]
    if not any(narrow):
        return _stock_apply(self, inputs)
    results = _stock_apply(self, tuple(x.to(tl.float32) if n else x for x, n in zip(inputs, narrow, strict=True)))
    return tuple(x.to(tl.bfloat16) if n else x for x, n in zip(results, narrow, strict=True))


_stock_cast, _stock_float_cast, _stock_dot = _Builder.cast_impl, _Builder.create_fp_to_fp, _Builder.create_dot
_stock_apply = stock.ReduceScanOpInterface.apply
ARITHMETIC: dict[str, Callable[..., Any]] = {
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
"""Replacements for methods of Triton's builder, by name."""
