"""Worlds of ranks on the CPU: many calls in a row, in any order of the workers; and heaps that are too small."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels.gather_gemm import run_and_check, small_world
from tests.parameters import each_once, first_of
from tests.programs.alone import (
    both_checking,
    checked_copies,
    checked_copy,
    checking,
    copy_checked,
    copy_checked_too,
)
from tests.runtime.small_worlds import SMALL, K, N, check_usable, whole
from tilelink.emulator import KernelError
from tilelink.errors import HeapError
from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.group import Group


@each_once("world, schedule", [1, 2, 3, 8], ["push", "pull"], dear=lambda world, _: world == 8)
def test_worlds(world: int, schedule: str) -> None:
    run_and_check(whole([3 * r % 7 for r in range(1, world + 1)], schedule=schedule))


@pytest.mark.parametrize("slots", first_of([2, 1]))
def test_ten_calls_in_one_run(slots: int) -> None:
    calls = [whole((5, 3), seed=s, schedule=("push", "pull")[s % 3 == 1]) for s in range(10)]
    run_and_check(*calls, slots=slots)


def test_slots_picked_by_hand() -> None:
    calls = [whole((5, 3), schedule="push", seed=k, slot=slot) for k, slot in enumerate((0, 1, 0, 0, 1))]
    world = small_world(2)
    for _ in range(2):
        run_and_check(*calls, world=world)


def test_shapes_and_dtypes_change_from_call_to_call() -> None:
    run_and_check(
        whole((32, 32), schedule="push"),
        whole((5, 0), torch.bfloat16, "push", seed=1),
        whole((0, 1), torch.float16, "pull", seed=2),
        whole((0, 0), schedule="push", seed=3),
        whole((1, 40), torch.bfloat16, seed=4),
        whole((32, 32), torch.float16, "push", seed=5),
    )


def test_programs_take_turns() -> None:
    def rank(group: Group) -> list[tuple[Any, torch.Tensor]]:
        return [(all_gather(c.x[group.rank], group=group), c.on(group, out=c.poison())) for c in calls]

    calls = [whole((6, 6), schedule="push", seed=s) for s in range(3)]
    for call, of_call in zip(calls, zip(*small_world(2).run(rank), strict=True), strict=True):
        gathered, outs = zip(*of_call, strict=True)
        call.check(outs)
        assert all(torch.equal(full, torch.cat(call.x)) for full in gathered)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(100),
        lambda x: torch.neg(x, out=x),
        lambda x: x[2:].zero_(),
        lambda x: x.numpy().fill(9),
        lambda x: np.asarray(x).fill(9),
        lambda x: x.untyped_storage().fill_(9),
        lambda x: np.from_dlpack(x).__setitem__(0, 9),
        lambda x: x.share_memory_().fill_(9),
    ],
    ids=["add_", "neg", "zero_", "numpy", "asarray", "storage", "dlpack", "share_memory_"],
)
def test_a_call_sees_what_its_inputs_held(change: Any) -> None:
    """The host changes an input right after the call, also past torch: on a stream that comes behind the run."""
    x = [torch.full((4, 8), float(rank)) for rank in range(2)]

    def rank(group: Group) -> torch.Tensor:
        out = all_gather(x[group.rank], group=group)
        change(x[group.rank])
        assert isinstance(out, torch.Tensor)
        return out

    for out in small_world(2).run(rank):
        assert out[:, 0].tolist() == [0.0] * 4 + [1.0] * 4
    assert not torch.equal(x[1], torch.ones(4, 8))


def test_torch_between_two_calls_sees_results() -> None:
    """Reads, and writes into a result, wait; views, and what touches other tensors, leave the order as it was."""
    x = [torch.full((4, 8), float(rank)) for rank in range(2)]

    def rank(group: Group) -> Any:
        out = all_gather(x[group.rank], group=group)
        out[:4].add_(10)
        return all_gather(out.relu()[:2], group=group)

    for out in small_world(2).run(rank):
        assert isinstance(out, torch.Tensor) and out.unique().tolist() == [10.0]

    def apart(group: Group, look: bool) -> Any:
        out = all_gather(x[group.rank], group=group)
        if look:
            torch.ones(3).add_(x[group.rank][0, 0])
        return all_gather(out.view(8, 8)[:2], group=group)

    worlds = small_world(2), small_world(2)
    for world, look in zip(worlds, (True, False), strict=True):
        world.run(lambda group, look=look: apart(group, look))  # type: ignore[misc]
    assert len({world.latest.schedule_hash for world in worlds if world.latest}) == 1


def test_worlds_take_turns() -> None:
    worlds = [small_world(1), small_world(2), small_world(3, slots=1), small_world(2)]
    for seed in range(2):
        for world in worlds:
            run_and_check(whole((4,) * world.world, schedule="push", seed=seed), world=world)


def test_what_a_kernel_raises_has_the_line_of_the_tile_function() -> None:
    """And the values of the names in that line."""
    world, x = CpuWorld(2), torch.arange(512.0).view(16, 32)
    with pytest.raises(KernelError) as e:
        world.run(lambda g: checked_copy(x, schedule=checking, group=g))
    assert e.value.site is not None and e.value.site.file.endswith("alone.py")
    assert e.value.site.text.startswith("tl.device_assert(block < ")
    assert "AssertionFailed: too large: block = 500.0" in e.value.message and "workers" not in e.value.message


@pytest.mark.parametrize("wrong", [0, 1])
def test_one_of_two_lines_with_the_same_text_is_named(wrong: int) -> None:
    right, x = torch.zeros(16, 32), torch.arange(512.0).view(16, 32)
    given = (x, right) if wrong == 0 else (right, x)
    with pytest.raises(KernelError) as e:
        CpuWorld(1).run(lambda g: checked_copies(*given, schedule=both_checking, group=g))
    first = (copy_checked, copy_checked_too)[wrong].first_line
    assert e.value.site is not None and first < e.value.site.line < first + 5


@pytest.mark.parametrize(
    "read",
    [
        lambda out: torch.tensor(out.tolist()),
        lambda out: torch.from_numpy(out.numpy().copy()),
        lambda out: torch.from_numpy(np.asarray(out).copy()),
        lambda out: pickle.loads(pickle.dumps(out)),
        lambda out: out.clone(),
    ],
    ids=["tolist", "numpy", "asarray", "pickle", "clone"],
)
def test_a_result_may_be_read_at_once(read: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Also where torch makes no operation of it."""
    x, weight = [torch.randn(20, 32) for _ in range(2)], torch.randn(32, 16)
    read_by = CpuWorld(2).run(lambda g: read(all_gather_matmul(x[g.rank], weight, schedule="push", group=g)))
    for out in read_by:
        torch.testing.assert_close(out, torch.cat(x) @ weight)


