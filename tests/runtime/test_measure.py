"""Measuring a GPU: without one, its kernels compile, and it refuses."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import tilelink.runtime.measure
from tilelink.errors import DeviceError
from tilelink.runtime.cuda.clock import device_us
from tilelink.runtime.gauges import multiply, nothing, notify, read
from tilelink.runtime.measure import BLOCK, TILE, measure

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
    signature = {"words": "*i32", "out": "*i32", "size": "i32", "BLOCK": "constexpr"}
    aligned = {(k,): [["tt.divisibility", 16]] for k in range(3)}
    source = ASTSource(read, signature, {(3,): BLOCK}, aligned)
    made = triton.compile(source, target=HOPPER, options={"num_warps": 8})
    assert "ld.global.cg.v4" in made.asm["ptx"]
    triton.compile(ASTSource(nothing, {"word": "*i32"}), target=HOPPER)


class Clocked:
    """torch.cuda as a clock sees it, with a host that takes `host_us` to launch a kernel of `kernel_us`."""

    def __init__(self, host_us: float, kernel_us: float) -> None:
        self.host_us, self.kernel_us = host_us, kernel_us
        self.host = self.device = 0.0
        self.slept: list[int] = []

    def enqueue(self, takes: float, host: float) -> float:
        """Microseconds at which it is done on the device."""
        self.host += host
        self.device = max(self.device, self.host) + takes
        return self.device

    def launch(self) -> None:
        self.enqueue(self.kernel_us, self.host_us)

    def _sleep(self, cycles: int) -> None:
        self.slept.append(cycles)
        self.enqueue(cycles / 2000, 5.0)

    def Event(self, enable_timing: bool) -> Any:
        at: list[float] = []
        return SimpleNamespace(
            at=at, record=lambda: at.append(self.enqueue(0.0, 2.0)), query=lambda: at[0] <= self.host,
            synchronize=lambda: setattr(self, "host", max(self.host, self.device)),
            elapsed_time=lambda end: (end.at[0] - at[0]) / 1e3,
        )  # fmt: skip


def test_the_host_is_not_in_what_is_measured() -> None:
    """An idle device would run the first event at once, and wait for the host's launches after it."""
    cuda = Clocked(host_us=20.0, kernel_us=7.0)
    assert device_us(cuda.launch, before=cuda.launch, cuda=cuda) == pytest.approx(7.0) and len(cuda.slept) == 1

    def many() -> None:
        for _ in range(200):
            cuda.launch()

    assert device_us(many, cuda=cuda) == pytest.approx(200 * 7.0), "4 ms of launches behind a sleep of 1 ms"
    assert len(cuda.slept) > 2 and cuda.slept[-1] == 4 * cuda.slept[-2]


def test_a_host_that_is_never_ahead() -> None:
    cuda = Clocked(host_us=1e9, kernel_us=7.0)
    with pytest.raises(DeviceError, match="the host took longer to enqueue this than the device slept, 2048000000 cyc"):
        device_us(cuda.launch, cuda=cuda)


def test_what_is_measured_goes_by_that_clock() -> None:
    """Nothing in a description is timed in another way, and launches are those of a graph."""
    source = inspect.getsource(tilelink.runtime.measure)
    assert "record()" not in source and "perf_counter" not in source
    assert "captured(launches)" in inspect.getsource(tilelink.runtime.measure._launch)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_refuses() -> None:
    with pytest.raises(DeviceError, match="needs a GPU, and torch finds none here; tilelink doctor says"):
        measure()
