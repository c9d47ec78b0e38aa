import threading

import pytest
import torch
import triton

from tests.runtime.cpu import more_kernels as kernels
from tests.runtime.cpu.worlds import GatherMatmul, Heap
from tilelink.errors import TileLinkError
from tilelink.runtime.cpu import (
    DeadlockError,
    Execution,
    KernelError,
    LivelockError,
    OutOfBoundsError,
    RaceError,
    Region,
    interpreted,
)

TOLERANCE = {torch.float32: 1e-6, torch.float16: 4e-4, torch.bfloat16: 2.5e-3}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def launch_one(execution: Execution, kernel, tensors: dict, grid: int = 1, rank: int = 0, **constants):
    """Launches with one region per tensor."""
    regions = [Region(name.removesuffix("_ptr"), rank, tensor) for name, tensor in tensors.items()]
    execution.launch(interpreted(kernel), grid, tensors | constants, regions, rank)


def run_one(kernel, tensors: dict, grid: int = 1, seed: int = 0, **constants) -> Execution:
    execution = Execution(1, seed=seed)
    execution.run(lambda rank: launch_one(execution, kernel, tensors, grid, rank, **constants))
    return execution


# The gather-matmul.


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_gather_matmul_is_right_on_many_seeds(dtype):
    problem = GatherMatmul(dtype=dtype, K=64)
    for seed in range(8):
        problem.run(Execution(4, seed=seed))
        assert problem.error() < TOLERANCE[dtype]


def test_gather_matmul_is_right_when_programs_switch_at_every_access():
    problem = GatherMatmul()
    problem.run(Execution(4, seed=1, switch="memory"))
    problem.run(Execution(4, policy="round_robin", resident=2))
    assert problem.error() < 1e-6


def test_truncated_bfloat16_would_be_noticed():
    problem = GatherMatmul(dtype=torch.bfloat16, K=64)
    a = torch.cat(problem.a).double()
    for rank, b in enumerate(problem.b):
        words = (a @ b.double()).float().view(torch.int32) >> 16
        problem.results[rank] = words.to(torch.int16).view(torch.bfloat16)
    assert problem.error() > TOLERANCE[torch.bfloat16]


def test_the_seed_fixes_the_schedule():
    problem = GatherMatmul()

    def schedule(seed: int) -> int:
        execution = Execution(4, seed=seed)
        problem.run(execution)
        return execution.schedule_hash

    assert schedule(5) == schedule(5)
    assert len({schedule(seed) for seed in range(5)}) == 5


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "fault",
    ["no wait", "notify early", "relaxed notify", "gpu notify", "relaxed wait", "gpu wait", "plain wait",
     "plain notify", "overlap"],
)  # fmt: skip
def test_missing_order_is_a_race(fault, seed):
    problem = GatherMatmul(fault=fault)
    execution = Execution(4, seed=seed)
    with pytest.raises(RaceError) as error:
        problem.run(execution)
    assert error.value.races == tuple(execution.races)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", ["lost notify", "wrong signal"])
def test_missing_signals_are_a_deadlock(fault, seed):
    with pytest.raises(DeadlockError):
        GatherMatmul(fault=fault).run(Execution(4, seed=seed))


def test_a_race_tells_both_sides():
    problem = GatherMatmul(fault="no wait")
    execution = Execution(4, seed=0, races="collect")
    problem.run(execution)
    race = next(r for r in execution.races if {r.first.kind, r.second.kind} == {"load", "store"})
    read, written = sorted((race.first, race.second), key=lambda party: party.kind)
    assert read.site.text.startswith("a = tl.load(gathered")
    assert written.site.text.startswith("tl.store(gathered")
    assert read.region == written.region == "gathered"
    assert read.region_rank == written.region_rank == read.rank
    assert read.box == written.box
    assert written.box[0][0] // 16 == written.rank
    assert read.program > 0 and written.program == 0
    assert "gathered" in str(race)


def test_a_deadlock_tells_who_waits_for_what():
    with pytest.raises(DeadlockError) as error:
        GatherMatmul(fault="lost notify").run(Execution(4))
    deadlock = error.value
    assert len(deadlock.stuck) == 8 and not deadlock.unstarted
    for program in deadlock.stuck:
        (wait,) = program.waits
        # The last peer of every pusher gets no signal.
        assert (wait.region, wait.region_rank, wait.observed) == ("signals", program.rank, 0)
        assert wait.index == ((program.rank + 1) % 4,)
        assert "atomic_add(signal, 0" in wait.site.text
        assert [site.text for site in wait.site.callers] == ["wait(signal, epoch)"]
    assert [(host.rank, host.streams) for host in deadlock.hosts] == [(rank, (0,)) for rank in range(4)]
    assert "signals[0]@rank3 is 0" in str(deadlock)


