"""Parallel styles against those of torch and against modules that are whole on every rank."""

from __future__ import annotations

import pytest

from tests.nn import on_ranks
from tests.runtime.processes import Pool
from tests.ops.on_ranks import on_groups

GROUPS = [(2,), (0, 1), (1, 2, 3), (0, 1, 2, 3)]


def assert_right(pool: Pool, groups: list[tuple[int, ...]], function: object, *arguments: object) -> None:
    for of_rank in pool.results(on_groups, groups, function, *arguments):
        assert [e for of_group in of_rank for e in of_group] == []


@pytest.mark.parametrize("plan", on_ranks.PLANS)
def test_block_is_that_of_one_rank(pool: Pool, plan: str) -> None:
    assert_right(pool, GROUPS, on_ranks.block_wrong, plan, "torch")


def test_layouts_are_those_of_torch(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], on_ranks.layouts_wrong, True)


@pytest.mark.verify
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("group", GROUPS, ids=len)
def test_layouts_are_those_of_torch_on_groups_of_all_sizes(pool: Pool, group: tuple[int, ...], bias: bool) -> None:
    assert_right(pool, [group], on_ranks.layouts_wrong, bias)
