"""Virtual ranks on one device: launches, slots, calls that are done again, graphs, ends in vain. The device is a
stand-in that interprets kernels; on a GPU, tests/runtime/test_on_gpu.py."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tilelink as tk
from tests.parameters import covering
from tests.runtime.cuda_stand_in import StandIn, virtual_world
from tests.runtime.small_worlds import SMALL, K, N, whole
from tilelink.errors import (
    ArgumentError,
    CaptureError,
    DeviceError,
    NeverEnteredError,
    RankMismatchError,
    ResidencyError,
    ScheduleError,
    ShapeError,
    StuckError,
    WorldError,
)
from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.programs.schedule_text import NamedSchedule
from tilelink.runtime.cuda import virtual_world as module
from tilelink.runtime.cuda.group import CudaGroup
from tilelink.runtime.cuda.probed import Probed
from tilelink.runtime.cuda.virtual_world import VirtualWorld
from tilelink.runtime.lane import HOST, Reason, Report

KERNELS = {
    "push": [""], "pull": ["_publish", ""], "multicast": [""], "engine": ["_enter", ""],
    "engine at the reader": ["_publish", "_enter", ""],
}  # fmt: skip
ENGINE = SMALL["engine, own rows copied"]


@pytest.mark.parametrize(
    ("schedule", "world"),
    covering(
        [*(("push", w) for w in (1, 2, 3, 4, 8)), ("pull", 8), ("pull", 3), *(("multicast", w) for w in (1, 4))]
        + [(s, w) for s in ("engine", "engine at the reader") for w in (1, 3, 4)]
    ),
)
def test_results_on_worlds_of_all_sizes(schedule: str, world: int) -> None:
    device = StandIn(sms=24)
    ranks, inputs = virtual_world(world, device), whole((16,) * world)
    for _ in range(2):
        inputs.check(ranks.run(lambda group: inputs.on(group, schedule=SMALL[schedule])))
    kernels = [f"all_gather_matmul{k}" for k in KERNELS[schedule]]
    assert [name for _, name, _ in device.launched] == kernels * world * 2
    assert {len({s.cuda_stream for s in g._engine.values()}) for g in ranks.groups} <= {0, 1}, "one queue a rank"
    assert all(workers <= 24 // world for _, _, workers in device.launched), "each rank has its share of the SMs"


def test_uneven_parts() -> None:
    ranks, inputs = virtual_world(3, StandIn()), whole((5, 0, 18))
    inputs.check(ranks.run(inputs.on))


def test_calls_alike_are_checked_and_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device = StandIn()
    ranks, sets = virtual_world(2, device), [whole((16, 16), seed=s) for s in range(5)]

    def body(group: CudaGroup) -> list[torch.Tensor]:
        outs = [i.on(group) for i in sets[:2]]  # a slot each
        loads = len(device.loads)
        monkeypatch.setattr(all_gather_matmul, "bind", None)
        outs += [i.on(group) for i in sets[2:]]
        assert len(device.loads) == loads
        return outs

    results = ranks.run(body)
    for k, inputs in enumerate(sets):
        inputs.check([r[k] for r in results])


def test_nothing_of_the_caller_is_kept() -> None:
    """Results that are given are others each time, and such calls are known all the same."""
    ranks = virtual_world(2, StandIn())
    alive: list[weakref.ref[torch.Tensor]] = []

    def body(group: CudaGroup) -> None:
        loads = []
        for seed in range(5):
            inputs, out = whole((16, 16), seed=seed), torch.full((32, N), torch.nan)
            x, weight = inputs.x[group.rank], inputs.weight[group.rank]
            assert all_gather_matmul(x, weight, out, schedule=SMALL["push"], group=group) is out
            group.synchronize()
            torch.testing.assert_close(out, inputs.expected[group.rank].float(), rtol=0, atol=0)
            alive.extend(map(weakref.ref, (x, weight, out)))
            loads.append(len(group._known))
        assert loads == [1] * 5
        taken = torch.empty(2 * 32 * N)
        with pytest.raises(ArgumentError, match="out shares memory with weight"):
            place = taken[:K * N].view(K, N)
            all_gather_matmul(x, place, taken[: 32 * N].view(32, N), schedule=SMALL["push"], group=group)

    ranks.run(body)
    gc.collect()
    assert not [r for r in alive if r() is not None]


def test_a_graph_is_replayed_after_runs_on_another_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    device = StandIn()
    ranks, inputs = virtual_world(1, device), whole((16,))
    follows: list[tuple[Any, Any]] = []
    monkeypatch.setattr(device, "follow", lambda stream, before: follows.append((stream, before)))
    monkeypatch.setattr(device, "synchronize", lambda stream: None)  # only the order is looked at: nothing is run

    def body(group: CudaGroup) -> None:
        inputs.on(group), inputs.on(group)
        follows.clear()
        first, other = device.current(), device.stream()
        with device.on(other), device.capture() as graph:
            inputs.on(group)
        assert not follows
        with device.on(other):
            group.replay(graph)
        assert follows == [(other, first)]
        inputs.on(group)
        assert follows[1:] == [(first, other)]

    ranks.run(body)


def test_calls_that_differ_are_checked_anew() -> None:
    """Other strides, sizes, dtypes and names of what is given: each is right, and an error is found at any time."""
    ranks, inputs = virtual_world(2, StandIn()), whole((16, 16))

    def body(group: CudaGroup) -> list[torch.Tensor]:
        x, weight = inputs.x[group.rank], inputs.weight[group.rank]
        call: Callable[..., torch.Tensor] = lambda *t, **o: all_gather_matmul(  # noqa: E731
            *t, **o, schedule=SMALL["push"], group=group
        )
        outs = [call(x, weight), call(x, weight.T.contiguous().T), call(x, weight=weight)]
        outs.append(call(x.half(), weight.half()))
        bias = torch.full((N,), float(group.rank))
        biased = [call(x, weight, bias=bias), call(x, weight, None, bias)]
        group.synchronize()
        outs += [out - bias for out in biased]
        given = torch.full((32, N), torch.nan)
        assert call(x, weight, given) is given and call(x, weight, out=given) is given
        with pytest.raises(ShapeError):
            call(x, weight[:8])
        return [*outs, given]

    for rank, outs in enumerate(ranks.run(body)):
        for out in outs:
            torch.testing.assert_close(out.float(), inputs.expected[rank].float(), rtol=0, atol=0)


def test_a_slot_may_be_chosen() -> None:
    ranks, inputs = virtual_world(2, StandIn()), whole((16, 16))
    for slot in (1, 1, 0):
        inputs.check(ranks.run(lambda group, slot=slot: inputs.on(group, slot=slot)))  # type: ignore[misc]
    with pytest.raises(ScheduleError, match="slot 2: this world has 2"):
        ranks.run(lambda group: inputs.on(group, slot=2))


def test_workers_that_do_not_fit() -> None:
    inputs = whole((16, 16))
    with pytest.raises(ResidencyError, match=r"has \d+ workers .* 0 fit on the 6 SMs it has: 0 on each"):
        virtual_world(2, StandIn(workers_per_sm=0)).run(inputs.on)
    with pytest.raises(WorldError, match="8 ranks on 12 SMs, of which 5 are reserved"):
        virtual_world(8, StandIn(sms=12), reserved=5)


def test_too_few_queues_for_the_copy_engine() -> None:
    device = StandIn()
    device.queues = 5
    ranks, inputs = virtual_world(2, device), whole((16, 16))
    with pytest.raises(WorldError, match=r"need 6 queues, it has 5: set CUDA_DEVICE_MAX_CONNECTIONS=32"):
        ranks.run(lambda group: inputs.on(group, schedule=SMALL["engine"]))


def test_too_few_queues_for_two_kernels_a_rank() -> None:
    """As where Megatron has set CUDA_DEVICE_MAX_CONNECTIONS=1; a probe may allow it."""
    device = StandIn()
    device.queues = 1
    ranks, inputs = virtual_world(2, device), whole((16, 16))
    inputs.check(ranks.run(lambda group: inputs.on(group, schedule=SMALL["push"])))
    with pytest.raises(WorldError, match="2 ranks with 2 kernels each on one device need 3 queues, it has 1"):
        ranks.run(lambda group: inputs.on(group, schedule=SMALL["pull"]))
    device.probed = Probed({"few_queues": True})
    inputs.check(ranks.run(lambda group: inputs.on(group, schedule=SMALL["pull"])))


def test_streams_that_can_not_signal() -> None:
    device = StandIn()
    device.probed = Probed({"stream_signals": False})
    inputs = whole((16,))
    with pytest.raises(WorldError, match=r"all_gather_matmul uses the copy engine; .* a word for a kernel .*: no"):
        virtual_world(1, device).run(lambda group: inputs.on(group, schedule=ENGINE))


@pytest.mark.parametrize(("answer", "workers"), [(None, 1), (False, 1), (True, 2)])
def test_copies_beside_all_sms_are_for_a_probe_to_allow(answer: bool | None, workers: int) -> None:
    device, inputs = StandIn(sms=2), whole((16,))
    device.probed = Probed({} if answer is None else {"copies_beside_all_sms": answer})
    inputs.check(virtual_world(1, device).run(lambda group: inputs.on(group, schedule=ENGINE)))
    assert max(n for _, _, n in device.launched) == workers


@pytest.mark.parametrize("schedule", ["push", "push,gather.count=2", NamedSchedule("push")], ids=str)
def test_schedules_by_name_and_with_changes(schedule: Any) -> None:
    inputs = whole((16, 16))
    inputs.check(virtual_world(2, StandIn()).run(lambda group: inputs.on(group, schedule=schedule)))


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", "CUDA_LAUNCH_BLOCKING is set"),
        ("CUDA_INJECTION64_PATH", "/opt/libsanitizer-collection.so", "compute-sanitizer runs one kernel at a time"),
        ("LD_PRELOAD", "/opt/ncu/libcuda-injection.so", "Nsight Compute runs one kernel at a time"),
        ("NV_COMPUTE_PROFILER_PERFWORKS_DIR", "/opt/ncu", "Nsight Compute runs one kernel at a time"),
        ("NV_SANITIZER_INJECTION_PORT_BASE", "49152", "compute-sanitizer runs one kernel at a time"),
        ("maps", "7f00-7f01 r-xp 0 0:0 7 /opt/libsanitizer-collection.so\n", "compute-sanitizer runs one kernel"),
    ],
)
def test_tools_that_run_one_kernel_at_a_time(
    name: str, value: str, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(name, value)
    if name == "maps":
        monkeypatch.setattr(module, "MAPS", tmp_path / name)
        (tmp_path / name).write_text(value)
    with pytest.raises(WorldError, match=f"2 virtual ranks wait for each other, and {why}"):
        virtual_world(2, StandIn())
    inputs = whole((16,))
    inputs.check(virtual_world(1, StandIn()).run(inputs.on))


def test_a_gpu_on_which_kernels_were_seen_apart() -> None:
    device = StandIn()
    device.probed = Probed({"virtual_ranks": False})
    with pytest.raises(WorldError, match=r"2 virtual ranks .* kernels of several ranks are on one device together: no"):
        virtual_world(2, device)


# ---- what is prepared may be captured


@pytest.mark.parametrize("schedule", ["push", "engine"])
def test_a_graph_is_replayed_with_other_inputs(schedule: str) -> None:
    device = StandIn()
    device.probed = Probed({"engines_in_graphs": True})
    ranks, first, second = virtual_world(2, device), whole((16, 16), seed=1), whole((16, 16), seed=2)

    def body(group: CudaGroup) -> list[torch.Tensor]:
        x, weight = first.x[group.rank].clone(), first.weight[group.rank]
        call: Callable[[], torch.Tensor] = lambda: all_gather_matmul(  # noqa: E731
            x, weight, schedule=SMALL[schedule], group=group
        )
        all_gather_matmul.prepare(x, weight, schedule=SMALL[schedule], group=group)
        with device.capture() as graph:
            outs = [call(), call(), call()]
        found = []
        for inputs in (first, second, first):
            x.copy_(inputs.x[group.rank])
            group.replay(graph)
            group.synchronize()
            found.append(torch.stack(outs).clone())
        return found

    first_x, second_x = torch.cat(first.x), torch.cat(second.x)
    for rank, found in enumerate(ranks.run(body)):
        for outs, x in zip(found, (first_x, second_x, first_x), strict=True):
            for out in outs:
                torch.testing.assert_close(out, x @ first.weight[rank], rtol=0, atol=0)


def test_what_was_not_prepared_is_not_captured() -> None:
    device = StandIn()
    ranks, inputs = virtual_world(1, device), whole((16,))

    def body(group: CudaGroup) -> None:
        with device.capture():
            inputs.on(group)

    with pytest.raises(CaptureError, match=r"all_gather_matmul is captured .* by all_gather_matmul.prepare"):
        ranks.run(body)


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({}, r"nobody has asked this GPU yet whether a graph runs a branch of copies .* --step probe"),
        ({"engines_in_graphs": False}, r"bench/gpu/probe.py has asked this GPU whether a graph runs .*: no"),
    ],
)
def test_copy_engines_are_captured_where_a_probe_allows_it(answers: dict[str, bool], why: str) -> None:
    device = StandIn()
    device.probed = Probed(answers)
    ranks, inputs = virtual_world(1, device), whole((16,))

    def body(group: CudaGroup) -> None:
        inputs.on(group, schedule=ENGINE), inputs.on(group, schedule=ENGINE)
        with device.capture():
            inputs.on(group, schedule=ENGINE)

    with pytest.raises(CaptureError, match=f"captured in a schedule with a copy engine; {why}; or take another"):
        ranks.run(body)


def test_graphs_that_may_not_wait_for_each_other() -> None:
    device = StandIn()
    device.probed = Probed({"graphs_together": False})
    with pytest.raises(CaptureError, match=r"graphs of 2 ranks wait .* launched one after the other: no"):
        virtual_world(2, device).run(lambda group: group.replay(None))


def test_preparing_launches_nothing() -> None:
    device = StandIn()
    ranks, inputs = virtual_world(2, device), whole((16, 16))
    ranks.run(
        lambda g: all_gather_matmul.prepare(inputs.x[g.rank], inputs.weight[g.rank], schedule=SMALL["pull"], group=g)
    )
    assert not device.launched and {g.runs for g in ranks.groups} == {0}
    inputs.check(ranks.run(lambda group: inputs.on(group, schedule=SMALL["pull"])))


# ---- ranks that do not agree, and waits in vain


def test_ranks_that_call_differently() -> None:
    device = StandIn()
    ranks, inputs = virtual_world(2, device), whole((16, 16))
    schedules = [SMALL["push"], SMALL["push"].changed(matmul={"stages": 2})]
    with pytest.raises(RankMismatchError, match="call 0 of this group: rank 1 has schedule"):
        ranks.run(lambda group: inputs.on(group, schedule=schedules[group.rank]))
    assert not device.launched
    inputs.check(ranks.run(inputs.on))


def test_a_rank_that_does_not_call() -> None:
    ranks, inputs = virtual_world(2, StandIn()), whole((16, 16))
    inputs.check(ranks.run(inputs.on))

    def body(group: CudaGroup) -> Any:
        return inputs.on(group) if group.rank == 0 else None

    with pytest.raises(NeverEnteredError) as error:
        ranks.run(body)
    assert "a rank did not come within 2 s" in str(error.value)
    assert "rank 0 worker" in str(error.value) and "of all_gather_matmul run 1" in str(error.value)
    inputs.check(ranks.run(inputs.on))


def test_a_signal_that_is_withheld() -> None:
    """The gather of rank 1 brings nothing to rank 0: its signals are there before, and taken away."""
    device = StandIn()
    ranks, inputs = virtual_world(2, device), whole((16, 16))
    inputs.check(ranks.run(inputs.on))
    real = device.launch

    def withhold(code: Any, workers: int, values: tuple[Any, ...], stream: int) -> None:
        if values[code.names.index("rank")] == 1:
            values = tuple(0 if n == "gather_workers" else v for n, v in zip(code.names, values, strict=True))
        real(code, workers, values, stream)

    device.launch = withhold  # type: ignore[method-assign]
    with pytest.raises(StuckError) as error:
        ranks.run(inputs.on)
    assert "role matmul, tile" in str(error.value) and "waits for full[M[16:32], K[0:16]] of rank 0" in str(error.value)
    assert "expected 1, observed 0" in str(error.value)
    device.launch = real  # type: ignore[method-assign]
    inputs.check(ranks.run(inputs.on))


def test_poisoning_needs_no_sm() -> None:
    """All SMs may have workers that wait: words come from the host by copies, and no kernel writes one."""

    class Operations(TorchDispatchMode):
        seen: ClassVar[list[str]] = []

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(function.overloadpacket))
            return function(*args, **(kwargs or {}))

    ranks = virtual_world(3, StandIn())
    with Operations():
        ranks.lane.poison(Report(1, 0, HOST, 8, 1, 0, Reason.NEVER_ENTERED))
    views = {"slice", "view", "alias", "select", "_local_scalar_dense", "lift_fresh", "detach", "as_strided"}
    assert {o.removeprefix("aten.") for o in Operations.seen} - views == {"copy_"}
    assert [ranks.lane.report(r) for r in range(3)] == [Report(1, 0, HOST, 8, 1, 0, Reason.NEVER_ENTERED)] * 3


def test_after_a_wait_in_vain_no_call_is_made() -> None:
    ranks, inputs = virtual_world(2, StandIn()), whole((16, 16))

    def body(group: CudaGroup) -> None:
        if group.rank == 0:
            inputs.on(group)
            with pytest.raises(NeverEnteredError):
                group.synchronize()
            with pytest.raises(NeverEnteredError):
                inputs.on(group)
        raise KeyError("as expected")

    with pytest.raises(KeyError):
        ranks.run(lambda group: body(group) if group.rank == 0 else None)


# ---- where there is no GPU


def test_a_machine_without_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError, match=r"there is no CUDA device: torch .* sees none"):
        VirtualWorld(2)


def test_outside_of_a_run() -> None:
    ranks, inputs = virtual_world(1, StandIn()), whole((16,))
    with pytest.raises(WorldError, match=r"all_gather_matmul is called outside of VirtualWorld.run"):
        inputs.on(ranks.groups[0])


def test_a_call_of_another_program_in_between() -> None:
    ranks, inputs = virtual_world(2, StandIn()), whole((16, 16))
    schedule = tk.Schedule(gather=tk.SMs(tile=(16, 16), at="reader"))

    def body(group: CudaGroup) -> torch.Tensor:
        inputs.on(group)
        full = all_gather(inputs.x[group.rank], schedule=schedule, group=group)
        group.synchronize()
        assert torch.equal(full, torch.cat(inputs.x))
        return inputs.on(group)

    inputs.check(ranks.run(body))

