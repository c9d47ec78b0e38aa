"""Measures one GPU for a description of its machine: rates, tile times, launches, signals and copies.

Numbers that take two GPUs (links, remote signals, collectives) come from the machine that the description extends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from tilelink.errors import DeviceError
from tilelink.runtime.cuda.clock import captured, device_us
from tilelink.runtime.gauges import multiply, nothing, notify, read

TILE, WAVES = (128, 256, 64), 4
REPEATS = 20
COPIES = tuple(8192 << k for k in range(0, 15, 2))
FENCES = 1000
CACHED, BLOCK = 6 << 20, 4096
"""Words that L2 holds (24 MiB), and the words that a program reads at once."""


@dataclass(frozen=True)
class Measured:
    """Numbers by their path in a description, each with how it was measured; `gpu`: the name of the GPU."""

    gpu: str
    numbers: dict[str, tuple[float, str]]


def measure() -> Measured:
    """Measures this machine's first GPU, in about a minute. Raises DeviceError without a GPU."""
    if not torch.cuda.is_available():
        raise DeviceError(
            "tilelink machine measure needs a GPU, and torch finds none here; tilelink doctor says what is missing. "
            "Machines that are described already: tilelink machine list"
        )
    device = torch.cuda.get_device_properties(0)
    sms = device.multi_processor_count
    rate, tile_us, second_wave = _tiles(sms)
    local, system = _notification("gpu"), _notification("sys")
    setup_us, host_rate = _copies()
    library = _us(_matmul(8192))
    found = {
        "sms": (float(sms), "device properties"),
        "memory_gb": (device.total_memory / 1e9, "device properties"),
        "matmul.bfloat16": (2 * 8192.0**3 / library / 1e6, "torch.mm, 8192 x 8192 x 8192"),
        "memory_rate": (_memory_rate(), "device copy of 1 GiB, read and written"),
        "l2_total": (_l2_total(sms), "two programs an SM read the same 24 MiB"),
        "tile_us": (tile_us, f"tiles {TILE[0]} x {TILE[1]} in Triton: time of a wave against K, at K=0"),
        "launch_us": (_launch(), "a graph of 200 empty kernels, one behind the other"),
        "signal_us": (2 * local, "two atomics with acq_rel at gpu scope: a notification, and the poll that sees it"),
        "fence_us": (max(0.0, system - local), "an atomic with acq_rel at sys scope, less one at gpu scope"),
    }
    about = {
        "tile_rate": (rate, f"TFLOP/s of tiles {TILE[0]} x {TILE[1]} in Triton on all SMs, their main loop"),
        "second_wave": (second_wave, "time of one tile more than there are SMs, in waves"),
        "host_copy_setup_us": (setup_us, "copies to pinned memory of 8 KiB to 128 MiB, least squares: for no bytes"),
        "host_copy_rate": (host_rate, "the same: GB/s"),
    }
    return Measured(device.name, {**found, **{f"# {path}": number for path, number in about.items()}})


def description(measured: Measured, extends: str) -> str:
    """A machine description of the measured numbers; comments have the numbers without a place in a description."""
    lines = [f'extends = "{extends}"', f'title = "{measured.gpu}, measured"', ""]
    for path, (value, how) in measured.numbers.items():
        lines.append(f'{path} = {{ value = {value:.6g}, source = "measured on {measured.gpu}: {how}" }}')
    return "\n".join(lines) + "\n"


def _us(action: Callable[[], object]) -> float:
    """Microseconds of an action on the device: the median of runs after two to warm up. The host enqueues ahead."""
    return float(np.median([device_us(action) for _ in range(REPEATS + 2)][2:]))


def _matmul(size: int) -> Callable[[], object]:
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return lambda: torch.mm(a, b)


def _tiles(sms: int) -> tuple[float, float, float]:
    """TFLOP/s of the main loop of tiles on all SMs; microseconds of a tile outside its main loop; the time of one tile
    more than there are SMs, in waves."""
    m, n, step = TILE

    def run(tiles: int, k: int) -> float:
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
        out = torch.empty(tiles * m * n, device="cuda", dtype=torch.bfloat16)
        return _us(lambda: multiply[(tiles,)](x, weight, out, k, m, n, step, num_warps=8, num_stages=3))

    def wave(k: int) -> float:
        """Microseconds of a wave of tiles, without the beginning and the end of the kernel."""
        return (run(WAVES * sms, k) - run(sms, k)) / (WAVES - 1)

    ks = np.array([1024, 2048, 4096, 8192])
    slope, beside = np.polyfit(ks, [wave(int(k)) for k in ks], 1)
    rate = 2.0 * m * n * sms / slope / 1e6
    return rate, max(0.0, float(beside)), run(sms + 1, 4096) / run(sms, 4096)


def _memory_rate() -> float:
    source = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * source.numel() / _us(lambda: target.copy_(source)) / 1e3


def _l2_total(sms: int) -> float:
    """GB/s that all SMs together read from L2."""
    programs = 2 * sms
    words = torch.zeros(CACHED, device="cuda", dtype=torch.int32)
    out = torch.empty(programs * BLOCK, device="cuda", dtype=torch.int32)
    return programs * words.nbytes / _us(lambda: read[(programs,)](words, out, CACHED, BLOCK, num_warps=8)) / 1e3


def _launch(count: int = 200) -> float:
    """Microseconds of an empty kernel behind another one. A graph launches them, because Python launches more slowly
    than the device."""
    word = torch.zeros(1, device="cuda", dtype=torch.int32)

    def launches() -> None:
        for _ in range(count):
            nothing[(1,)](word)

    return _us(captured(launches)) / count


def _notification(scope: str) -> float:
    """Microseconds of an atomic with acquire and release at a scope, in a row of such atomics."""
    word = torch.zeros(1, device="cuda", dtype=torch.int32)
    return _us(lambda: notify[(1,)](word, FENCES, scope, num_warps=1)) / FENCES


def _copies() -> tuple[float, float]:
    """Microseconds of a copy of no bytes to pinned memory of the host, and GB/s of a long one."""
    times = []
    for size in COPIES:
        source = torch.empty(size, device="cuda", dtype=torch.uint8)
        target = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        times.append(_us(partial(target.copy_, source, non_blocking=True)))
    weights = 1 / np.array(times)  # so that short copies count as much as long ones
    slope, setup = np.polyfit(np.array(COPIES, float), times, 1, w=weights)
    return float(setup), float(1 / slope / 1e3)
