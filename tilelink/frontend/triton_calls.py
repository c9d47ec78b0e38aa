"""What the elaborator has to know of Triton's own functions: the shape and dtype of what they return."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from tilelink.frontend.expressions import Expr
from tilelink.frontend.values import Block, Static, broadcast, dtype_name, promote

TRITON_DTYPES = {
    "float64": "float64", "int64": "int64", "float32": "float32", "int32": "int32", "float16": "float16",
    "bfloat16": "bfloat16", "int16": "int16", "int8": "int8", "uint8": "uint8", "bool": "int1",
    "float8_e4m3fn": "float8e4nv", "float8_e5m2": "float8e5",
}  # fmt: skip
_REDUCTIONS = ("sum", "max", "min", "xor_sum", "reduce_or")
_ELEMENTWISE = frozenset(
    [
        *("abs", "ceil", "cos", "div_rn", "erf", "exp", "exp2", "fdiv", "floor", "fma", "log", "log2", "rsqrt", "sin"),
        *("sqrt", "sqrt_rn", "umulhi", "sigmoid", "softmax", "where", "maximum", "minimum", "clamp", "zeros_like"),
        *("add", "sub", "mul", "cumsum", "cumprod", "flip", "multiple_of", "max_contiguous", "max_constancy"),
    ]
)

Shape = tuple[int, ...] | None


def language_name(dtype: tl.dtype) -> str:
    """`tl.float32` is called fp32 by itself: the name under which triton.language has it."""
    return TRITON_DTYPES[dtype_name(dtype.name)]


def result(name: str, owner: Block | None, arguments: list[Any], keywords: dict[str, Any]) -> tuple[Shape, str | None]:
    """Shape and dtype of a call, None where they are not known. `owner` is the block whose method it is; `name` is ""
    for a function of the user. Raises ValueError for shapes that do not go together."""
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
    """The shape that a reduction leaves."""
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
