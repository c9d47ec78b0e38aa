"""The place where steps run: virtual ranks of a GPU or, to try the steps themselves, CPU ranks."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from bench.gpu.recorded import recorded
from bench.records import cores
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.cuda.clock import device_us
from tilelink.runtime.cuda.device import CudaDevice
from tilelink.runtime.cuda.probed import FORMS, Probed
from tilelink.runtime.cuda.virtual_world import VirtualWorld

Sizes = Mapping[str, int]
GEMMS = {
    "LLaMA-7B": (4096, 11008), "LLaMA-3.1-8B": (4096, 14336), "Gemma-2-9B": (3584, 14336),
    "Gemma-2-27B": (4608, 36864), "LLaMA-3.1-70B": (8192, 28672), "Qwen-2-72B": (8192, 29568),
}  # fmt: skip
"""Hidden and intermediate sizes of the paper's six MLPs (TileLink, MLSys 2025, section 7). M is 8192."""
FLUSHED = 256 << 20
"""Bytes that are read before each timed call: more than the cache of any GPU."""
LONGEST_ASKED = 5.0
"""The most seconds that nvidia-smi may take to report clocks."""


@dataclass(frozen=True)
class Place:
    """The device and settings of steps. `device`: its name in records. `world(n)` makes a world. `capture(group)`
    captures the calls of a rank as a graph on the current stream, for `group.replay`. `clock(call, before)` returns
    microseconds of a call on the device, after the work of `before()` and with a flushed cache. `settle()` waits until
    the device is idle. `clocks(busy)` returns MHz and the like while the device repeats the work of `busy()`. `probed`:
    answers of the probe; `form`: of kernels that multiply. `on_gpu`: times mean something, and kernels bound their own
    waits. `sizes`: of checks; `parts`: uneven parts by number of ranks; `gemms`: (M, N, K) by name; `repeats`: of timed
    calls; `compilers`: processes that compile ahead, 0 for none; `sms`: of the device."""

    device: str
    place: torch.device
    on_gpu: bool
    world: Callable[..., Any]
    capture: Callable[[Any], AbstractContextManager[Any]]
    clock: Callable[[Callable[[], Any], Callable[[], Any]], float]
    settle: Callable[[], None]
    clocks: Callable[[Callable[[], Any]], Mapping[str, float]]
    sizes: Sizes
    parts: Mapping[int, tuple[int, ...]]
    gemms: Mapping[str, tuple[int, int, int]]
    repeats: int
    compilers: int = 0
    sms: int = 24
    probed: Probed = field(default_factory=Probed)
    form: str = "portable"

    def matrices(self, seed: int) -> Callable[[int, int], torch.Tensor]:
        """Returns a function that makes random matrices in bfloat16, the same ones for the same seed."""
        random = torch.Generator(self.place).manual_seed(seed)
        return lambda rows, cols: torch.randn(rows, cols, generator=random, device=self.place).bfloat16()


def gpu() -> Place:
    """Returns the current GPU as a place. Raises DeviceError."""
    device = CudaDevice()

    def world(n: int, **options: Any) -> VirtualWorld:
        return VirtualWorld(n, **{"enter_timeout": 3.0, "stuck_timeout": 1.0, "heap_bytes": 64 << 20} | options)

    rank = 8  # tensor parallel
    layers = {f"{n}, gate": (8192, i // rank, h) for n, (h, i) in GEMMS.items()}
    layers |= {f"{n}, down": (8192, h, i // rank) for n, (h, i) in GEMMS.items()}
    return Place(
        device.name, device.place, True, world, _capture, _by_events, torch.cuda.synchronize, _clocks,
        {"M": 1024, "N": 768, "K": 512}, {2: (300, 33), 4: (5, 0, 300, 129)}, layers, 30, min(12, cores()),
        device.sms, device.probed, "specialised" if device.target.specialised else "portable",
    )  # fmt: skip


def _capture(group: Any) -> AbstractContextManager[Any]:
    graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    own = current if current != torch.cuda.default_stream() else None  # torch captures the default one on another
    return _Entered(torch.cuda.graph(graph, stream=own), graph)


class _Entered(AbstractContextManager[Any]):
    """A context that returns `value` when it is entered, in place of its own value."""

    def __init__(self, context: Any, value: Any) -> None:
        self.context, self.value = context, value

    def __enter__(self) -> Any:
        self.context.__enter__()
        return self.value

    def __exit__(self, *error: Any) -> None:
        self.context.__exit__(*error)


def _by_events(call: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> float:
    def enqueue() -> None:
        before()
        flush(_more_than_the_cache())

    return device_us(call, enqueue)


@cache
def _more_than_the_cache() -> torch.Tensor:
    return torch.zeros(FLUSHED // 8, dtype=torch.int64, device="cuda")


def flush(memory: torch.Tensor) -> object:
    """Fills the cache with `FLUSHED` bytes of memory. They are read: lines that were written would go back to memory
    while the timed call loads, and a call that is bound by memory would take up to twice as long."""
    return memory.max()


def _clocks(busy: Callable[[], Any]) -> dict[str, float]:
    """Returns MHz of SMs and memory, watts and degrees Celsius from nvidia-smi, or {}, while the GPU does the work of
    `busy()`. An idle GPU has other clocks than a timed one."""
    asked = {"clocks.sm": "sm_mhz", "clocks.mem": "memory_mhz", "power.draw": "watts", "temperature.gpu": "celsius"}
    asked |= {"power.limit": "limit_watts"}
    command = ["nvidia-smi", f"--query-gpu={','.join(asked)}", "--format=csv,noheader,nounits"]
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    try:
        asks = subprocess.Popen([*command, f"--id=GPU-{uuid}"], stdout=subprocess.PIPE, text=True)
    except OSError:
        return {}
    until = time.monotonic() + LONGEST_ASKED
    while asks.poll() is None and time.monotonic() < until:
        busy()
        torch.cuda.synchronize()
    asks.kill()
    try:
        return dict(zip(asked.values(), map(float, asks.communicate()[0].split(",")), strict=True))
    except ValueError:
        return {}


def by_host(call: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> float:
    """Returns microseconds of a call by the clock of the host."""
    before()
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e6


def dry() -> Place:
    """Returns the CPU as a place, with tiny sizes. Recorded calls stand for graphs, and every form counts as probed.
    With fewer columns, rounding errors would vary too much."""

    def world(n: int, **options: Any) -> CpuWorld:
        return CpuWorld(n, **{"sms": 24, "heap_bytes": 1 << 20, "signal_bytes": 1 << 12} | options)

    return Place(
        "none: kernels are interpreted", torch.device("cpu"), False, world, recorded, by_host, lambda: None,
        lambda busy: {},
        {"M": 64, "N": 256, "K": 32}, {2: (20, 5), 4: (5, 0, 30, 9)}, {"tiny": (64, 32, 32)}, 2,
        probed=Probed(dict.fromkeys(FORMS, True)),
    )  # fmt: skip
