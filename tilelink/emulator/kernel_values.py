"""Values of kernels, as Triton's interpreter holds them: numbers, pointers, dtypes, and the number of the program."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as stock

from tilelink.emulator import sites
from tilelink.emulator.errors import AssertionFailed
from tilelink.emulator.memory import Array

Handle = stock.TensorHandle
_stock_numpy_dtype = stock._get_np_dtype
_numpy_dtypes: dict[str, np.dtype[Any]] = {}


def set_program(program: int, shape: tuple[int, ...]) -> None:
    """Sets which program runs from now on: its number in a grid of this shape, whose first axis varies fastest."""
    x, y, z = (*shape, 1, 1)[:3]
    stock.interpreter_builder.grid_idx = (program % x, program // x % y, program // (x * y))
    stock.interpreter_builder.grid_dim = (x, y, z)


def number(value: Any) -> int:
    """An integer of a kernel as Python's."""
    value = unwrapped(value)
    return int(value.handle.data.item()) if isinstance(value, tl.tensor) else int(value)


def pointee(pointer: Any) -> tuple[int, np.dtype[Any], Any]:
    """The address in a pointer, and the dtype of the elements there, numpy's and Triton's. Raises TypeError."""
    if not (isinstance(pointer, tl.tensor) and pointer.dtype.is_ptr() and pointer.handle.data.size == 1):
        raise TypeError(f"{pointer} is not one pointer")
    element = pointer.dtype.element_ty
    return int(pointer.handle.data.item()), numpy_dtype(element), element


def as_element(value: Any, pointer: Any) -> Array:
    """A number of a kernel as an array of one element, with the dtype of the elements that a pointer leads to."""
    semantic = stock.interpreter_semantic
    data = semantic.cast(semantic.to_tensor(value), pointer.dtype.element_ty).handle.data
    return np.array(data, numpy_dtype(pointer.dtype.element_ty)).reshape(1)


def as_tensor(values: Array | None, element: Any) -> Any:
    """One element as a number of a kernel."""
    return tl.tensor(Handle(values, element), element)


def assert_all(self: Any, condition: Any, message: str) -> None:
    """Replaces `create_assert` of Triton's builder. Raises AssertionFailed."""
    wrong = np.flatnonzero(~np.asarray(condition.data, bool))
    if not len(wrong):
        return
    blocks = {n: v.handle.data.reshape(-1) for n, v in sites.names().items() if isinstance(v, tl.tensor)}
    size = condition.data.size
    found = {n: b[wrong[0] if b.size == size else 0].item() for n, b in blocks.items() if b.size in (1, size)}
    raise AssertionFailed(message, found)


def unwrapped(value: Any) -> Any:
    """The value of a constexpr, or the value itself."""
    return value.value if isinstance(value, tl.constexpr) else value


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """numpy's dtype for one of Triton. Every operation calls this, and Triton's own builds a table at every call."""
    dtype = dtype.scalar
    key = "pointer" if dtype.is_ptr() else dtype.name
    found = _numpy_dtypes.get(key)
    if found is None:
        found = _numpy_dtypes[key] = _stock_numpy_dtype(dtype)
    return found
