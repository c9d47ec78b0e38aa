"""A world that is dropped frees its heaps at once: nothing waits for the collector of reference cycles."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import tilelink as tk
from tests.kernels.gather_gemm import run_and_check
from tests.parameters import seldom
from tests.programs import transfers
from tests.programs.exchanges import own_workers, readers_first
from tests.runtime.small_worlds import whole
from tilelink.errors import StuckError
from tilelink.runtime.cpu.world import CpuWorld

ROWS = 20


@pytest.fixture(autouse=True, scope="module")
def no_collector() -> Iterator[None]:
    """What cycles hold stays until all tests here are done."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def heaps(world: CpuWorld) -> list[StorageWeakRef]:
    """Whether the heaps of a world are still there."""
    return [StorageWeakRef(heap.untyped_storage()) for heap in world.lane.heaps]


def right(world: CpuWorld, schedule: str) -> None:
    """Calls that come out right."""
    run_and_check(*[whole((ROWS, ROWS), schedule=schedule)] * 3, world=world)


def stuck(world: CpuWorld) -> None:
    """A run in which nobody can go on."""
    x = torch.zeros(2 * ROWS, ROWS)
    with pytest.raises(StuckError):
        world.run(lambda group: readers_first(x[:ROWS], schedule=own_workers, group=group))


def failing(world: CpuWorld) -> None:
    """A run whose function raises behind a call."""

    def on_rank(group: Any) -> None:
        whole((ROWS, ROWS), schedule="push").on(group)
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        world.run(on_rank)


RUNS: dict[str, tuple[Callable[[CpuWorld], None], dict[str, Any]]] = {
    "right": (lambda world: right(world, "push"), {}),
    "by the copy engine": (lambda world: right(world, "engine"), {}),
    "across nodes": (lambda world: right(world, "push"), {"per_node": 1}),
    "under another policy": (lambda world: right(world, "pull"), {"policy": "pct", "switch": "memory"}),
    "stuck": (stuck, {"resident": 1}),
    "failing": (failing, {}),
}


@pytest.mark.parametrize("what", seldom(RUNS, lambda what: what == "across nodes"))
def test_heaps_of_a_dropped_world_are_freed(what: str) -> None:
    run, options = RUNS[what]
    run(CpuWorld(2, heap_bytes=1 << 20, sms=8, **options))  # what torch imports in it keeps the frames of its import
    world = CpuWorld(2, heap_bytes=1 << 20, sms=8, **options)
    there = heaps(world)
    run(world)
    assert not any(heap.expired() for heap in there)
    del world
    assert all(heap.expired() for heap in there)


def test_a_group_that_outlives_its_world_is_refused() -> None:
    group = CpuWorld(1, heap_bytes=1 << 20).groups[0]
    with pytest.raises(tk.errors.WorldError, match=r"outside of CpuWorld\.run"):
        group.synchronize()


def fetching(world: tk.KernelWorld) -> list[StorageWeakRef]:
    """Ranks bring data over the network; whether the memory of the world is still there."""
    tensors = [world.symmetric(name, (4 * transfers.N.value,)) for name in ("data", "buffer", "out")]
    for tensor in tensors:
        tensor[0].zero_()
        tensor[1].zero_()
    world.run(lambda rank: rank.launch(transfers.fetches, 1, *(tensor[rank.rank] for tensor in tensors)))
    return [StorageWeakRef(region.tensor.untyped_storage()) for tensor in tensors for region in tensor.regions]


def test_memory_of_a_dropped_kernel_world_is_freed() -> None:
    world = tk.KernelWorld(2)
    there = fetching(world)
    assert not any(tensor.expired() for tensor in there)
    del world
    assert all(tensor.expired() for tensor in there)
