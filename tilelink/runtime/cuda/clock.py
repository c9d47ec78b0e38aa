"""How long a device takes for what a host enqueues, without the time that the host takes to enqueue it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilelink.errors import DeviceError

CYCLES = 2_000_000
"""A millisecond at 2 GHz: how long the device sleeps at first, while the host enqueues."""
ATTEMPTS = 6


def device_us(
    action: Callable[[], object], before: Callable[[], object] = lambda: None, cuda: Any = torch.cuda
) -> float:
    """Microseconds between two events around what `action` enqueues on the current stream. `before` enqueues what is
    not timed. The device sleeps meanwhile; where it woke up before the host was done, Python's launch rate would be
    inside, and it is done again after a longer sleep. Raises DeviceError where the host is never fast enough."""
    cycles = CYCLES
    for _ in range(ATTEMPTS):
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        cuda._sleep(cycles)
        before()
        begin.record()
        action()
        end.record()
        late = begin.query()
        end.synchronize()
        if not late:
            return float(begin.elapsed_time(end)) * 1e3
        cycles *= 4
    raise DeviceError(
        f"the host took longer to enqueue this than the device slept, {cycles // 4} cycles: a time of it would be the "
        "host's; enqueue less, or replay a graph"
    )


def captured(action: Callable[[], object]) -> Callable[[], object]:
    """What `action` enqueues on the current stream, as a graph: returns what replays it. It was done once before."""
    action()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action()
    replay: Callable[[], object] = graph.replay
    return replay
