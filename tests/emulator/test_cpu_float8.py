"""Casts from and to float8 on CPU ranks: as torch makes them, except where GPUs saturate."""

import pytest
import torch
import triton
import triton.language as tl

from tilelink.emulator import Execution, KernelError, Region, interpreted

FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
WIDE = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TRITON = {torch.float8_e4m3fn: tl.float8e4nv, torch.float8_e5m2: tl.float8e5}


@triton.jit
def _cast(source_ptr, target_ptr, ROUNDING: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(target_ptr + i, tl.load(source_ptr + i).to(target_ptr.dtype.element_ty, fp_downcast_rounding=ROUNDING))


@triton.jit
def _dot(a_ptr, b_ptr, c_ptr, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(c_ptr + i * N + j, tl.dot(tl.load(a_ptr + i * N + j), tl.load(b_ptr + i * N + j)))


@triton.jit
def _compute(x_ptr, WHAT: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    if WHAT == "sum":
        x = tl.sum(x)
    elif WHAT == "product":
        x = x * x
    elif WHAT == "negative":
        x = -x
    elif WHAT == "comparison":
        x = x > x
    else:
        x = tl.where(tl.abs(x).to(tl.float32) > 0, x, x)


def _run(kernel, arguments: dict) -> None:
    execution = Execution(1)
    regions = [Region(n, 0, t) for n, t in arguments.items() if isinstance(t, torch.Tensor)]
    execution.run(lambda rank: execution.launch(interpreted(kernel), 1, arguments, regions, rank))


def _casted(x: torch.Tensor, dtype: torch.dtype, rounding: str | None = None) -> torch.Tensor:
    target = torch.zeros(len(x), dtype=dtype)
    _run(_cast, dict(source_ptr=x, target_ptr=target, ROUNDING=rounding, N=len(x)))
    return target


def _patterns(dtype: torch.dtype) -> torch.Tensor:
    """All words of a dtype of 16 bits; of a wider one, random words, and all values of float16."""
    if dtype.itemsize == 2:
        return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    words = torch.randint(-(2**31), 2**31, (2**17 - 2**16,), dtype=torch.int32).view(torch.float32)
    return torch.cat([words, _patterns(torch.float16).float()]).to(dtype)


def _finite(dtype: torch.dtype) -> torch.Tensor:
    values = torch.arange(128, dtype=torch.uint8).view(dtype).double()
    return values[values.isfinite()]


@pytest.mark.versions
@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("narrow", FLOAT8)
def test_float8_words_are_those_of_torch_and_saturate(narrow: torch.dtype, wide: torch.dtype):
    x = _patterns(wide)
    largest = _finite(narrow)[-1].to(wide)
    wanted = torch.where(x.isnan(), x.abs(), x.clamp(-largest, largest)).to(narrow).view(torch.uint8)
    wanted[x.isnan()] = 0x7F
    assert torch.equal(_casted(x, narrow).view(torch.uint8), wanted)


@pytest.mark.versions
@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("narrow", FLOAT8)
def test_values_of_float8_words_are_those_of_torch(narrow: torch.dtype, wide: torch.dtype):
    x = torch.arange(256, dtype=torch.uint8).view(narrow)
    assert torch.allclose(_casted(x, wide), x.to(wide), rtol=0, atol=0, equal_nan=True)


@pytest.mark.versions
def test_rounding_toward_zero():
    x = _patterns(torch.float32)
    values = torch.cat([_finite(torch.float8_e5m2), torch.tensor([torch.inf], dtype=torch.float64)])
    below = values[torch.searchsorted(values, x.abs().double(), right=True).clamp(1, len(values)) - 1]
    wanted = torch.where(x.isnan(), torch.nan, below.copysign(x.double()))
    got = _casted(x, torch.float8_e5m2, "rtz").double()
    assert torch.allclose(got, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.versions
@pytest.mark.parametrize("dtype", FLOAT8)
def test_dots_of_float8(dtype: torch.dtype):
    a, b = (torch.randn(32, 32).mul(2.0**-6).to(dtype) for _ in range(2))  # subnormals, too
    c = torch.zeros(32, 32)
    _run(_dot, dict(a_ptr=a, b_ptr=b, c_ptr=c, N=32))
    assert torch.allclose(c.double(), a.double() @ b.double(), rtol=1e-6, atol=0)


@pytest.mark.versions
@pytest.mark.parametrize("what", ["sum", "product", "negative", "comparison"])
def test_computing_in_float8_is_refused_as_the_compiler_does(what: str):
    x = torch.ones(4).to(torch.float8_e4m3fn)
    with pytest.raises(KernelError, match=r"float8.py:\d+.*: Triton computes nothing in fp8e4nv; convert blocks first"):
        _run(_compute, dict(x_ptr=x, WHAT=what, N=4))
    _run(_compute, dict(x_ptr=x, WHAT="selection", N=4))
