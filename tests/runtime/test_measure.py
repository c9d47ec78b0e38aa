"""Measuring a GPU: without one, its kernels compile, and it refuses."""

from __future__ import annotations

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tilelink.errors import DeviceError
from tilelink.runtime.gauges import multiply, nothing, notify
from tilelink.runtime.measure import TILE, measure

HOPPER = GPUTarget("cuda", 90, 32)


def test_kernels_compile_for_hopper() -> None:
    blocks = dict(zip(("BM", "BN", "BK"), TILE, strict=True))
    signature = {"x": "*bf16", "weight": "*bf16", "out": "*bf16", "k_size": "i32"} | dict.fromkeys(blocks, "constexpr")
    source = ASTSource(multiply, signature, {(4 + k,): v for k, v in enumerate(blocks.values())})
    assert "wgmma" in triton.compile(source, target=HOPPER, options={"num_warps": 8, "num_stages": 3}).asm["ptx"]
    for scope in ("gpu", "sys"):
        signature = {"word": "*i32", "count": "i32", "SCOPE": "constexpr"}
        made = triton.compile(ASTSource(notify, signature, {(2,): scope}), target=HOPPER, options={"num_warps": 1})
        assert f"atom.global.{scope}.acq_rel" in made.asm["ptx"]
    triton.compile(ASTSource(nothing, {"word": "*i32"}), target=HOPPER)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_refuses() -> None:
    with pytest.raises(DeviceError, match="needs a GPU, and torch finds none here; tilelink doctor says"):
        measure()
