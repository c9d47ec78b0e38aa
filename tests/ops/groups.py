"""Functions on the members of groups, and what has to hold there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import getfile
from pathlib import Path
from typing import Any

from tests.ops.on_ranks import on_groups, raised
from tests.runtime.processes import Pool

GROUPS = [(2,), (0, 1), (1, 2, 3), (0, 1, 2, 3)]
"""Of all sizes."""


def assert_right(
    pool: Pool, groups: Sequence[tuple[int, ...]], function: Callable[..., list[str]], *arguments: Any
) -> None:
    """`function(group, *arguments)` finds nothing wrong on any member of the groups."""
    for of_rank in pool.results(on_groups, groups, function, *arguments):
        assert [e for of_group in of_rank for e in of_group] == []


def on_two(pool: Pool, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The results of `function(group, *arguments)` on the ranks 0 and 1, which are a group."""
    return [found for (found,) in pool.results(on_groups, [(0, 1)], function, *arguments)[:2]]


def bad_sites(pool: Pool, bad: Callable[..., Any], kind: str, text: str) -> list[Any]:
    """Returns the sites of the errors that `bad(group)` raises on the ranks 0 and 1. Each error has to be of this kind,
    with this text, in the file of `bad`; a good call has to be right after it."""
    sites = []
    for found, message, site in on_two(pool, raised, bad):
        assert (found, text in message) == (kind, True), message
        assert site.file.endswith(Path(getfile(bad)).name)
        sites.append(site)
    return sites
