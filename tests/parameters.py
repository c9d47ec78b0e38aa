"""Parameters of tests: some in every run, the rest in `make verify`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings


def some_of(seeds: int, first: int) -> pytest.MarkDecorator:
    """Gives a test `seeds`: the first ones, and in `make verify` those that are left."""
    rest = pytest.param(range(first, seeds), marks=pytest.mark.verify)
    return pytest.mark.parametrize("seeds", [range(first), rest], ids=lambda s: f"seeds {s[0]} to {s[-1]}")


def first_of(values: Iterable[Any], many: int = 1) -> list[Any]:
    """Values of one argument, marked: the first ones, in every run; the others in `make verify`."""
    return [pytest.param(v, marks=() if k < many else pytest.mark.verify) for k, v in enumerate(values)]


def first_cases(cases: Iterable[Sequence[Any]], many: int = 1) -> list[Any]:
    """Cases of a test, marked as the values of `first_of` are."""
    return [pytest.param(*case, marks=() if k < many else pytest.mark.verify) for k, case in enumerate(cases)]


def seldom(values: Iterable[Any], dear: Callable[[Any], bool]) -> list[Any]:
    """Values of one argument, marked: `make verify` alone has those that are dear."""
    return [pytest.param(v, marks=pytest.mark.verify if dear(v) else ()) for v in values]


def rarely(cases: Iterable[Any], dear: Callable[..., bool]) -> list[Any]:
    """Cases of several arguments, marked: as they are already, and `make verify` alone has those that are dear, too."""
    made = (case if isinstance(case, type(pytest.param())) else pytest.param(*case) for case in cases)
    return [c._replace(marks=[*c.marks, pytest.mark.verify]) if dear(*c.values) else c for c in made]


def random_tries(some: int, many: int, *strategies: Any) -> Callable[[Callable[..., None]], Any]:
    """Gives a test values that Hypothesis draws: `some` tries in every run, `many` in `make verify`."""

    def decorate(test: Callable[..., None]) -> Any:
        def run(tries: int) -> None:
            settings(max_examples=tries, deadline=None)(given(*strategies)(test))()

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        every = [some, pytest.param(many, marks=pytest.mark.verify)]
        return pytest.mark.parametrize("tries", every)(run)

    return decorate


def each_once(
    names: str,
    one: Sequence[Any],
    other: Sequence[Any],
    ids: Callable[[Any], Any] = str,
    dear: Callable[..., bool] = lambda *_: False,
) -> Any:
    """Gives a test all pairs: those that have each value of both and are not dear, in every run; the others in `make
    verify`."""
    most = max(len(one), len(other))
    diagonal = {(k % len(one), k % len(other)) for k in range(most)}
    pairs = [
        pytest.param(a, b, marks=() if (i, j) in diagonal else pytest.mark.verify)
        for i, a in enumerate(one)
        for j, b in enumerate(other)
    ]
    return pytest.mark.parametrize(tuple(names.split(", ")), rarely(pairs, dear), ids=ids)


def covering(cases: Iterable[Sequence[Any]], cheap: Callable[..., bool] = lambda *case: True) -> list[Any]:
    """Cases of a test, marked: a few that have each value of each argument, in every run; the others in `make verify`,
    with all that are not `cheap`.

    Next comes always the case with the most values that no case before it has; of several, the one whose values were
    seen least often; of those, the first. Values are one if they are written alike."""
    every = [tuple(case) for case in cases]
    may = {k for k, case in enumerate(every) if cheap(*case)}
    seen = Counter[tuple[int, str]]()
    of = {k: [(n, repr(value)) for n, value in enumerate(case)] for k, case in enumerate(every)}
    taken = set[int]()

    def rank(k: int) -> tuple[int, int, int]:
        return sum(value in seen for value in of[k]), sum(seen[value] for value in of[k]), k

    while any(value not in seen for k in may for value in of[k]):
        best = min(may - taken, key=rank)
        taken.add(best)
        seen.update(of[best])
    return [pytest.param(*case, marks=() if k in taken else pytest.mark.verify) for k, case in enumerate(every)]
