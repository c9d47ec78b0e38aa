"""Waits that end: by the word, when the time is over, when the lane is poisoned. Their PTX, executed by a stand-in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.backend.ptx_machine import Machine, undefined
from tests.backend.waiting import EVERY, FLAG, HEAP, ME, RUN_NOW, SIGNAL, TABLE, WORLD, World
from tilelink.backend.targets.polling import polling
from tilelink.backend.targets.portable import POISON, PROGRESS, WAITER
from tilelink.runtime.lane import Reason, Report


@pytest.mark.parametrize("polls", [1, 2, EVERY, EVERY + 1, 1000])
def test_the_word_comes(polls: int) -> None:
    world = World(STUCK_NS=0)
    world.at[polls] = lambda: world.memory.update({SIGNAL: 4})
    machine = world.wait(4)
    assert world.polls == polls + 1, "the load that acquires comes after the polls"
    names = [e[0] for e in machine.log]
    assert names[-4:-2] == ["bar.warp.sync", "barrier.cta.red.or.pred"]
    assert names[-2:] == ["ld.acquire.sys.global.s32", "fence.proxy.async.global"]
    assert machine.registers["$0"] == 4
    assert not [n for n in names if n.startswith(("st", "atom"))], "a wait that ends well stores nothing"


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("lanes", ["one", "first", "all"])
@pytest.mark.parametrize(("bits", "pair"), [(32, False), (64, False), (64, True)])
def test_registers_are_assigned_on_every_path(bits: int, pair: bool, lanes: str, ends: bool) -> None:
    """On an H200 a wait whose first look assigned a register never ended: ptxas had merged it with another one."""
    text = polling.fn(bits, "sys", lanes, True, pair, ends)
    assert not undefined(text)
    late = text.replace("mov.u64 %began, 0;", "")
    assert undefined(late) == ["sub.u64 %v, %now, %began"]


def test_more_than_expected_is_enough() -> None:
    world = World()
    world.memory[SIGNAL] = 9
    world.wait(4)
    assert world.polls == 2


@pytest.mark.parametrize("thread", [3, 32])
def test_one_thread_of_a_worker_polls(thread: int) -> None:
    world = World()
    machine = world.wait(4, thread=thread)
    assert world.polls == 1 and machine.log[0] == ("bar.warp.sync",)


def test_one_thread_of_each_warp_polls_where_warps_go_separate_ways() -> None:
    for thread, polls in ((0, 10), (3, 0), (32, 10)):
        world = World()
        world.at[10] = lambda world=world: world.memory.update({SIGNAL: 4})
        world.wait(4, thread=thread, returns=True)
        assert world.polls == polls + 1


@pytest.mark.parametrize("polls, pauses", [(EVERY, 0), (EVERY + 10, 10)])
def test_a_long_wait_pauses(polls: int, pauses: int) -> None:
    world = World(STUCK_NS=0)
    world.at[polls] = lambda: world.memory.update({SIGNAL: 4})
    machine = world.wait(4)
    assert [e for e in machine.log if e[0] == "nanosleep.u32"] == [("nanosleep.u32", 100)] * pauses


def test_all_lanes_poll_if_told_to() -> None:
    world = World()
    world.at[10] = lambda: world.memory.update({SIGNAL: 4})
    world.wait(4, lanes="all", thread=3)
    assert world.polls == 11


def test_one_thread_polls_for_others_that_look_at_words_of_their_own() -> None:
    world, own = World(), SIGNAL + 64
    world.memory[own] = 5
    world.at[10] = lambda: world.memory.update({SIGNAL: 4})
    text = polling.fn(32, "gpu", "first", True)
    for thread, polls in ((0, 10), (1, 0), (32, 0)):
        world.polls, world.memory[SIGNAL] = 0, 0
        special: Mapping[str, Any] = {"%tid.x": thread, "%ctaid.x": 7, "%globaltimer": world.look}
        machine = Machine(world.memory, special, world.loaded)
        machine.run(text, SIGNAL, 4, HEAP[ME], own)
        names = [e[0] for e in machine.log]
        assert world.polls == polls and machine.registers["$0"] == 5
        assert names[-4:] == [
            "bar.warp.sync", "barrier.cta.red.or.pred", "ld.acquire.gpu.global.s32", "fence.proxy.async.global"
        ]  # fmt: skip


def test_a_signal_that_nobody_gives() -> None:
    """All ranks have entered, so this takes 5000 ns: looks at 1000 (from which time counts), 2000, ..., 6000."""
    world = World()
    world.memory[SIGNAL] = 3
    machine = world.wait(4, ends=True)
    assert world.polls == 6 * EVERY
    assert world.report == Report(ME, RUN_NOW, 7, 0x1000, 4, 3, Reason.STUCK)
    assert world.poison == [1 + ME] * WORLD and world.memory[FLAG] == 1
    stores = [e for e in machine.log if e[0].startswith(("st", "atom"))]
    assert stores[0][0] == "atom.relaxed.sys.global.cas.b64", "first the claim"
    assert [e[0] for e in stores[1:5]] == ["st.global.u64"] * 4, "then the report"
    assert stores[5][:2] == ("atom.acq_rel.sys.global.cas.b64", HEAP[0] + 8 * POISON.value), "then the arbiter"
    assert [e[0] for e in stores[6:]] == ["st.release.sys.global.u64"] * WORLD + ["st.relaxed.sys.global.u64"]
    assert machine.log[-2:] == [("barrier.cta.red.or.pred",), ("nanosleep.u32", 1_000_000)]


def test_a_rank_that_never_enters() -> None:
    world = World(ENTER_NS=20_000)
    world.enter(2, RUN_NOW - 1)
    world.wait(4, ends=True)
    assert world.polls == 21 * EVERY
    progress = 8 * (PROGRESS.value + 2)
    expected, observed = 2 * RUN_NOW + 1, 2 * (RUN_NOW - 1) + 1
    assert world.report == Report(ME, RUN_NOW, 7, progress, expected, observed, Reason.NEVER_ENTERED)


def test_time_for_a_signal_counts_from_the_last_entry() -> None:
    world = World()
    world.enter(0, RUN_NOW - 1)
    world.at[10 * EVERY - 1] = lambda: world.enter(0)
    world.wait(4, ends=True)
    # The ninth look is the last that misses rank 0, the tenth is 1000 ns later: 5000 are over at the fourteenth.
    assert world.polls == 14 * EVERY
    assert world.report.reason == Reason.STUCK


@pytest.mark.parametrize("absent", [False, True])
def test_without_a_bound_a_wait_is_for_ever(absent: bool) -> None:
    world = World(STUCK_NS=0, ENTER_NS=0)
    if absent:
        world.enter(0, RUN_NOW - 1)
    world.at[100 * EVERY] = lambda: world.memory.update({SIGNAL: 4})
    world.wait(4)
    assert world.polls == 100 * EVERY + 1 and not any(world.poison)


def test_a_poisoned_lane() -> None:
    """The first look ends the worker, which tells its host and nobody else: who gave up does that."""
    world = World()
    world.memory[HEAP[ME] + 8 * POISON.value] = 3
    machine = world.wait(4, ends=True)
    assert world.polls == EVERY and world.poison == [0, 3, 0] and world.memory[FLAG] == 1
    assert world.memory[HEAP[ME] + 8 * WAITER.value] == 0
    assert ("ld.acquire.sys.global.u64", HEAP[ME] + 8 * POISON.value) in machine.log


@pytest.mark.parametrize("polls", [1, EVERY + 1])
def test_warps_of_their_own_meet_no_others(polls: int) -> None:
    world = World(STUCK_NS=0)
    world.at[polls] = lambda: world.memory.update({SIGNAL: 4})
    names = [e[0] for e in world.wait(4, returns=True).log]
    assert names[-3:] == ["bar.warp.sync", "ld.acquire.sys.global.s32", "fence.proxy.async.global"]
    assert "barrier.cta.red.or.pred" not in names


def test_warps_of_their_own_that_give_up_return_from_a_poisoned_lane() -> None:
    world = World()
    world.wait(4, returns=True)
    assert world.poison == [1 + ME] * WORLD and world.report.reason == Reason.STUCK


def test_warps_of_their_own_return_no_sooner_than_the_lane_is_poisoned() -> None:
    """Another worker of the rank reports already, and has not yet poisoned the lane."""
    world = World()
    poison, waiter = (HEAP[ME] + 8 * word.value for word in (POISON, WAITER))
    world.memory[waiter] = 2
    world.at[20 * EVERY] = lambda: world.memory.update({poison: 3})
    world.wait(4, returns=True)
    assert world.polls >= 20 * EVERY and world.memory[waiter] == 2


def test_another_worker_of_the_rank_was_faster() -> None:
    world = World()
    world.memory[HEAP[ME] + 8 * WAITER.value] = 3
    machine = world.wait(4, ends=True)
    assert not [e for e in machine.log if e[0].startswith("st")]


def test_another_rank_was_faster() -> None:
    """The name that the arbiter has goes to all."""
    world = World()
    world.memory[HEAP[0] + 8 * POISON.value] = 3
    world.wait(4, ends=True)
    assert world.poison == [3, 3, 3]


def test_a_thread_ends_with_the_others_of_its_worker() -> None:
    world = World()
    world.memory[SIGNAL] = 4
    machine = world.wait(4, ends=True, others=1)
    assert world.polls == 1 and not [e for e in machine.log if e[0].startswith("st")]
    world.wait(4, ends=True, others=1, thread=5)


def test_no_word_of_the_host() -> None:
    world = World(HOST=0)
    world.wait(4, ends=True)
    assert world.poison == [2, 2, 2] and world.memory[FLAG] == 0


def test_progress_has_64_bits() -> None:
    far = 2**40
    word = 8 * (PROGRESS.value + 2)
    world = World(word=HEAP[ME] + word, RUN=far, ENTER_NS=2000)
    for rank in range(WORLD):
        world.enter(rank, far if rank != 2 else far - 1)
    world.wait(2 * far + 1, bits=64, ends=True)
    assert world.report == Report(ME, far, 7, word, 2 * far + 1, 2 * far - 1, Reason.NEVER_ENTERED)


@pytest.mark.parametrize("near", [0, 1, 4])
def test_two_words_are_added_up(near: int) -> None:
    """What far ranks have counted, in the second, is the result."""
    world = World()
    world.memory |= {SIGNAL: near, SIGNAL + 8: 0}
    world.at[3] = lambda: world.memory.update({SIGNAL + 8: 4 - near})
    machine = world.wait(4, bits=64, pair=True)
    assert world.polls == (2 if near == 4 else 4)
    assert machine.registers["$0"] == 4 - near
    assert [e for e in machine.log if e[0].startswith("ld.acquire")] == [
        ("ld.acquire.sys.global.s64", SIGNAL), ("ld.acquire.sys.global.s64", SIGNAL + 8)
    ]  # fmt: skip


def test_two_words_that_are_too_few_together() -> None:
    world = World()
    world.memory |= {SIGNAL: 1, SIGNAL + 8: 2}
    world.wait(4, bits=64, pair=True, ends=True)
    assert world.report == Report(ME, RUN_NOW, 7, 0x1000, 4, 3, Reason.STUCK)


@pytest.mark.parametrize("far", [[0], [2], [0, 2]])
def test_ranks_of_other_nodes_are_not_poisoned_from_here(far: list[int]) -> None:
    """Nor asked who was first: of two nodes, each finds its own."""
    world = World()
    world.memory |= {TABLE + 8 * r: -(r + 1) for r in far}
    machine = world.wait(4, ends=True)
    assert world.poison == [0 if r in far else 1 + ME for r in range(WORLD)]
    (arbiter,) = (e for e in machine.log if e[0].startswith("atom.acq_rel"))
    assert arbiter[1] == HEAP[ME if 0 in far else 0] + 8 * POISON.value


# ---- ptxas takes it


@triton.jit
def _waits(control, signals, out, expected):  # type: ignore[no-untyped-def]
    at = control.to(tl.int64)
    one: tl.constexpr = polling(32, "sys", "one", True)
    wide: tl.constexpr = polling(64, "gpu", "one", False)
    each: tl.constexpr = polling(32, "sys", "all", False)
    a = tl.inline_asm_elementwise(one, "=r,l,r,l,~{memory}", [signals, expected, at], tl.int32, False, 1)
    b = tl.inline_asm_elementwise(
        wide, "=r,l,l,l,~{memory}", [control, expected.to(tl.int64), at], tl.int32, False, 1
    )
    cells = signals + tl.arange(0, 128)
    c = tl.inline_asm_elementwise(
        each, "=r,l,r,l,~{memory}", [cells, tl.full([128], 1, tl.int32), at], tl.int32, False, 1
    )
    tl.store(out + tl.arange(0, 128), a + b + c)


@pytest.mark.versions
@pytest.mark.parametrize("arch", [90, 100])
def test_it_assembles(arch: int) -> None:
    signature = {"control": "*i64", "signals": "*i32", "out": "*i32", "expected": "i32"}
    made = triton.compile(ASTSource(_waits, signature), target=GPUTarget("cuda", arch, 32), options={"num_warps": 4})
    assert made.asm["ptx"].count("barrier.cta.red.or.pred") == 3
