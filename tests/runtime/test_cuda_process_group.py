"""A process a rank on CUDA devices: what a CPU can tell. The device and torch's symmetric memory are stand-ins; on
GPUs, tests/runtime/test_on_gpu.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import tilelink as tk
from tests.runtime.cuda_stand_in import HEAP, SIGNALS, StandIn, rank_on
from tests.runtime.processes import Pool
from tests.runtime.small_worlds import SMALL, whole
from tilelink.errors import CaptureError, NeverEnteredError, RankMismatchError, StuckError, WorldError
from tilelink.frontend.kept import Kept
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.cuda.process_group import CudaProcessGroup
from tilelink.runtime.lane import HOST, Reason, Report


def test_calls_graphs_and_results(on_stand_in: tuple[CudaProcessGroup, StandIn]) -> None:
    group, device = on_stand_in
    inputs = whole((16,))
    outs = [inputs.on(group) for _ in range(3)]
    group.synchronize()
    inputs.check([outs[0]]), inputs.check([outs[2]])
    x, weight = inputs.x[0], inputs.weight[0]
    all_gather_matmul.prepare(x, weight, schedule=SMALL["pull"], group=group)
    with device.capture() as graph:
        out = all_gather_matmul(x, weight, schedule=SMALL["pull"], group=group)
    group.replay(graph)
    group.synchronize()
    inputs.check([out])
    with device.capture(), pytest.raises(CaptureError):
        inputs.on(group, schedule=SMALL["multicast"])


def test_a_withheld_signal_a_reset_and_a_good_call(on_stand_in: tuple[CudaProcessGroup, StandIn]) -> None:
    group, device = on_stand_in
    inputs = whole((16,), schedule=SMALL["push, own rows copied"])
    inputs.on(group)
    group.synchronize()
    real = device.launch

    def mute(code: Any, workers: int, values: tuple[Any, ...], stream: int) -> None:
        values = tuple(0 if n == "gather_workers" else v for n, v in zip(code.names, values, strict=True))
        real(code, workers, values, stream)

    device.launch = mute  # type: ignore[method-assign]
    inputs.on(group)
    with pytest.raises(StuckError, match=r"waits for all notifications of full on rank 0 .* observed 0"):
        group.synchronize()
    with pytest.raises(StuckError):
        inputs.on(group)
    device.launch = real  # type: ignore[method-assign]
    group.reset()
    out = inputs.on(group)
    group.synchronize()
    inputs.check([out])


def test_the_host_gives_up(on_stand_in: tuple[CudaProcessGroup, StandIn]) -> None:
    """As where a peer makes no call that is new to this rank."""
    group, _ = on_stand_in
    assert group.late(0, 0) == Report(0, 0, HOST, group.late(0, 0).word, 1, 0, Reason.NEVER_ENTERED)
    with pytest.raises(NeverEnteredError, match="rank 0 host of run 0: waits for rank 0 to go on"):
        group.give_up(group.late(0, 0))
    group.reset()
    group.synchronize()


# ---- several processes


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    opened = Pool(2)
    yield opened
    opened.close()


def calls_differently(schedules: list[str]) -> None:
    assert dist.group.WORLD is not None
    device = StandIn()
    group = rank_on(device, dist.group.WORLD)
    inputs = whole((16, 16))
    try:
        inputs.on(group, schedule=SMALL[schedules[group.rank]])
    finally:
        assert not device.launched


def test_ranks_that_call_differently(pool: Pool) -> None:
    for failure in pool.failures(calls_differently, ["push", "pull"]):
        assert failure.kind == RankMismatchError.__name__
        assert "call 0 of this group: rank 1 has schedule" in failure.text


def tensors_lie_otherwise_on_one_rank() -> None:
    assert dist.group.WORLD is not None
    device = StandIn()
    group, inputs = rank_on(device, dist.group.WORLD), whole((16, 16))
    for _ in range(2):  # a slot each
        inputs.on(group)
    if group.rank == 1:
        memory = torch.zeros(inputs.x[1].numel() + 1)
        inputs.x[1] = memory[1:].view(inputs.x[1].shape).copy_(inputs.x[1])
        assert inputs.x[1].data_ptr() % 16
    loads = len(device.loads)
    inputs.on(group)
    assert (len(device.loads) > loads) == (group.rank == 1), "only this rank loads anew"
    assert group.calls == 2, "and it asks nobody"


def test_what_is_new_to_one_rank_waits_for_no_other(pool: Pool) -> None:
    pool.results(tensors_lie_otherwise_on_one_rank)


def what_was_agreed_on_went() -> None:
    """Two calls are remembered, of one kind in two slots: another kind takes their place, on all ranks alike."""
    assert dist.group.WORLD is not None
    group, first, second = rank_on(StandIn(), dist.group.WORLD), whole((3, 3)), whole((5, 5))
    group._agreed = Kept(2)
    for inputs in (first, first, first, second, second):
        inputs.on(group)
    assert group.calls == 4 and len(group._agreed) == 2
    if group.rank == 1:  # whose script is new, and the other's is not
        memory = torch.zeros(first.x[1].numel() + 1)
        first.x[1] = memory[1:].view(first.x[1].shape).copy_(first.x[1])
    first.on(group)
    assert group.calls == 5, "both ask again, and neither waits in vain"


def test_ranks_forget_alike_what_they_agreed_on(pool: Pool) -> None:
    pool.results(what_was_agreed_on_went)


def asks_for_a_gpu() -> None:
    tk.group(device="cuda")


def test_a_machine_without_the_gpu_that_was_asked_for(pool: Pool) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    for failure in pool.failures(asks_for_a_gpu):
        assert failure.kind == "DeviceError" and "rank 0: there is no CUDA device" in failure.text


def test_reserved_sms(on_stand_in: tuple[CudaProcessGroup, StandIn], monkeypatch: pytest.MonkeyPatch) -> None:
    from tilelink.runtime.cuda import process_group

    monkeypatch.setattr(process_group, "CudaDevice", StandIn)
    with pytest.raises(WorldError, match="reserved=12: the device has 12 SMs"):
        tk.group(device="cuda", reserved=12)


@pytest.mark.usefixtures("alone")
def test_a_group_made_as_gloo_is_of_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo is its backend for CUDA tensors, too, also where there is a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "cuda:gloo" in dist.get_backend_config()
    assert tk.group(heap_bytes=HEAP, signal_bytes=SIGNALS).lane.place.type == "cpu"


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("backends", "limits", "reserved"),
    [
        ("cpu:gloo,cuda:nccl", {}, 24),
        ("cpu:gloo,cuda:nccl", {"NCCL_MAX_NCHANNELS": "16"}, 16),
        ("cpu:gloo,cuda:nccl", {"NCCL_MAX_NCHANNELS": "16", "NCCL_MAX_CTAS": "8"}, 8),
        ("cpu:gloo,cuda:ucc", {}, 0),
    ],
)
def test_sms_are_left_to_nccl(
    backends: str, limits: dict[str, str], reserved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(dist, "get_backend_config", lambda members: backends)
    for name in ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in limits.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        "tilelink.runtime.cuda.process_group.cuda_process_group", lambda m, l, sms, b: given.append(sms)
    )
    tk.group(), tk.group(reserved=3)
    assert given == [reserved, 3]
