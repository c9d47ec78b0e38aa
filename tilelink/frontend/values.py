"""The elaborator's values for names in a tile function; dtypes; and the results of Triton's own functions.

Integers are sympy expressions, views are `ir.View`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import sympy
import triton
import triton.language as tl

from tilelink.errors import similar
from tilelink.frontend.arithmetic import to_text
from tilelink.frontend.expressions import Boolean, Expr
from tilelink.frontend.ir import Range

DOT_DTYPES = ("float16", "bfloat16", "float32", "int8", "float8_e4m3fn", "float8_e5m2")
SUM_DTYPES = {"float16": ("float32", "float16"), "int8": ("int32",)}
"""The dtypes in which `tl.dot` may add up, by the dtype of its operands. All others add up in float32."""
_ALIASES = {
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "f16": "float16", "f32": "float32",
    "fp8": "float8_e4m3fn",
    "i8": "int8", "i32": "int32", "i64": "int64", "half": "float16", "float": "float32", "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2", "float8e4nv": "float8_e4m3fn", "float8e5": "float8_e5m2", "int1": "bool", "i1": "bool",
}  # fmt: skip
ITEM_SIZE = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2, "int8": 1, "uint8": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "bool": 1,
}  # fmt: skip
"""Bytes of an element, by the dtype of the tensor."""
IN_REGISTERS = ("uint16", "uint32", "uint64")
"""The dtypes that only blocks in registers have."""
TRITON_DTYPES = {n: n for n in (*ITEM_SIZE, *IN_REGISTERS)} | {
    "bool": "int1", "float8_e4m3fn": "float8e4nv", "float8_e5m2": "float8e5",
}  # fmt: skip
_INTEGERS = {"bool": (1, False), "int8": (8, True), "uint8": (8, False), "int16": (16, True), "uint16": (16, False),
             "int32": (32, True), "uint32": (32, False), "int64": (64, True), "uint64": (64, False)}  # fmt: skip
"""The bits of dtypes of integers, and whether they have a sign."""
_REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "xor_sum", "reduce_or")
ELEMENTWISE = frozenset([
    "abs", "ceil", "cos", "div_rn", "erf", "exp", "exp2", "fdiv", "floor", "fma", "log", "log2", "rsqrt", "sin", "sqrt",
    "sqrt_rn", "umulhi", "sigmoid", "softmax", "where", "maximum", "minimum", "clamp", "zeros_like", "add", "sub",
    "mul", "cumsum", "cumprod", "flip", "multiple_of", "max_contiguous", "max_constancy",
])  # fmt: skip
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
WIDER_THAN_FLOAT8 = ("float32", "float16", "bfloat16")
"""The dtypes that blocks of float8 are converted to and from."""
_NOT_OF_FLOAT8 = ("sum", "argmax", "argmin", "cumsum", "cumprod", "sort", "fma", "add", "sub", "mul", "clamp",
                  "maximum", "minimum")
_FLOATS = ("float32", "float64", "float16", "bfloat16")
_TAKEN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("exp", "exp2", "log", "log2", "cos", "sin", "sqrt", "rsqrt", "erf", "floor", "ceil", "sigmoid"),
                    ("float32", "float64")),
    **dict.fromkeys(("sqrt_rn", "div_rn"), ("float32",)),
    "softmax": (*_FLOATS, *FLOAT8),
    "fdiv": _FLOATS,
    "umulhi": ("int32", "int64", "uint32", "uint64"),
    **dict.fromkeys(("xor_sum", "reduce_or"), tuple(_INTEGERS)),
}  # fmt: skip
"""The dtypes of blocks that functions of Triton take, for functions that do not take all."""
CONVERTS = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)
"""Whether Triton's functions have no maximum of bfloat16, among others: up to 3.8 they convert to float32, and make
numbers float32 or int32 tensors first."""
_NO_CODE = ast.Constant(0)
Shape = tuple[int, ...] | None


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of torch, Triton or numpy, or of a dtype given by name or short form. Raises ValueError for
    one that no tensor has."""
    return _known(dtype, tuple(ITEM_SIZE))


