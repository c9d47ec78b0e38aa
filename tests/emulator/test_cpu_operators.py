"""Operators of interpreted tensors give what Triton's own give: numbers, dtypes, shapes and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import triton.language as tl
from triton.runtime.interpreter import interpreter_semantic

from tests.parameters import seldom
from tilelink.emulator.accesses import Accesses
from tilelink.emulator.interpreter import installed
from tilelink.emulator.kernel_values import Handle, numpy_dtype

DTYPES = [
    tl.int1,
    tl.int8,
    tl.int32,
    tl.uint32,
    tl.int64,
    tl.float16,
    tl.bfloat16,
    tl.float32,
    tl.pointer_type(tl.int32),
]
EXTENTS = [(), (4,), (4, 1), (1, 8), (4, 8)]
NUMBERS = [0, 7, -7, 2**31, -(2**31), 2**63 - 1, 2**63, True, 1.5, tl.constexpr(5), tl.constexpr(2**40)]
STOCK = {
    name: partial(getattr(tl.tensor, f"__{name}__"), _semantic=interpreter_semantic)
    for name in ("add", "sub", "mul", "floordiv", "mod", "lt", "le", "gt", "ge", "eq", "ne", "and", "or")
}
"""Triton's own, as they are outside of a run."""
REFLECTED = {
    name: partial(getattr(tl.tensor, f"__r{name}__"), _semantic=interpreter_semantic)
    for name in ("add", "sub", "mul", "floordiv", "mod", "and", "or")
}
pytestmark = [pytest.mark.versions, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


@pytest.fixture(scope="module", autouse=True)
def running() -> Iterator[None]:
    """A run of kernels that touch no memory."""
    with installed(cast(Accesses, None)):
        yield


def tensor(dtype: Any, extent: tuple[int, ...], first: int) -> Any:
    """Numbers in a row from `first` on: small, of both signs, no zeros, two of them at the ends of int32."""
    values = np.arange(first, first + int(np.prod(extent)) or first + 1)
    values[values >= 0] += 1
    if dtype in (tl.int32, tl.int64):
        values[:1], values[-1:] = 2**31 - 1, -(2**31)
    data = values.astype(numpy_dtype(dtype)).reshape(extent or (1,))
    return tl.tensor(Handle(data, dtype), tl.block_type(dtype, list(extent)) if extent else dtype)


def outcome(compute: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """What can be told of a result."""
    try:
        found = compute(left, right)
    except Exception as error:
        return type(error)
    kind = [str(found.type), str(found.dtype), [size.value for size in found.shape], found.numel.value]
    return kind, found.handle.dtype.name, str(found.handle.data.dtype), repr(found.handle.data.squeeze().tolist())


@pytest.mark.parametrize("name", seldom(STOCK, lambda name: name not in ("add", "floordiv", "mod", "le", "and")))
def test_tensors(name: str) -> None:
    ours = getattr(tl.tensor, f"__{name}__")
    for a in DTYPES:
        for b in DTYPES:
            for one in EXTENTS:
                for other in EXTENTS if (a, b) == (tl.int32, tl.int64) or a is b else [one, ()]:
                    left, right = tensor(a, one, -3), tensor(b, other, -2)
                    assert outcome(ours, left, right) == outcome(STOCK[name], left, right), (a, one, b, other)


@pytest.mark.parametrize("name", STOCK)
def test_numbers(name: str) -> None:
    """On both sides; Python itself turns a comparison around."""
    for dtype in DTYPES:
        for extent in ((), (4, 1)):
            x = tensor(dtype, extent, -3)
            for number in NUMBERS:
                found = outcome(getattr(tl.tensor, f"__{name}__"), x, number)
                assert found == outcome(STOCK[name], x, number), (dtype, extent, number)
                if name in REFLECTED:
                    found = outcome(getattr(tl.tensor, f"__r{name}__"), x, number)
                    assert found == outcome(REFLECTED[name], x, number), (number, dtype, extent)
