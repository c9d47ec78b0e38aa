"""Measures the host's time of a call, compared with a bare launch by Triton: many small calls, without waits.

Without a GPU, launches do nothing: kernels are compiled for sm_90, and a call goes all the way to Triton's launcher,
which a stand-in replaces. A bare launch then does nothing either, so the difference is the time of our code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

from bench.gpu.place import Place
from bench.gpu.report import Report, spread
from tilelink.backend.targets import TARGETS
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.cuda.device import CudaDevice, Kernel, load
from tilelink.runtime.cuda.driver import Driver
from tilelink.runtime.cuda.probed import Probed
from tilelink.runtime.cuda.virtual_world import VirtualGroup, VirtualWorld
from tilelink.runtime.prepare import Prepared

CALLS, TIMES = 200, 5
"""How many calls are averaged, few enough for a queue of the device; and how many averages are taken."""
HOPPER = TARGETS["sm_90"]


@triton.jit
def little(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


def host(place: Place, report: Report) -> None:
    """Records the time of calls, and of a bare launch, by the clock of the host."""
    about = {"op": "all_gather_matmul", "dtype": "bfloat16", "world": 1}
    what = "host time of a call" if place.on_gpu else "host time of a call whose launches do nothing"
    clock = time.perf_counter if place.on_gpu else time.thread_time  # other processes do not affect it
    with report.case(what, **about) as found, nullcontext(place) if place.on_gpu else nowhere() as here:
        x, weight, out = (torch.ones(256, 256, device=here.place).bfloat16() for _ in range(3))
        figures: dict[str, list[float]] = {}

        def body(group: VirtualGroup) -> None:
            def call(**options: Any) -> Callable[[], Any]:
                return lambda: all_gather_matmul(x, weight, group=group, **options)

            calls = {
                "bare": lambda: little[(1,)](x, out, 256, BLOCK=256), "push": call(schedule="push"),
                "pull": call(schedule="pull"), "push_into": call(schedule="push", out=out),
            }  # fmt: skip
            for name, do in calls.items():
                do()
                figures[name] = [_time(do, here.settle, clock) for _ in range(TIMES)]

        here.world(1).run(body)
        for name, us in figures.items():
            found[f"{name}_us"] = spread(us)
        found["above_a_bare_launch_us"] = round(median(figures["push"]) - median(figures["bare"]), 2)
        if place.on_gpu:
            found |= spread(figures["push"])


def _time(call: Callable[[], Any], settle: Callable[[], None], clock: Callable[[], float]) -> float:
    """Returns microseconds of the host for one of many calls."""
    settle()
    began = clock()
    for _ in range(CALLS):
        call()
    took = (clock() - began) / CALLS * 1e6
    settle()
    return took


# ---- launches that do nothing


class NoDriver:
    """The part of Triton's driver that compiling, loading and launching use. It loads and launches nothing."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(
            load_binary=self.load, unload_module=lambda module: None,
            get_device_properties=lambda device: {"max_shared_mem": HOPPER.shared_bytes},
        )  # fmt: skip

    def get_current_target(self) -> GPUTarget:
        return GPUTarget(HOPPER.backend, HOPPER.arch, HOPPER.warp_size)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def load(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """Returns a module, a function, registers and spills of a thread, and the most threads of a block."""
        return 1, 2, 128, 0, 1024

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *arguments: None


class OneFits:
    """A stand-in for CUDA's library: one worker fits on an SM, and needs no local memory."""

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, found: Any, *of: Any) -> int:
        found._obj.value = 1
        return 0

    def cuFuncGetAttribute(self, *of: Any) -> int:
        return 0

    def cuCtxGetLimit(self, *of: Any) -> int:
        return 0


class NoDevice(CudaDevice):
    """A device whose kernels are compiled for Hopper, and whose memory is host memory."""

    def __init__(self) -> None:
        self.place, self.target, self.sms = torch.device("cpu"), HOPPER, 132
        self.name, self.stack, self.queues, self.probed = "none", "none", 32, Probed()
        self._stream = SimpleNamespace(cuda_stream=0)

    def seen_by_host(self) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.int64)

    def load(self, prepared: Prepared, kernel: str, arguments: Mapping[str, Any]) -> Kernel:
        return load(getattr(prepared.module, kernel), arguments, Driver(OneFits()), **prepared.lowered.options)

    def stream(self) -> Any:
        return self._stream

    def current(self) -> Any:
        return self._stream

    def on(self, stream: Any) -> Any:
        return nullcontext()

    def follow(self, stream: Any, before: Any) -> None:
        pass

    def capturing(self) -> bool:
        return False

    def synchronize(self, stream: Any) -> None:
        pass


def _world(ranks: int) -> VirtualWorld:
    return VirtualWorld(ranks, device=NoDevice(), heap_bytes=4 << 20, signal_bytes=1 << 12)


@contextmanager
def nowhere() -> Iterator[Any]:
    """A context with a place on `NoDevice`. Afterwards, Triton's own driver is back."""
    triton.runtime.driver.set_active(NoDriver())
    try:
        yield SimpleNamespace(place=torch.device("cpu"), world=_world, settle=lambda: None)
    finally:
        triton.runtime.driver.set_active(None)
