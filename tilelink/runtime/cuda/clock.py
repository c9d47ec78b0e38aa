"""Measures the time of a device for enqueued work, without the time that the host takes to enqueue it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilelink.errors import DeviceError

CYCLES = 2_000_000
"""How long the device sleeps at first, while the host enqueues: a millisecond at 2 GHz."""
ATTEMPTS = 6


def device_us(
    action: Callable[[], object], before: Callable[[], object] = lambda: None, cuda: Any = torch.cuda
) -> float:
    """Microseconds between two events around the work that `action` enqueues on the current stream. `before` enqueues
    work that is not timed. If the host was late, both are repeated after a longer sleep of the device. Raises
    DeviceError if the host is never fast enough."""
    cycles = CYCLES
    for _ in range(ATTEMPTS):
        us, late = timed_once(action, before, cycles, cuda)
        if not late:
            return us
        cycles *= 4
    raise DeviceError(
        f"the host took longer to enqueue this than the device slept, {cycles // 4} cycles: a time of it would be the "
        "host's; enqueue less, or replay a graph"
    )


def timed_once(
    action: Callable[[], object], before: Callable[[], object], cycles: int, cuda: Any = torch.cuda
) -> tuple[float, bool]:
    """As `device_us`, but once, behind a sleep of `cycles`. Also returns whether the device woke up before the host was
    done: the time then contains Python's launch rate."""
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    cuda._sleep(cycles)
    before()
    begin.record()
    action()
    end.record()
    late = bool(begin.query())
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3, late


def captured(action: Callable[[], object]) -> Callable[[], object]:
    """Captures the work that `action` enqueues in a graph, after doing it once; returns a function that replays it."""
    action()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action()
    replay: Callable[[], object] = graph.replay
    return replay
