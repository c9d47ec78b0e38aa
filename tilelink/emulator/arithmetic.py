"""Arithmetic of interpreted kernels as GPUs compute it: bfloat16 in float32, where Triton's interpreter would add its
uint16 words; casts to and from float8, and to integers; maxima and minima that leave out NaN; sums and differences of
bool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
import triton.runtime.interpreter as stock

from tilelink.emulator.kernel_values import Handle, numpy_dtype
from tilelink.emulator.memory import Array

_Builder = stock.InterpreterBuilder
_WORDS = {np.dtype(np.uint16).num, np.dtype(np.uint8).num}
"""Words of bfloat16 and float8, among others."""
_QUIET_NAN = np.uint16(0x7FC0)
_FLOAT8_NAN = np.uint8(0x7F)
_FLOAT8: dict[Any, Array] = {
    dtype: torch.arange(256, dtype=torch.uint8).view(same).float().numpy()
    for dtype, same in ((tl.float8e4nv, torch.float8_e4m3fn), (tl.float8e5, torch.float8_e5m2))
}
"""The values of the 256 words of each float8 format. Words 0 to 0x7F grow in value; from 0x80 on they are negative."""


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


def to_float8(values: Array, dtype: Any, toward_zero: bool = False) -> Array:
    """The words of a float8 dtype nearest to float32 values, as NVIDIA's `cvt.rn.satfinite` makes them.

    Ties go to even. Values beyond the largest finite one become the largest finite one, and so does infinity: torch
    makes infinity of them in e5m2, and older versions of torch make NaN of them in e4m3. NaN becomes the word 0x7F,
    whatever its sign. `toward_zero` rounds as NVIDIA's `cvt.rz`: infinity stays infinity in e5m2."""
    magnitudes, words = np.abs(values), _FLOAT8[dtype][:0x80]
    if toward_zero:
        found = np.searchsorted(words[~np.isnan(words)], magnitudes, "right") - 1
    else:
        finite = words[np.isfinite(words)]
        halfway = (finite[:-1] + finite[1:]) / 2
        below, above = (np.searchsorted(halfway, magnitudes, side) for side in ("left", "right"))
        found = np.where(below % 2, above, below)  # they differ in a tie
    signed = found.astype(np.uint8) | (np.signbit(values).astype(np.uint8) << np.uint8(7))
    return np.where(np.isnan(values), _FLOAT8_NAN, signed)


def _is_bfloat16(handle: Any) -> bool:
    return bool(handle.data.dtype == np.uint16 and handle.dtype.scalar == tl.bfloat16)


def _widened(handle: Any) -> Any:
    if handle.dtype.scalar in _FLOAT8:
        return Handle(_FLOAT8[handle.dtype.scalar][handle.data], tl.float32)
    return Handle(to_float32(handle.data), tl.float32) if _is_bfloat16(handle) else handle


def _narrowed(handle: Any) -> Any:
    if handle.data.dtype == np.float32:
        return Handle(from_float32(handle.data), tl.bfloat16)
    return Handle(handle.data, tl.bfloat16)


def _refuse_float8(handle: Any) -> None:
    if handle.data.dtype == np.uint8 and handle.dtype.scalar in _FLOAT8:
        raise TypeError(f"Triton computes nothing in {handle.dtype.scalar}; convert blocks first: x.to(tl.float32)")


def _computed_wide(operation: Callable[..., Any], operands: int) -> Callable[..., Any]:
    def wide(self: Any, *arguments: Any) -> Any:
        if arguments[operands - 1].data.dtype.num not in _WORDS:  # most are none
            return operation(self, *arguments)
        handles, rest = arguments[:operands], arguments[operands:]
        if rest[:1] != (np.where,):
            _refuse_float8(handles[-1])
        if not _is_bfloat16(handles[-1]) or rest[:1] == (np.where,):
            return operation(self, *arguments)
        return _narrowed(operation(self, *map(_widened, handles), *rest))

    return wide


def _binary(self: Any, left: Any, right: Any, operation: Any) -> Any:
    """An operation on two blocks. A sum or difference of bool has one bit, so `True + True` is False."""
    one_bit = left.data.dtype == np.bool_ and operation in (np.add, np.subtract)
    return _stock_binary(self, left, right, np.logical_xor if one_bit else operation)


def _maximum(self: Any, left: Any, right: Any) -> Any:
    """The maximum of `tl.maximum` without `propagate_nan`: of NaN and a number, it is the number."""
    return self.binary_op(left, right, np.fmax)


def _minimum(self: Any, left: Any, right: Any) -> Any:
    return self.binary_op(left, right, np.fmin)


def _clamp(self: Any, value: Any, low: Any, high: Any, propagate: Any) -> Any:
    """`tl.clamp`: NaN becomes the lower bound, unless `propagate_nan` says otherwise."""
    if propagate == stock._ir.PROPAGATE_NAN.ALL:
        return _stock_clamp(self, value, low, high, propagate)
    return self.ternary_op(value, low, high, lambda x, lo, hi: np.fmin(np.fmax(x, lo), hi))


