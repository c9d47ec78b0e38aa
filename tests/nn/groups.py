"""Groups of all sizes, and what has to hold on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.ops.on_ranks import on_groups
from tests.runtime.processes import Pool

GROUPS = [(2,), (0, 1), (1, 2, 3), (0, 1, 2, 3)]


def assert_right(
    pool: Pool, groups: list[tuple[int, ...]], function: Callable[..., list[str]], *arguments: Any
) -> None:
    """`function(group, *arguments)` finds nothing wrong on any member of the groups."""
    for of_rank in pool.results(on_groups, groups, function, *arguments):
        assert [e for of_group in of_rank for e in of_group] == []
