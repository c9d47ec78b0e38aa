"""Executions: streams and launches in order, what hosts may do, and what observers see."""

import pytest
import torch

from tests.emulator.launches import launch_one, run_one
from tests.emulator.worlds import GatherMatmul
from tests.programs import kernels
from tilelink.emulator import Execution, RaceError, Region, interpreted


def test_launches_of_a_stream_are_in_order():
    a, b, c = torch.randn(64), torch.zeros(64), torch.zeros(64)
    execution = Execution(1, seed=2)

    def host(rank: int) -> float:
        launch_one(execution, kernels.copy, dict(source_ptr=a, target_ptr=b), 4, N=16)
        launch_one(execution, kernels.copy, dict(source_ptr=b, target_ptr=c), 4, N=16)
        execution.synchronize(rank)
        return float(c.sum())

    assert execution.run(host) == [float(a.sum())]


def test_launches_of_two_streams_are_not():
    a, b, c = torch.randn(64), torch.zeros(64), torch.zeros(64)
    execution = Execution(1)

    def host(rank: int, wait: bool = False) -> None:
        for stream, (source, target) in enumerate([(a, b), (b, c)]):
            execution.launch(
                interpreted(kernels.copy), 1, dict(source_ptr=source, target_ptr=target, N=64),
                [Region("source", 0, source), Region("target", 0, target)], rank, stream=stream,
            )  # fmt: skip
            if wait:
                execution.synchronize(rank, stream)

    with pytest.raises(RaceError):
        execution.run(host)
    execution.run(lambda rank: host(rank, wait=True))


def test_layouts_of_a_heap_change_between_launches():
    heap = torch.zeros(256, dtype=torch.uint8)
    out = torch.zeros(32)

    def host(rank: int, ordered: bool = True) -> None:
        for stream, dtype in enumerate((torch.bfloat16, torch.float32)):
            source = torch.ones(64, dtype=dtype)[: 128 // dtype.itemsize]
            part = Region("wide" if stream else "narrow", 0, heap[:128].view(dtype))
            execution.launch(
                interpreted(kernels.copy), 1, dict(source_ptr=source, target_ptr=part.tensor, N=part.shape[0]),
                [part, Region("source", 0, source)], rank, stream=0 if ordered else stream,
            )  # fmt: skip
        wide = heap[:128].view(torch.float32)
        launch_one(execution, kernels.copy, dict(source_ptr=wide, target_ptr=out), N=32)

    execution = Execution(1)
    execution.run(host)
    assert (out == 1).all()
    with pytest.raises(RaceError) as error:
        execution.run(lambda rank: host(rank, ordered=False))
    assert {race.first.region for race in error.value.races} | {race.second.region for race in error.value.races} >= {
        "narrow", "wide",
    }  # fmt: skip


def test_hosts_return_and_raise():
    assert Execution(3).run(lambda rank: rank * rank) == [0, 1, 4]

    def host(rank: int) -> None:
        if rank == 1:
            raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        Execution(3).run(host)


def test_arguments_have_to_fit():
    x = torch.zeros(4)
    with pytest.raises(TypeError, match="no parameter"):
        run_one(kernels.copy, dict(source_ptr=x, target=x), N=4)
    with pytest.raises(TypeError, match="missing"):
        run_one(kernels.copy, dict(source_ptr=x), N=4)
    with pytest.raises(RuntimeError, match="host"):
        Execution(1).synchronize(0)


# Observers.


def test_observers_see_operations_in_the_order_of_time():
    operations = []
    problem = GatherMatmul(world=2, M=32, N=16, K=16)
    problem.run(Execution(2, seed=1, observer=operations.append))
    assert [operation.sequence for operation in operations] == list(range(len(operations)))
    releases = {(o.region.rank, o.box): o for o in operations if o.semantic == "release"}
    assert len(releases) == 4
    for release in releases.values():
        assert (release.kind, release.scope, release.old, release.new) == ("atomic_add", "sys", 0, 1)
        assert release.region.name == "signals" and release.site.text.startswith("tl.atomic_add(signal, 1")
    stores = [o for o in operations if o.kind == "store" and o.region.name == "gathered"]
    assert {(o.region.rank, o.box) for o in stores} == {
        (rank, ((row, row + 16), (0, 16))) for rank in range(2) for row in (0, 16)
    }
    seen = [o for o in operations if o.semantic == "acquire" and o.old == 1]
    assert len(seen) == 4
    for acquire in seen:
        assert acquire.time > releases[acquire.region.rank, acquire.box].time
    for rank in range(2):
        for program in range(3):
            times = [o.time for o in operations if (o.rank, o.program) == (rank, program) and o.new != 0]
            assert times == sorted(times)


def test_lamport_times_do_not_depend_on_how_often_a_wait_looks():
    def times(seed: int) -> set[tuple[int, int, int]]:
        operations = []
        problem = GatherMatmul(world=2, M=32, N=16, K=16)
        problem.run(Execution(2, seed=seed, observer=operations.append, races=False))
        return {(o.rank, o.program, o.time) for o in operations if o.region.name == "c"}

    assert len({frozenset(times(seed)) for seed in range(6)}) == 1


def test_a_launch_starts_after_what_precedes_it():
    operations = []
    a, b = torch.zeros(16), torch.zeros(16)
    execution = Execution(1, observer=operations.append)

    def host(rank: int) -> None:
        for _ in range(2):
            launch_one(execution, kernels.copy, dict(source_ptr=a, target_ptr=b), N=16)

    execution.run(host)
    assert [(o.launch, o.kind, o.time) for o in operations] == [
        (0, "load", 1), (0, "store", 2), (1, "load", 3), (1, "store", 4),
    ]  # fmt: skip
