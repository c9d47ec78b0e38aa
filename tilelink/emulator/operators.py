"""Operators of interpreted tensors: one step where the types are plain, instead of Triton's twenty.

At every `a + b` Triton unwraps, promotes, casts and broadcasts, in twenty calls with up to five tensors. Kernels mostly
add and compare integers and move pointers, where the type of the result is plain. `operators` does these itself, with
the method of Triton's builder that Triton would call, and leaves everything else to Triton.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as stock

from tilelink.emulator.kernel_values import Handle, numpy_dtype

_SIGNED = {"int32": (-(2**31), 2**31), "int64": (-(2**63), 2**63)}
"""The half-open range of values of an integer constant, by the dtype of the tensor beside it."""
_COMPARISONS = {
    "lt": "create_icmpSLT",
    "le": "create_icmpSLE",
    "gt": "create_icmpSGT",
    "ge": "create_icmpSGE",
    "eq": "create_icmpEQ",
    "ne": "create_icmpNE",
}
_LOGIC = {"and": "create_and", "or": "create_or"}
_INTEGERS = {
    "add": "create_add",
    "sub": "create_sub",
    "mul": "create_mul",
    "floordiv": "create_sdiv",
    "mod": "create_srem",
    **_LOGIC,
    **_COMPARISONS,
}
"""Methods of Triton's builder for signed integers."""
_FLOATS = {"add": "create_fadd", "sub": "create_fsub", "mul": "create_fmul"}
MOST_FORMS = 4096
"""The most block types that are kept: kernels may make new types of pointers again and again."""
_initialize_block = tl.block_type.__init__
_Operator = Callable[[Any, Any], Any]


class Forms:
    """The shapes and block types that tensors of one form share, each made once."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}
        self._blocks: dict[tuple[int, tuple[int, ...]], Any] = {}
        self._made: dict[tuple[int, tuple[Any, ...]], dict[str, Any]] = {}

    def block_initializer(self) -> Callable[[Any, Any, Any], None]:
        """The replacement for `tl.block_type.__init__`: equal types have one shape and one name."""
        made = self._made

        def initialize(block: Any, element_ty: Any, shape: Any) -> None:
            key = id(element_ty), tuple([s.value if type(s) is tl.constexpr else s for s in shape])
            known = made.get(key)
            if known is not None:
                vars(block).update(known)
                return
            _initialize_block(block, element_ty, shape)
            if len(made) >= MOST_FORMS:
                made.clear()
            made[key] = dict(vars(block))  # which holds the element, so no other one gets its id

        return initialize

    def initializer(self) -> Callable[[Any, Any, Any], None]:
        """The replacement for `tl.tensor.__init__`."""
        shapes = self._shapes

        def initialize(tensor: Any, handle: Any, type: Any) -> None:
            extent = tuple(type.shape) if type.is_block() else ()
            shape = shapes.get(extent)
            if shape is None:
                sizes = tl.tuple([tl.constexpr(size) for size in extent])
                shape = shapes[extent] = sizes, tl.constexpr(math.prod(extent))
            tensor.handle, tensor.type, tensor.dtype = handle, type, type.scalar
            tensor.shape, tensor.numel = shape

        return initialize

    def of(self, element: Any, extent: tuple[int, ...]) -> Any:
        """The type of tensors of a dtype and extent; the extent of a single number is ()."""
        if not extent:
            return element
        found = self._blocks.get((id(element), extent))
        if found is None:  # the block type holds the element, so no other one gets its id
            found = self._blocks[id(element), extent] = tl.block_type(element, list(extent))
        return found


def operators(forms: Forms) -> Mapping[str, _Operator]:
    """Replacements for the methods of `tl.tensor` that Triton has patched for a run, by name."""
    made = {f"__{name}__": _operator(forms, name, "") for name in _INTEGERS}
    return made | {f"__r{name}__": _operator(forms, name, "r") for name in _INTEGERS if name not in _COMPARISONS}


def _operator(forms: Forms, name: str, side: str) -> _Operator:
    """The replacement for a method. `side`: "r" for the right operand's, which Python calls if the left is a number."""
    builder, otherwise = stock.interpreter_builder, getattr(tl.tensor, f"__{side}{name}__")
    compute, reflected = getattr(builder, _INTEGERS[name]), side == "r"
    of_floats = getattr(builder, _FLOATS[name]) if name in _FLOATS else None
    compares, moves, logic = name in _COMPARISONS, name == "add", name in _LOGIC
    constants: dict[tuple[str, int], Any] = {}

    def apply(self: Any, other: Any) -> Any:
        mine, dtype = self.handle, self.dtype
        kind = type(other)
        if kind is tl.constexpr:
            other = other.value
            kind = type(other)
        if kind is int:
            limits = _SIGNED.get(dtype.name)
            if limits is None or not limits[0] <= other < limits[1]:
                return otherwise(self, other)
            constant = constants.get((dtype.name, other))
            if constant is None:
                constant = Handle(np.array([other], numpy_dtype(dtype)), dtype)
                constants[dtype.name, other] = constant
            found = compute(constant, mine) if reflected else compute(mine, constant)
            return tl.tensor(found, forms.of(tl.int1, _extent(self.type)) if compares else self.type)
        if kind is not tl.tensor or reflected:
            return otherwise(self, other)
        extent = _together(_extent(self.type), _extent(other.type))
        if extent is None:
            return otherwise(self, other)
        theirs, their_dtype = other.handle, other.dtype
        a, b = dtype.name, their_dtype.name
        if a == b:
            if a in _SIGNED or (logic and a == "int1"):
                return tl.tensor(compute(mine, theirs), forms.of(tl.int1 if compares else dtype, extent))
            if of_floats is not None and dtype.is_floating():
                return tl.tensor(of_floats(mine, theirs), forms.of(dtype, extent))
        elif a in _SIGNED and b in _SIGNED:
            wide = tl.int64
            left, right = (Handle(h.data.astype(np.int64, copy=False), wide) for h in (mine, theirs))
            return tl.tensor(compute(left, right), forms.of(tl.int1 if compares else wide, extent))
        elif moves and b in _SIGNED and dtype.is_ptr():
            return tl.tensor(builder.create_addptr(mine, theirs), forms.of(dtype, extent))
        return otherwise(self, other)

    return apply


def _extent(type: Any) -> tuple[int, ...]:
    return tuple(type.shape) if type.is_block() else ()


def _together(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...] | None:
    """The extent of the result of two operands; None where Triton has to decide."""
    if left == right or not right:
        return left
    if not left:
        return right
    if len(left) != len(right):
        return None
    pairs = list(zip(left, right, strict=True))
    return tuple(map(max, pairs)) if all(a == b or 1 in (a, b) for a, b in pairs) else None