def test_a_rank_may_wait_for_its_results() -> None:
    """And make the next call of them."""

    def rank(group: Group) -> torch.Tensor:
        out = first.on(group, out=first.poison())
        group.synchronize()
        assert torch.equal(out, first.expected[group.rank].float())
        second.x[group.rank].copy_(out[: second.parts[group.rank], :K])
        return second.on(group, out=second.poison())

    first, second = whole((5, 3), schedule="push"), whole((2, 4), schedule="push", seed=1)
    outs = small_world(2).run(rank)
    for x, y in zip(second.x, first.expected, strict=True):
        assert torch.equal(x, y[: len(x), :K].float())
    second.check(outs)


def test_outputs_are_those_given_and_inputs_stay() -> None:
    call = whole((5, 0, 33), schedule="push")
    before, outs = [t.clone() for t in call.x + call.weight], [call.poison() for _ in call.parts]
    results = small_world(3).run(lambda group: call.on(group, out=outs[group.rank]))
    call.check(outs)
    assert all(a is b for a, b in zip(results, outs, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, call.x + call.weight, strict=True))


def test_results_come_by_rank() -> None:
    assert small_world(3).run(lambda group: (group.rank, group.world)) == [(0, 3), (1, 3), (2, 3)]


def bits(seed: int = 0, sms: int = 20) -> tuple[list[torch.Tensor], int]:
    """Results on any numbers, and the hash of the order in which they were made."""
    numbers = torch.Generator().manual_seed(1)
    x, weight = torch.randn(2, 20, 40, generator=numbers), torch.randn(2, 40, N, generator=numbers)
    world = small_world(2, sms=sms)

    def rank(group: Group) -> torch.Tensor:
        return all_gather_matmul(x[group.rank], weight[group.rank], schedule=SMALL["push"], group=group)

    outs = world.run(rank, seed=seed)
    assert world.latest is not None
    return outs, world.latest.schedule_hash


def test_the_seed_fixes_the_order_and_no_order_changes_a_bit() -> None:
    first, order = bits()
    assert bits()[1] == order
    others = [bits(seed) for seed in (1, 2)]
    assert len({order, *(o for _, o in others)}) == 3
    assert all(torch.equal(a, b) for outs, _ in others for a, b in zip(first, outs, strict=True))


def test_results_do_not_depend_on_the_sms() -> None:
    first, _ = bits()
    for sms in (3, 7, 132):
        assert all(torch.equal(a, b) for a, b in zip(first, bits(sms=sms)[0], strict=True))


# ---- Heaps.


@pytest.mark.parametrize("slots", [1, 2])
def test_recommended_heap_is_enough(slots: int) -> None:
    call = whole((200, 120), schedule="push")
    with pytest.raises(HeapError) as e:
        small_world(2, slots=slots, heap_bytes=8 << 10, signal_bytes=512).run(call.on)
    message = str(e.value)
    assert "too small for all_gather_matmul at {'M': 320, 'K': 16, 'N': 24} on 2 ranks" in message
    assert "a slot needs 20480 bytes for full" in message
    (heap_bytes,) = map(int, re.findall(r"heap_bytes=(\d+)", message))
    run_and_check(call, slots=slots, heap_bytes=heap_bytes, signal_bytes=512)


def test_recommended_signals_are_enough() -> None:
    call = whole((16 * 66,))
    small = small_world(1, heap_bytes=256 << 10, signal_bytes=256, slots=1)
    with pytest.raises(HeapError, match="signal_bytes=512") as e:
        small.run(call.on)
    (heap_bytes,) = map(int, re.findall(r"heap_bytes=(\d+)", str(e.value)))
    check_usable(small)
    run_and_check(call, heap_bytes=heap_bytes, signal_bytes=512, slots=1, races=False)
