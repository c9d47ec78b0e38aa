"""The elaborator's values for names in a tile function; dtypes; and the results of Triton's own functions.

Integers are sympy expressions, views are `ir.View`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import triton.language as tl

from tilelink.errors import listed
from tilelink.frontend.arithmetic import to_text
from tilelink.frontend.expressions import Expr
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
TRITON_DTYPES = {n: n for n in ITEM_SIZE} | {
    "bool": "int1", "float8_e4m3fn": "float8e4nv", "float8_e5m2": "float8e5",
}  # fmt: skip
_WIDTH = ["bool", "int8", "uint8", "int16", "int32", "int64", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16",
          "float32", "float64"]  # fmt: skip
_REDUCTIONS = ("sum", "max", "min", "xor_sum", "reduce_or")
_ELEMENTWISE = frozenset([
    "abs", "ceil", "cos", "div_rn", "erf", "exp", "exp2", "fdiv", "floor", "fma", "log", "log2", "rsqrt", "sin", "sqrt",
    "sqrt_rn", "umulhi", "sigmoid", "softmax", "where", "maximum", "minimum", "clamp", "zeros_like", "add", "sub",
    "mul", "cumsum", "cumprod", "flip", "multiple_of", "max_contiguous", "max_constancy",
])  # fmt: skip
Shape = tuple[int, ...] | None


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of torch, Triton or numpy, or of a dtype given by name or short form. Raises ValueError."""
    text = str(dtype).removeprefix("torch.").removeprefix("<class 'numpy.").removesuffix("'>")
    text = _ALIASES.get(text, text)
    if text not in ITEM_SIZE:
        raise ValueError(f"{dtype} is not a dtype TileLink knows; it knows {listed(ITEM_SIZE, text)}")
    return text


def is_floating(dtype: str) -> bool:
    """Whether a dtype, by its name, holds fractions."""
    return "float" in dtype


def promote(a: str | None, b: str | None) -> str | None:
    """The dtype of an elementwise operation."""
    if a is None or b is None or a == b:
        return a or b
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    return max(a, b, key=_WIDTH.index)


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
    """A value of Triton, in registers. `node`: its source, rewritten."""

    node: ast.expr
    shape: Shape = None
    dtype: str | None = None


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


def result_of(
    name: str, owner: Block | None, arguments: list[Any], keywords: dict[str, Any]
) -> tuple[Shape, str | None]:
    """The shape and dtype of a call, None where unknown. `owner`: the block whose method is called. `name`: the
    function of Triton, or "" for a function of the user. Raises ValueError for shapes that do not fit."""
    values = ([owner] if owner is not None else []) + arguments
    blocks = [v for v in (*values, *keywords.values()) if isinstance(v, Block)]
    dtype: str | None = None
    for b in blocks:
        dtype = promote(dtype, b.dtype)
    given = next((d for v in (*arguments, *keywords.values()) if (d := _dtype(v))), None)
    first = blocks[0].shape if blocks else None
    match name:
        case _ if name in _ELEMENTWISE:
            shape: Shape = ()
            for b in blocks:
                shape = broadcast(shape, b.shape)
            return shape, dtype
        case "zeros" | "full":
            return _sizes(arguments[0] if arguments else keywords.get("shape")), given
        case "arange":
            bounds = [int(a) for a in arguments if isinstance(a, Expr) and a.is_Integer]
            return ((bounds[1] - bounds[0],) if len(bounds) == 2 else None), "int32"
        case "to" | "cast":
            return (first if blocks else ()), given
        case "trans" if len(values) == 1:
            return (first[::-1] if first else None), dtype
        case "dot":
            exact = "int32" if blocks and blocks[0].dtype == "int8" else "float32"
            return None, blocks[2].dtype if len(blocks) > 2 else exact if exact == "int32" else given or exact
        case _ if name in _REDUCTIONS:
            return _reduced(first, dict(zip(("axis", "keep_dims"), values[1:], strict=False)) | keywords), dtype
    return None, None


def _reduced(shape: Shape, options: dict[str, Any]) -> Shape:
    """The shape after a reduction."""
    axis, kept = options.get("axis"), options.get("keep_dims")
    if shape is None or not isinstance(axis, Expr):
        return () if axis is None and kept is None else None
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"there is no axis {axis} of {shape}; an integer as an index drops one")
    k = int(axis) % len(shape)
    keeps = isinstance(kept, Static) and bool(kept.value)
    return (*shape[:k], *([1] if keeps else []), *shape[k + 1 :])


def _sizes(value: Any) -> Shape:
    sizes = value if isinstance(value, tuple) else (value,)
    return tuple(int(s) for s in sizes) if all(isinstance(s, Expr) and s.is_Integer for s in sizes) else None


def _dtype(value: Any) -> str | None:
    if isinstance(value, Static) and isinstance(value.value, tl.dtype):
        return dtype_name(value.value.name)
    return None