def block_dtype(dtype: tl.dtype) -> str:
    """The name of a dtype of Triton. Raises ValueError for one that no block has."""
    return _known(dtype.name, (*ITEM_SIZE, *IN_REGISTERS))


def _known(dtype: Any, known: tuple[str, ...]) -> str:
    text = str(dtype).removeprefix("torch.").removeprefix("<class 'numpy.").removesuffix("'>")
    text = _ALIASES.get(text, text)
    if text not in known:
        meant = similar(text, [*known, *_ALIASES])
        raise ValueError(f"{dtype} is not a dtype TileLink knows; it knows {', '.join(known)}{meant}")
    return text


def is_floating(dtype: str) -> bool:
    """Whether a dtype, by its name, holds fractions."""
    return "float" in dtype


def promote(a: str, b: str, divides: bool = False) -> str | None:
    """The dtype of an operation on two blocks, by Triton's rules; None if it has none. `divides`: for `/` and `%`."""
    both = {a, b}
    for wide in ("float64", "float32"):
        if wide in both:
            return wide
    if "float16" in both:
        return "float32" if divides else "float16"
    if "bfloat16" in both:
        return "bfloat16" if both == {"bfloat16"} and not divides else "float32"
    if any(map(is_floating, both)):
        return a if a == b else "float16" if all(map(is_floating, both)) else None
    (a_bits, a_signed), (b_bits, b_signed) = _INTEGERS[a], _INTEGERS[b]
    if a_bits == b_bits and a_signed != b_signed:
        return b if a_signed else a
    return a if a_bits > b_bits else b


def dtype_of_two(a: Any, b: Any, divides: bool = False, tensors: bool = False) -> str | None:
    """The dtype of an operation on two values of a tile function, None if unknown. `divides`: for `/` and `%`.
    `tensors`: for functions that make numbers tensors first; elsewhere a number takes the dtype of the block beside it,
    unless the number has fractions and the block has none."""
    one, other = _operand(a), _operand(b)
    if not tensors and _is_number(a) != _is_number(b):
        number, block = (one, other) if _is_number(a) else (other, one)
        if block is not None and number is not None and _kind(number) <= _kind(block):
            return promote(block, block, divides)
    if one is not None and other is not None:
        return promote(one, other, divides)
    unknown, known = (a, other) if one is None else (b, one)
    if isinstance(unknown, Expr | Boolean) and known in ("float64", "float32", "float16"):
        return promote(known, "int32", divides)
    return None


def mixes(values: Iterable[Any], dtype: str | None) -> bool:
    """Whether an operation on these values has an unknown `dtype` because one is an integer of the kernel."""
    whole = (v.mixed if isinstance(v, Block) else isinstance(v, Expr) and not v.is_Integer for v in values)
    return dtype is None and any(whole)


def _operand(value: Any) -> str | None:
    """The dtype of an operand as a tensor. The integers of a kernel have 32 or 64 bits, which is not known here."""
    if isinstance(value, Block):
        return value.dtype
    if isinstance(value, Static) and isinstance(value.value, bool | float):
        return "bool" if isinstance(value.value, bool) else "float32"
    return "int32" if isinstance(value, sympy.Integer) and -(2**31) <= value < 2**31 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, sympy.Integer) or (isinstance(value, Static) and isinstance(value.value, bool | float))


def _kind(dtype: str) -> int:
    return 2 if is_floating(dtype) else 1 if dtype != "bool" else 0