def test_an_access_out_of_bounds_does_not_happen():
    problem = GatherMatmul(fault="out of bounds")
    with pytest.raises(OutOfBoundsError) as error:
        problem.run(Execution(4, policy="round_robin"))
    assert error.value.rank == 3 and error.value.launch == "gather_matmul" and error.value.program == 0
    assert error.value.nearest is not None and error.value.nearest.name in ("signals", "gathered")
    assert error.value.site is not None and error.value.site.text.startswith("tl.store(gathered")
    assert all(not region.tensor.any() for region in problem.signals)


# Kernels, one thing each.


def test_out_of_bounds_leaves_memory_untouched():
    memory = torch.zeros(12)
    source = torch.ones(8)
    execution = Execution(1)

    def host(rank: int) -> None:
        execution.launch(
            interpreted(kernels.shifted_copy), 1, dict(source_ptr=source, target_ptr=memory, shift=2, N=8),
            [Region("source", 0, source), Region("target", 0, memory[:8])], rank,
        )  # fmt: skip

    with pytest.raises(OutOfBoundsError, match=r"store of .*32 bytes from the base of target@rank0") as error:
        execution.run(host)
    assert error.value.offset == 32
    assert not memory.any()


@pytest.mark.versions
def test_the_library_of_triton():
    x, y = torch.randn(16), torch.randn(16)
    out = torch.zeros(8 + 16)
    run_one(kernels.library, dict(x_ptr=x, y_ptr=y, out_ptr=out), N=16)
    expected = [x.sum(), x.max(), (x * x).sum(), torch.minimum(x, y).sum(), 9, x.sigmoid().sum(),
                x.softmax(0).max(), x.argmax(), *x.cumsum(0)]  # fmt: skip
    torch.testing.assert_close(out, torch.tensor([float(value) for value in expected]))


@pytest.mark.versions
def test_bfloat16_is_rounded_to_nearest_even():
    x, y = torch.randn(64).bfloat16(), torch.randn(64).bfloat16()
    out = torch.zeros(6, 64, dtype=torch.bfloat16)
    run_one(kernels.bfloat16_arithmetic, dict(x_ptr=x, y_ptr=y, out_ptr=out), N=64)
    expected = [x + y, x * y, torch.where(x > y, x, -y), torch.maximum(x, y) + 1.5,
                (x.float() / 3).bfloat16(), x.abs()]  # fmt: skip
    assert torch.equal(out, torch.stack(expected))


@pytest.mark.versions
def test_ranges_with_runtime_arguments():
    out = torch.full((8,), -1, dtype=torch.int32)
    run_one(kernels.ranges, dict(out_ptr=out), start=3, stop=17, step=4)
    assert out.tolist() == [3, 7, 11, 15, -1, -1, -1, -1]


def test_masked_tiles():
    source = torch.arange(30.0).view(5, 6)
    target = torch.zeros(8, 8)
    run_one(kernels.masked_copy, dict(source_ptr=source, target_ptr=target), M=5, N=6, stride=6, BM=8, BN=8)
    assert torch.equal(target[:5, :6], source)
    assert (target[5:] == 7).all() and (target[:, 6:] == 7).all()


def test_scattered_tiles():
    source, target = torch.arange(1.0, 17).view(4, 4), torch.zeros(4, 4)
    run_one(kernels.checkerboard, dict(source_ptr=source, target_ptr=target), BM=4)
    even = (torch.arange(4)[:, None] + torch.arange(4)) % 2 == 0
    assert torch.equal(target, torch.where(even, source, 0))


@pytest.mark.versions
@pytest.mark.parametrize("world", [2, 4, 8])
def test_blocks_of_words_are_polled(world):
    heap = Heap(world, 64 + 4 * world)
    slots, slot_table = heap.view("slots", 0, (16,), torch.int32)
    signals, signal_table = heap.view("signals", 64, (world,), torch.int32, "signal")
    for seed in range(3):
        for block in heap.blocks:
            block.zero_()
        out = torch.zeros(world, 16, dtype=torch.int32)
        execution = Execution(world, seed=seed)

        def host(rank: int, execution=execution, out=out) -> None:
            execution.launch(
                interpreted(kernels.exchange), 1,
                dict(slot_ptrs=slot_table.tensor, signal_ptrs=signal_table.tensor, out_ptr=out[rank], rank=rank,
                     WORLD=world, N=16),
                [*slots, *signals, slot_table, signal_table, Region("out", rank, out[rank])], rank,
            )  # fmt: skip

        execution.run(host)
        assert torch.equal(out, (torch.arange(world)[:, None] - 1) % world + torch.arange(16))