def _cast(self: Any, source: Any, target: Any) -> Any:
    before, after = source.dtype.scalar, target.scalar
    if before == after or tl.bfloat16 not in (before, after):
        return _stock_cast(self, source, target)
    if after == tl.bfloat16:
        return Handle(from_float32(source.data), tl.bfloat16)
    return _stock_cast(self, _widened(source), target) if after != tl.float32 else _widened(source)


def to_integers(values: Array, dtype: Any) -> Array:
    """Floating-point values cut off to integers as PTX's `cvt.rzi`: what is beyond the integers becomes the nearest
    one. An integer of 8 bits is the lower half of the one of 16 bits. NaN becomes 0; if either side has 64 bits, the
    integer with only its highest bit set."""
    wide = np.dtype(f"{dtype.kind}{max(2, dtype.itemsize)}")
    least, most = np.iinfo(wide).min, np.iinfo(wide).max
    of_nan = 1 << (8 * wide.itemsize - 1) if 8 in (wide.itemsize, values.dtype.itemsize) else 0
    exact = values.astype(np.float64)
    inside = np.where((exact > least) & (exact < float(most)), exact, 0).astype(wide)
    clamped = np.where(exact >= float(most), most, np.where(exact <= least, least, inside)).astype(wide)
    return np.where(np.isnan(exact), np.array(of_nan, f"u{wide.itemsize}").view(wide), clamped).astype(dtype)


def _integer_cast(self: Any, source: Any, target: Any) -> Any:
    return Handle(to_integers(_widened(source).data, np.dtype(numpy_dtype(target.scalar))), target.scalar)


def _float_cast(self: Any, source: Any, target: Any, rounding: Any) -> Any:
    to_nearest = rounding is None or rounding == stock._ir.ROUNDING_MODE.RTNE
    if source.dtype.scalar == tl.float32 and target.scalar == tl.bfloat16 and to_nearest:
        return _cast(self, source, target)
    return _stock_float_cast(self, source, target, rounding)


def convert_float(data: Array, before: Any, after: Any, rounding: Any) -> Array:
    """Replaces `_convert_float` of Triton's interpreter: casts from and to float8."""
    if before not in _FLOAT8 and after not in _FLOAT8:
        return _stock_convert_float(data, before, after, rounding)
    values = _widened(Handle(data, before)).data.astype(np.float32)
    if after in _FLOAT8:
        return to_float8(values, after, rounding == stock._ir.ROUNDING_MODE.RTZ)
    return from_float32(values) if after == tl.bfloat16 else values.astype(numpy_dtype(after))


def _dot(self: Any, a: Any, b: Any, accumulator: Any, *precision: Any) -> Any:
    if all(operand.dtype.scalar in (tl.float16, tl.bfloat16, tl.float32, *_FLOAT8) for operand in (a, b)):
        # In float64, because in float32 the BLAS of some CPUs adds up a row in an order that depends on its place.
        left, right = (_widened(operand).data.astype(np.float64) for operand in (a, b))
        total = (left @ right).astype(np.float32) + _widened(accumulator).data
        if _is_bfloat16(accumulator):
            return Handle(from_float32(total), tl.bfloat16)
        return Handle(total.astype(accumulator.data.dtype, copy=False), accumulator.dtype.scalar)
    return _stock_dot(self, a, b, accumulator, *precision)


def reduce_or_scan(self: Any, inputs: Any) -> Any:
    """Replaces `ReduceScanOpInterface.apply`; computes bfloat16 in float32. Raises TypeError for float8."""
    if not isinstance(inputs, tuple):
        return reduce_or_scan(self, (inputs,))[0]
    for x in inputs:
        if isinstance(x, tl.tensor):
            _refuse_float8(x.handle)
    narrow = [isinstance(x, tl.tensor) and _is_bfloat16(x.handle) for x in inputs]
    if not any(narrow):
        return _stock_apply(self, inputs)
    results = _stock_apply(self, tuple(x.to(tl.float32) if n else x for x, n in zip(inputs, narrow, strict=True)))
    return tuple(x.to(tl.bfloat16) if n else x for x, n in zip(results, narrow, strict=True))


_stock_binary, _stock_clamp = _Builder.binary_op, _Builder.create_clampf
_stock_cast, _stock_float_cast, _stock_dot = _Builder.cast_impl, _Builder.create_fp_to_fp, _Builder.create_dot
_stock_convert_float: Callable[..., Array] = stock._convert_float
_stock_apply = stock.ReduceScanOpInterface.apply
ARITHMETIC: dict[str, Callable[..., Any]] = {
    "unary_op": _computed_wide(_Builder.unary_op, 1),
    "binary_op": _computed_wide(_binary, 2),
    "ternary_op": _computed_wide(_Builder.ternary_op, 3),
    "create_fma": _computed_wide(_Builder.create_fma, 3),
    "create_clampf": _computed_wide(_clamp, 3),
    "create_maxnumf": _maximum,
    "create_minnumf": _minimum,
    "cast_impl": _cast,
    "create_fp_to_fp": _float_cast,
    "create_fp_to_si": _integer_cast,
    "create_fp_to_ui": _integer_cast,
    "create_dot": _dot,
    "get_bf16": lambda self, value: _cast(self, self.get_fp32(value), tl.bfloat16),
}
"""Replacements for methods of Triton's builder, by name."""
