"""Virtual ranks on a real GPU, and processes that share one. `python -m pytest -m gpu tests/runtime/test_on_gpu.py`;
without a GPU, test_on_gpu_dry.py runs the same functions on a stand-in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import tilelink as tk
from tests.kernels.gather_gemm import Call
from tests.runtime.processes import Pool
from tests.runtime.small_worlds import whole
from tilelink.errors import CaptureError, NeverEnteredError
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.cuda.group import CudaGroup
from tilelink.runtime.cuda.launches import fits
from tilelink.runtime.cuda.symmetric import OVERLAPPING
from tilelink.runtime.cuda.virtual_world import VirtualWorld

pytestmark = pytest.mark.gpu

REPLAYS = 1000
PARTS = {1: (48,), 2: (40, 5), 4: (16, 0, 33, 7), 8: (5, 16, 0, 1, 33, 8, 2, 16)}


def on_gpu(*parts: int, seed: int = 0) -> Call:
    """A call with its tensors on the GPU."""
    call = whole(parts, seed=seed)
    for tensors in (call.x, call.weight):
        tensors[:] = [t.cuda() for t in tensors]
    return call


def few(schedule: str) -> tk.Schedule:
    """A schedule with so few SMs for its gather that eight ranks have room."""
    found = all_gather_matmul.schedule(schedule)
    small = {"tile": (16, None)} if schedule == "engine" else {"tile": (16, 16), "count": 2}
    return found.changed(gather=small, matmul={"tile": (32, 32, 16)})


@pytest.mark.parametrize("world", [1, 2, 4, 8])
@pytest.mark.parametrize("schedule", ["push", "pull", "multicast", "engine"])
def test_results(world: int, schedule: str) -> None:
    ranks = VirtualWorld(world, heap_bytes=8 << 20, signal_bytes=1 << 16, enter_timeout=20.0, stuck_timeout=5.0)
    sets = [on_gpu(*PARTS[world], seed=s) for s in range(4)]

    def body(group: CudaGroup) -> list[torch.Tensor]:
        return [i.on(group, schedule=few(schedule)) for i in sets]

    for outs, inputs in zip(zip(*ranks.run(body), strict=True), sets, strict=True):
        inputs.check(list(outs))


def test_launches_past_triton_and_through_it_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, that CUDA names the parameters as we expect; `test_launches.py` compares their bytes without one."""
    torch.manual_seed(0)
    sets = [(torch.randn(256, 128).bfloat16().cuda(), torch.randn(256, 128).bfloat16().cuda()) for _ in range(3)]
    outs = list[list[torch.Tensor]]()
    for direct in (True, False):
        monkeypatch.setattr("tilelink.runtime.cuda.device.fits", fits if direct else lambda *given: False)
        ranks = VirtualWorld(2, heap_bytes=8 << 20, signal_bytes=1 << 16)

        def body(group: CudaGroup) -> list[torch.Tensor]:
            return [all_gather_matmul(x, w.T, schedule="push", group=group) for x, w in sets]

        outs.append([out for of_rank in ranks.run(body) for out in of_rank])
        assert {kernel.directly is not None for kernel in ranks.lane.loaded.values()} == {direct}
    assert all(torch.equal(a, b) for a, b in zip(*outs, strict=True))


def test_a_graph_and_what_may_not_be_captured() -> None:
    ranks = VirtualWorld(2, heap_bytes=8 << 20, signal_bytes=1 << 16)
    inputs, other = on_gpu(16, 16), on_gpu(16, 16, seed=1)

    def body(group: CudaGroup) -> list[torch.Tensor]:
        x, weight = inputs.x[group.rank].clone(), inputs.weight[group.rank]
        refused = torch.cuda.CUDAGraph()
        with pytest.raises(CaptureError), torch.cuda.graph(refused, stream=torch.cuda.current_stream()):
            all_gather_matmul(x, weight, schedule=few("push"), group=group)
        all_gather_matmul.prepare(x, weight, schedule=few("push"), group=group)
        graph = torch.cuda.CUDAGraph()  # torch takes no graph for a second capture, not even after one that failed
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            out = all_gather_matmul(x, weight, schedule=few("push"), group=group)
        kept = []
        for k in range(REPLAYS):
            x.copy_((inputs, other)[k % 2].x[group.rank])
            group.replay(graph)
            kept.append(out.clone())
        group.synchronize()
        return kept

    full = [torch.cat(i.x) for i in (inputs, other)]
    for rank, kept in enumerate(ranks.run(body)):
        for k, out in enumerate(kept):
            torch.testing.assert_close(out, full[k % 2] @ inputs.weight[rank], rtol=0, atol=0)


def test_a_rank_that_does_not_call() -> None:
    bounds: dict[str, Any] = {"enter_timeout": 1.0, "stuck_timeout": 1.0}
    ranks, inputs = VirtualWorld(2, heap_bytes=8 << 20, signal_bytes=1 << 16, **bounds), on_gpu(16, 16)
    inputs.check(ranks.run(lambda group: inputs.on(group, schedule=few("push"))))
    with pytest.raises(NeverEnteredError, match="waits for rank 1 to go on, which has left run 0"):
        ranks.run(lambda group: inputs.on(group, schedule=few("push")) if group.rank == 0 else None)
    inputs.check(ranks.run(lambda group: inputs.on(group, schedule=few("push"))))


# ---- processes that share a GPU: torch lets them, for tests


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    os.environ[OVERLAPPING] = "1"
    opened = Pool(2)
    yield opened
    opened.close()


def call_twice() -> list[bool]:
    assert dist.is_initialized()
    torch.cuda.set_device(0)
    group = tk.group(device="cuda", heap_bytes=8 << 20, signal_bytes=4096, reserved=torch.cuda.device_count())
    sets = [on_gpu(16, 16, seed=s) for s in range(2)]
    outs = [i.on(group, schedule=few("push").changed(matmul={"count": 8})) for i in sets]
    group.synchronize()
    return [torch.equal(o, torch.cat(i.x) @ i.weight[group.rank]) for o, i in zip(outs, sets, strict=True)]


def test_a_process_a_rank(pool: Pool) -> None:
    assert pool.results(call_twice) == [[True, True]] * 2