def test_a_block_that_never_comes_is_a_deadlock():
    heap = Heap(2, 8)
    signals, signal_table = heap.view("signals", 0, (2,), torch.int32, "signal")
    execution = Execution(2)

    def host(rank: int) -> None:
        if rank == 0:
            execution.launch(
                interpreted(kernels.barrier), 1, dict(signal_ptrs=signal_table.tensor, rank=rank, WORLD=2),
                [*signals, signal_table], rank,
            )  # fmt: skip

    with pytest.raises(DeadlockError) as error:
        execution.run(host)
    (program,) = error.value.stuck
    assert [(w.region_rank, w.index, w.observed) for w in program.waits] == [(0, (0,), 1), (0, (1,), 0)]


@pytest.mark.parametrize("seed", range(3))
def test_a_lock_orders_what_it_protects(seed):
    heap = Heap(3, 8)
    words, word_table = heap.view("words", 0, (2,), torch.int32, "signal")
    execution = Execution(3, seed=seed)
    execution.run(
        lambda rank: execution.launch(
            interpreted(kernels.lock), 2, dict(word_ptrs=word_table.tensor, rounds=3), [*words, word_table], rank
        )
    )
    assert words[0].tensor.tolist() == [0, 18]


def test_limited_residency_is_a_deadlock():
    flag = torch.zeros(1, dtype=torch.int32)
    execution = Execution(1, resident=3)
    with pytest.raises(DeadlockError) as error:
        execution.run(lambda rank: launch_one(execution, kernels.producer_last, dict(flag_ptr=flag), 6, programs=6))
    assert [program.program for program in error.value.stuck] == [0, 1, 2]
    (rest,) = error.value.unstarted
    assert (rest.rank, rest.launch, rest.programs) == (0, "producer_last", range(3, 6))
    flag.zero_()
    execution = Execution(1, resident=6)
    execution.run(lambda rank: launch_one(execution, kernels.producer_last, dict(flag_ptr=flag), 6, programs=6))


@pytest.mark.parametrize("seed", range(3))
def test_atomics_of_two_widths_are_a_race(seed):
    words = torch.zeros(2, dtype=torch.int32)
    run_one(kernels.two_widths, dict(word_ptr=words), 2, seed=seed, WIDE=False)
    with pytest.raises(RaceError, match=r"atomics of [48] and of [48] bytes, and nothing orders them"):
        run_one(kernels.two_widths, dict(word_ptr=words), 2, seed=seed, WIDE=True)


def test_words_that_are_read_often_are_no_deadlock():
    flag, out = torch.ones(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    run_one(kernels.read_twice, dict(flag_ptr=flag, out_ptr=out), times=5)
    assert out.item() == 5


def test_spinning_on_a_plain_load_is_a_livelock():
    for kernel in (kernels.spin, kernels.toggle):
        flag = torch.zeros(1, dtype=torch.int32)
        execution = Execution(1, livelock=500)
        with pytest.raises(LivelockError, match="500 memory operations"):
            execution.run(lambda rank, e=execution, k=kernel, f=flag: launch_one(e, k, dict(flag_ptr=f)))


def test_errors_of_kernels_tell_where():
    x = torch.ones(4)
    threads = threading.active_count()
    with pytest.raises(KernelError, match="not zero") as error:
        run_one(kernels.failing, dict(x_ptr=x), grid=2)
    assert isinstance(error.value, TileLinkError)
    assert isinstance(error.value.__cause__, AssertionError)
    assert error.value.site is not None and error.value.site.text.startswith("tl.device_assert")
    assert error.value.rank == 0 and error.value.launch == "failing"
    assert threading.active_count() == threads


# Streams and launches.


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


@pytest.mark.versions
@pytest.mark.skipif(not hasattr(triton.language, "atomic_poll"), reason="Triton 3.9 and newer")
@pytest.mark.parametrize("seed", range(4))
def test_atomic_poll(seed):
    flag, data, out = (torch.zeros(n, dtype=torch.int32) for n in (2, 1, 1))
    run_one(kernels.poll_39, dict(flag_ptr=flag, data_ptr=data, out_ptr=out), 2, seed=seed)
    assert out.item() == 6