def broadcast(a: Shape, b: Shape) -> Shape:
    """The shape of an elementwise operation; None if a shape is unknown. Raises ValueError for a misfit."""
    if a is None or b is None:
        return None
    n = max(len(a), len(b))
    pairs = list(zip((1,) * (n - len(a)) + a, (1,) * (n - len(b)) + b, strict=True))
    if any(x != y and 1 not in (x, y) for x, y in pairs):
        raise ValueError(f"blocks of shape {a} and {b} do not go together")
    return tuple(max(x, y) for x, y in pairs)


@dataclass(frozen=True)
class Block:
    """A value of Triton, in registers. `node`: its source, rewritten. `mixed`: whether its dtype is unknown
    because an integer of the kernel went into it: the integers have 64 bits where parts are uneven, else 32 bits."""

    node: ast.expr
    shape: Shape = None
    dtype: str | None = None
    mixed: bool = False


@dataclass(frozen=True)
class Static:
    """Any other Python object, known before the run: a module, a function, a constant."""

    value: Any

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True)
class TileValue:
    """The tile that a function is called for. `sent`: for a tile of a route, its rows at their source."""

    ranges: tuple[Range, ...]
    axes: Mapping[str, Expr]
    sent: Range | None = None

    def __str__(self) -> str:
        return "the tile"


@dataclass(frozen=True)
class Part:
    """`tk.part(rank)`: as an entry of an index, the part of a dimension that a rank has."""

    rank: Expr

    def __str__(self) -> str:
        return f"tk.part({to_text(self.rank)})"


def not_taken(name: str, given: Mapping[str, Any]) -> str | None:
    """Why a function of Triton does not take the dtype of a block; None if it takes all. `given`: as in `result_of`."""
    dtypes = [v.dtype for v in given.values() if isinstance(v, Block) and v.dtype is not None]
    taken = _TAKEN.get(name, ())
    if taken and (dtype := next((d for d in dtypes if d not in taken), None)):
        few = ", ".join(taken) if len(taken) > 2 else " or ".join(taken)
        return f"tl.{name} takes {few}, and here a block of {dtype}: convert it, .to(tl.{taken[0]})"
    if name in _NOT_OF_FLOAT8 and (dtype := next((d for d in dtypes if d in FLOAT8), None)):
        return f"tl.{name} does not take {dtype}: convert it, .to(tl.float32)"
    if name in ("to", "cast") and dtypes and given.get("bitcast") in (None, Static(False)):
        return not_converted(dtypes[0], _dtype(given.get("dtype")))
    return None


def not_converted(before: str | None, after: str | None) -> str | None:
    """Why Triton does not convert a block of one dtype to another; None if it does, or if one is unknown."""
    narrow, other = (before, after) if before in FLOAT8 else (after, before)
    if narrow not in FLOAT8 or other in (None, narrow, *WIDER_THAN_FLOAT8):
        return None
    return (f"a block of {before} can't become one of {after} at once: {narrow} is converted to and from "
            f"{', '.join(WIDER_THAN_FLOAT8)}; write .to(tl.float32).to(tl.{TRITON_DTYPES[str(after)]})")


def result_of(name: str, given: Mapping[str, Any]) -> tuple[Shape, str | None]:
    """The shape and dtype of a call of a function of Triton, None where unknown. `given`: its arguments by the names of
    its parameters, in their order; of a block's method, the block is first. Raises ValueError for shapes that do not
    fit."""
    first = next(iter(given.values()), None)
    block = first if isinstance(first, Block) else Block(_NO_CODE, ())
    match name:
        case _ if name in ELEMENTWISE:
            shape: Shape = ()
            for b in given.values():
                shape = broadcast(shape, b.shape if isinstance(b, Block) else ())
            return shape, _elementwise(name, given)
        case "zeros" | "full":
            return _sizes(given.get("shape")), _dtype(given.get("dtype"))
        case "arange":
            bounds = [int(v) for v in given.values() if isinstance(v, sympy.Integer)]
            return ((bounds[1] - bounds[0],) if len(bounds) == 2 else None), "int32"
        case "to" | "cast":
            return block.shape, _dtype(given.get("dtype"))
        case "trans" if len(given) == 1:
            return (block.shape[::-1] if block.shape else None), block.dtype
        case "gather":
            index = given.get("index")
            return (index.shape if isinstance(index, Block) else None), block.dtype
        case "dot":
            acc, said = given.get("acc"), _dtype(given.get("out_dtype"))
            exact = "int32" if block.dtype == "int8" else said or "float32"
            return None, acc.dtype if isinstance(acc, Block) else exact
        case _ if name in _REDUCTIONS and given.get("return_indices", Static(False)) == Static(False):
            return _reduced(block.shape, given), _reduced_dtype(name, block.dtype, given)
    return None, None


