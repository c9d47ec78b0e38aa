"""Modules of primitives have what kernels import from them."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from tilelink.analysis.placement import GPU_SIGNAL
from tilelink.backend.parameters import MULTICAST_PRIMITIVES, NETWORK_PRIMITIVES, OF_NODE, PRIMITIVES
from tilelink.backend.targets import NETWORKS, TARGETS, Target
from tilelink.runtime.cpu.world import LATE

MODULES = [*TARGETS.values(), *(t.across_nodes() for t in TARGETS.values() if t.backend in NETWORKS), LATE]


@pytest.mark.parametrize("target", MODULES, ids=lambda t: f"{t.name}-{t.module.rpartition('.')[2]}")
def test_a_module_has_all_primitives(target: Target) -> None:
    of_node = {n for n in OF_NODE if n != "settle" or target.descriptors or not target.backend}
    needed = {*PRIMITIVES, "clock"} | (set() if target.network else of_node)
    needed |= set(MULTICAST_PRIMITIVES) if target.multicast else set()
    needed |= set(NETWORK_PRIMITIVES) if target.network else set()
    assert needed <= set(vars(importlib.import_module(target.module)))


def test_signals_of_gpus_lie_as_far_apart_as_the_check_says() -> None:
    assert {t.signal_bytes for t in TARGETS.values() if t.backend} == {GPU_SIGNAL}
