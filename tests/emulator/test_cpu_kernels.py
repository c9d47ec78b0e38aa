"""Kernels, one thing each: what they compute, how they synchronise, and how they fail."""

import threading

import pytest
import torch
import triton
import triton.language as tl

from tests.emulator.launches import launch_one, run_one
from tests.emulator.worlds import Heap
from tests.programs import kernels
from tilelink.emulator import (
    DeadlockError,
    Execution,
    KernelError,
    LivelockError,
    OutOfBoundsError,
    RaceError,
    Region,
    interpreted,
)
from tilelink.errors import TileLinkError


def test_out_of_bounds_leaves_memory_untouched():
    memory = torch.zeros(12)
    source = torch.ones(8)
    execution = Execution(1)

    def host(rank: int) -> None:
        execution.launch(
            interpreted(kernels.shifted_copy), 1, dict(source_ptr=source, target_ptr=memory, shift=2, N=8),
            [Region("source", 0, source), Region("target", 0, memory[:8])], rank,
        )  # fmt: skip

    where = "out of bounds: store 32 bytes from the base of target@rank0, which has 32 bytes"
    with pytest.raises(OutOfBoundsError, match=where) as error:
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
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_is_left_out_as_on_gpus(dtype: torch.dtype):
    """PTX: the maximum of NaN and a number is the number, unless propagate_nan says otherwise."""
    x = torch.tensor([torch.nan, 2, torch.nan, -3], dtype=dtype)
    y = torch.tensor([1, torch.nan, torch.nan, 5], dtype=dtype)
    out = torch.zeros(5, 4, dtype=dtype)
    run_one(kernels.without_numbers, dict(x_ptr=x, y_ptr=y, out_ptr=out), N=4)
    clamped = torch.tensor([-1, 1, -1, -1], dtype=dtype)
    expected = [torch.fmax(x, y), torch.fmin(x, y), clamped, torch.maximum(x, y), x.clamp(-1, 1)]
    assert torch.equal(out.nan_to_num(99), torch.stack(expected).nan_to_num(99))


@pytest.mark.versions
@pytest.mark.parametrize(
    ("source", "dtype", "wanted"),
    [
        (torch.float32, tl.int32, [2, -2, 0, 2**31 - 1, -(2**31), 2**31 - 1, 2**24, -300]),
        (torch.bfloat16, tl.int32, [2, -2, 0, 2**31 - 1, -(2**31), 2**31 - 1, 2**24, -300]),
        (torch.float32, tl.uint32, [2, 0, 0, 2**32 - 1, 0, 2**32 - 1, 2**24, 0]),
        (torch.float32, tl.int64, [2, -2, -(2**63), 2**63 - 1, -(2**63), 2**63 - 1, 2**24, -300]),
        (torch.float64, tl.int32, [2, -2, -(2**31), 2**31 - 1, -(2**31), 2**31 - 1, 2**24, -300]),
        (torch.float32, tl.int16, [2, -2, 0, 2**15 - 1, -(2**15), 2**15 - 1, 2**15 - 1, -300]),
        (torch.float32, tl.int8, [2, -2, 0, -1, 0, -1, -1, -44]),
        (torch.float32, tl.uint8, [2, 0, 0, 255, 0, 255, 255, 0]),
    ],
    ids=str,
)
def test_integers_are_cut_off_as_on_gpus(source: torch.dtype, dtype: tl.dtype, wanted: list[int]):
    """As PTX's cvt.rzi: beyond the integers is the nearest one, of 8 bits the lower half of one of 16 bits."""
    x = torch.tensor([2.9, -2.9, torch.nan, torch.inf, -torch.inf, 2.0**70, 2.0**24, -300], dtype=source)
    out = torch.zeros(8, dtype=torch.int64)
    run_one(kernels.cut_off, dict(x_ptr=x, out_ptr=out), N=8, DTYPE=dtype)
    assert out.tolist() == wanted


@pytest.mark.versions
def test_bool_has_one_bit():
    x, y = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    out = torch.zeros(4, 4, dtype=torch.int64)
    run_one(kernels.bits, dict(x_ptr=x, y_ptr=y, out_ptr=out), N=4)
    assert torch.equal(out, torch.stack([x ^ y, x ^ y, x, x & y]))


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
        execution.run(lambda rank: launch_one(execution, kernels.wait_for_one, dict(flag_ptr=flag), 6, giver=5))
    assert [program.program for program in error.value.stuck] == [0, 1, 2]
    (rest,) = error.value.unstarted
    assert (rest.rank, rest.launch, rest.programs) == (0, "wait_for_one", range(3, 6))
    flag.zero_()
    execution = Execution(1, resident=6)
    execution.run(lambda rank: launch_one(execution, kernels.wait_for_one, dict(flag_ptr=flag), 6, giver=5))


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


@pytest.mark.versions
@pytest.mark.skipif(not hasattr(triton.language, "atomic_poll"), reason="Triton 3.9 and newer")
@pytest.mark.parametrize("seed", range(4))
def test_atomic_poll(seed):
    flag, data, out = (torch.zeros(n, dtype=torch.int32) for n in (2, 1, 1))
    run_one(kernels.poll_39, dict(flag_ptr=flag, data_ptr=data, out_ptr=out), 2, seed=seed)
    assert out.item() == 6
