"""Seeds of a test: some in every run, the rest in `make verify`."""

from __future__ import annotations

import pytest


def some_of(seeds: int, first: int) -> pytest.MarkDecorator:
    """Gives a test `seeds`: the first ones, and in `make verify` those that are left."""
    rest = pytest.param(range(first, seeds), marks=pytest.mark.verify)
    return pytest.mark.parametrize("seeds", [range(first), rest], ids=lambda s: f"seeds {s[0]} to {s[-1]}")