def _elementwise(name: str, given: Mapping[str, Any]) -> str | None:
    """The dtype of the result of an elementwise function."""
    values = [v for v in given.values() if isinstance(v, Block | Expr | Boolean) or _is_number(v)]
    match name:
        case "maximum" | "minimum" | "clamp":
            return _together(replace(v, dtype=_widened(v.dtype)) if isinstance(v, Block) else v for v in values)
        case "fma" | "div_rn" | "umulhi":
            return _together(values)
        case "fdiv" if not CONVERTS:
            return _together(replace(v, dtype="float32") if _has_16_bits(v) else v for v in values)
        case "where":
            return dtype_of_two(given.get("x"), given.get("y"))
        case "add" | "sub" | "mul":
            return dtype_of_two(*values[:2])
    dtype = _operand(values[0]) if values else None
    match name:
        case "softmax":
            return _reduced_dtype("max", dtype, {})
        case "cumsum":
            return _reduced_dtype("sum", _widened(dtype), given)
        case "cumprod":
            return _widened(dtype)
    return dtype


def _together(values: Iterable[Any]) -> str | None:
    """The dtype of an operation on tensors, which takes two after the other."""
    return _operand(reduce(lambda a, b: Block(_NO_CODE, (), dtype_of_two(a, b, tensors=CONVERTS)), values))


def _has_16_bits(value: Any) -> bool:
    return isinstance(value, Block) and value.dtype in ("float16", "bfloat16")


def _widened(dtype: str | None) -> str | None:
    return "float32" if dtype == "bfloat16" and CONVERTS else dtype


def _reduced_dtype(name: str, dtype: str | None, options: Mapping[str, Any]) -> str | None:
    """The dtype after a reduction of a block with this dtype."""
    if name in ("argmax", "argmin"):
        return "int32"
    if (said := _dtype(options.get("dtype"))) is not None:
        return said
    if dtype is None or name in ("xor_sum", "reduce_or") or (name == "sum" and is_floating(dtype)):
        return dtype
    if is_floating(dtype):
        return dtype if ITEM_SIZE[dtype] >= 4 else "float32"
    bits, signed = _INTEGERS[dtype]
    if bits >= 32:
        return dtype
    return "int32" if signed or name != "sum" else "uint32"


def _reduced(shape: Shape, options: Mapping[str, Any]) -> Shape:
    """The shape after a reduction."""
    axis, kept = options.get("axis"), options.get("keep_dims")
    if shape is None or not isinstance(axis, Expr):
        return () if axis in (None, Static(None)) and kept is None else None
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"there is no axis {axis} of {shape}; an integer as an index drops one")
    k = int(axis) % len(shape)
    keeps = isinstance(kept, Static) and bool(kept.value)
    return (*shape[:k], *([1] if keeps else []), *shape[k + 1 :])


def _sizes(value: Any) -> Shape:
    sizes = value if isinstance(value, tuple) else (value,)
    return tuple(int(s) for s in sizes) if all(isinstance(s, Expr) and s.is_Integer for s in sizes) else None


def _dtype(value: Any) -> str | None:
    return block_dtype(value.value) if isinstance(value, Static) and isinstance(value.value, tl.dtype) else None
