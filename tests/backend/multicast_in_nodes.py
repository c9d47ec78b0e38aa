"""The network of a CPU, and the multicast of `multicast_by_loops` inside the nodes of four ranks."""

import triton
import triton.language as tl

from tests.backend import multicast_by_loops
from tilelink.backend.targets import portable
from tilelink.emulator.late_network import (  # noqa: F401, kernels import them from here
    RUN,
    SLOT_LEFT,
    complete_far,
    credit,
    drain,
    enter,
    entered,
    fetch_far,
    is_far,
    last_out,
    leave,
    notify,
    notify_far,
    peer,
    put_far,
    put_notify_far,
    wait,
)

WORLD = tl.constexpr(4)
(_elements,) = portable.over(globals(), multicast_by_loops._elements)
(multicast_store,) = portable.over(globals(), multicast_by_loops.multicast_store)


@triton.jit
def multicast_notify(multicast, at, cell):
    for other in range(WORLD):
        if tl.load(multicast + other) >= 0:
            notify(peer(multicast, other, at, tl.int64) + 2 * cell, "sys")
