"""Ranks on the CPU that do not agree, or of which one fails: all are told why, and the world can be used again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.kernels import gather_gemm
from tests.kernels.gather_gemm import small_world
from tests.parameters import each_once
from tests.runtime import small_worlds
from tests.runtime.small_worlds import K, N, check_usable, gathered, line_of, whole
from tilelink.emulator import RaceError
from tilelink.errors import ArgumentError, RankMismatchError, StuckError, shown
from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.group import Group

CALL = whole((4, 4), schedule="push")
DISAGREE: dict[str, tuple[Sequence[Callable[[Group], Any]], Sequence[Callable[[Group], Any]], str]] = {
    "parts": ([CALL.on], [replace(CALL, parts=(3, 4)).on], "sizes"),
    "schedules": ([CALL.on], [replace(CALL, schedule="pull").on], "schedule"),
    "tiles": ([whole((4, 4)).on], [CALL.on], "schedule"),
    "dtypes": ([CALL.on], [replace(CALL, dtype=torch.float16).on], "dtypes"),
    "bias": ([CALL.on], [replace(CALL, bias=True).on], "dtypes"),
    "slots": ([replace(CALL, slot=0).on], [replace(CALL, slot=1).on], "slot"),
    "programs": ([CALL.on], [gathered], "program"),
    "order": ([CALL.on, gathered], [gathered, CALL.on], "program"),
    "second call": ([gathered, CALL.on], [gathered, gathered], "program"),
}


@pytest.mark.parametrize("case", DISAGREE)
def test_ranks_have_to_agree(case: str) -> None:
    mine, theirs, what = DISAGREE[case]
    world = small_world(2)
    with pytest.raises(RankMismatchError) as e:
        world.run(lambda group: [call(group) for call in (mine, theirs)[group.rank]])
    number = 1 if case == "second call" else 0
    assert re.search(
        rf"(gather_gemm|small_worlds).py:\d+: call {number} of this group: "
        rf"rank (0 has {what} .*, rank 1|1 has {what} .*, rank 0) ",
        str(e.value),
    )
    assert e.value.site is not None and e.value.site.file in (gather_gemm.__file__, small_worlds.__file__)
    check_usable(world)


def test_values_in_which_ranks_differ_are_said() -> None:
    def rank(group: Group) -> Any:
        return all_gather(torch.ones(4 + group.rank, K), group=group)  # differs

    with pytest.raises(RankMismatchError) as e:
        small_world(2).run(rank)
    assert f"{shown(__file__)}:{line_of(__file__, 'differs')}: call 0 of this group: rank " in str(e.value)
    said = [f"rank {r} gives a shard of {4 + r} along M, rank {1 - r} one of {5 - r}; " for r in range(2)]
    assert any(text in str(e.value) for text in said)
    assert "if shards differ in length, pass their lengths on every rank, such as parts={'M': (8, 7)}" in str(e.value)
    assert "'K'" not in str(e.value), "what they have in common is left out"


def test_a_rank_that_calls_once_too_often_waits_in_vain() -> None:
    world = small_world(2)
    with pytest.raises(StuckError, match=r"rank 1 worker \d+ of all_gather_matmul run 1: role matmul") as e:
        world.run(lambda group: [CALL.on(group) for _ in range(1 + group.rank)])
    assert "2 calls were made by rank 1; rank 0 made 1: the ranks of a group make the same calls" in str(e.value)
    check_usable(world)


@each_once("raising, calls_before", [0, 2], [0, 1])
def test_a_rank_that_raises_ends_the_run_of_all(raising: int, calls_before: int) -> None:
    error = LookupError("of a user")

    def rank(group: Group) -> None:
        for _ in range(calls_before):
            call.on(group)
        if group.rank == raising:
            raise error
        call.on(group)
        group.synchronize()
        pytest.fail("the other ranks wait for the one that raised")

    world, call = small_world(3), whole((4, 4, 4), schedule="push")
    with pytest.raises(LookupError) as e:
        world.run(rank)
    assert e.value is error
    check_usable(world)


def test_one_rank_makes_a_bad_call() -> None:
    """Its own output is untouched; the ranks that called before it are not left waiting."""
    world = small_world(2)
    own = torch.full((8, N), -7.0)

    def rank(group: Group) -> None:
        if group.rank == 0:
            CALL.on(group)
            group.synchronize()
        all_gather_matmul(CALL.x[1], CALL.weight[1].half()[:-1], own, group=group)  # one bad call

    with pytest.raises(ArgumentError, match="weight has shape") as e:
        world.run(rank)
    assert e.value.site is not None
    assert (e.value.site.file, e.value.site.line) == (__file__, line_of(__file__, "one bad call"))
    assert (own == -7).all()
    check_usable(world)


def test_ranks_that_write_one_output() -> None:
    world, out = small_world(2), torch.empty(8, K)
    with pytest.raises(RaceError, match=r"out\[4:8, 0:16\] of rank 0: two accesses that nothing orders"):
        world.run(lambda group: all_gather(torch.ones(4, K), out, group=group))
    check_usable(world)
