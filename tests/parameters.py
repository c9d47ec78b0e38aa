"""Parameters of tests: some in every run, the rest in `make verify`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest


def some_of(seeds: int, first: int) -> pytest.MarkDecorator:
    """Gives a test `seeds`: the first ones, and in `make verify` those that are left."""
    rest = pytest.param(range(first, seeds), marks=pytest.mark.verify)
    return pytest.mark.parametrize("seeds", [range(first), rest], ids=lambda s: f"seeds {s[0]} to {s[-1]}")


def each_once(names: str, one: Sequence[Any], other: Sequence[Any], ids: Callable[[Any], Any] = str) -> Any:
    """Gives a test all pairs: those that have each value of both, in every run; the others in `make verify`."""
    most = max(len(one), len(other))
    diagonal = {(k % len(one), k % len(other)) for k in range(most)}
    pairs = [
        pytest.param(a, b, marks=() if (i, j) in diagonal else pytest.mark.verify)
        for i, a in enumerate(one)
        for j, b in enumerate(other)
    ]
    return pytest.mark.parametrize(tuple(names.split(", ")), pairs, ids=ids)
