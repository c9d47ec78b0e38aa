"""Functions of libdevice on CPU ranks: they take what they take on GPUs, and give what torch gives."""

import inspect
import math
import re

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda
from triton.language.extra.libdevice import tanh as hyperbolic

from tilelink.emulator import Execution, KernelError, Region, interpreted
from tilelink.emulator.libdevice import _FUNCTIONS


@triton.jit
def _by_name(a, b):
    return hyperbolic(a)


@triton.jit
def _some(a, b):
    return libdevice.tanh(a) + libdevice.pow(tl.abs(a), b) + tl.where(libdevice.isnan(b), 1.0, libdevice.exp(a))


@triton.jit
def _missing(a, b):
    return libdevice.j0(a)


@triton.jit
def _of_halves(a, b):
    return libdevice.tanh(a.to(tl.float16))


@triton.jit
def _kernel(a_ptr, b_ptr, c_ptr, F: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(c_ptr + i, F(tl.load(a_ptr + i), tl.load(b_ptr + i)))


def _run(function, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    c = torch.zeros_like(a)
    execution, tensors = Execution(1), dict(a_ptr=a, b_ptr=b, c_ptr=c)
    regions = [Region(n, 0, t) for n, t in tensors.items()]
    arguments = {**tensors, "F": function, "N": len(a)}
    execution.run(lambda rank: execution.launch(interpreted(_kernel), 1, arguments, regions, rank))
    return c


@pytest.mark.versions
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_are_those_of_torch(dtype: torch.dtype):
    a, b = torch.randn(64, dtype=dtype), torch.randn(64, dtype=dtype)
    torch.testing.assert_close(_run(_some, a, b), a.tanh() + a.abs() ** b + a.exp())
    torch.testing.assert_close(_run(_by_name, a, b), a.tanh())


@pytest.mark.versions
def test_what_is_not_computed_is_said_at_its_line():
    a = torch.randn(4)
    with pytest.raises(KernelError, match=r"libdevice.py:\d+: .*CPU ranks do not compute __nv_j0f of libdevice; they"):
        _run(_missing, a, a)
    with pytest.raises(KernelError, match=r"libdevice.py:\d+: .*libdevice.tanh takes no fp16; convert blocks first"):
        _run(_of_halves, a, a)


@pytest.mark.versions
def test_the_functions_have_symbols():
    symbols = set(re.findall(r'"__nv_(\w+)"', inspect.getsource(cuda)))
    assert {n for n in _FUNCTIONS if n not in symbols and f"{n}f" not in symbols and f"{n}d" not in symbols} == set()
    assert math.isclose(_FUNCTIONS["normcdf"](torch.zeros(())).item(), 0.5)
