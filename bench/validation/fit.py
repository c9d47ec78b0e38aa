"""Fitting: few parameters of a source, to the rows of it that are for fitting; the others are not looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from bench.validation.models import Case, Parameters, predict, to_fit
from bench.validation.rows import Source

LINKS = (1.0, 0.4)
HOSTS = (1, 100)
STEPS = (1.3, 1.1, 1.03, 1.01)
BOUNDS = {
    "matmul": (0.5, 1.35),
    "library": (0.5, 1.35),
    "collective": (0.2, 1.15),
    "link": (0.1, 1.1),
    "fixed": (0.3, 50),
    "host": (1, 200),
}
"""Of each parameter, as shares of what the machine description says: what is physically thinkable. Rates above
the description's are those of other power limits."""


def cases(source: Source, judging: bool | None = None) -> Iterator[Case]:
    for row, judged in source.split():
        if judging is None or judged == judging:
            for p in row.published:
                yield Case(source, row, p)


def fit(model: str, source: Source) -> dict[str, float]:
    """All parameters of a source, the fitted ones set so that the squared logarithms of predicted / published are
    least over the rows for fitting."""
    start = to_fit(source)
    known = list(cases(source, judging=False))
    found = dict(start)
    fused = [c for c in known if c.published.form is not None]
    unfused = [c for c in known if c.published.form is None]
    chart = any(c.published.speedup for c in known)
    for names, theirs in (
        (("library", "collective"), unfused),
        (("matmul", "fixed", "host", "link"), fused),
    ):
        chosen = [n for n in source.fitted if n.split(":")[0] in (names if not chart else BOUNDS)]
        of = theirs or (known if chart else [])
        if chosen and of:
            found = _best(chosen, found, start, partial(_loss, model, of))
    return found


def _loss(model: str, of: list[Case], parameters: Parameters) -> float:
    return sum(math.log(predict(model, c, parameters) / c.published.value) ** 2 for c in of) / len(of)


def _best(
    names: list[str], found: dict[str, float], start: dict[str, float], loss: Callable[[Parameters], float]
) -> dict[str, float]:
    """A descent from the best of several beginnings, since what bounds a run changes with rates of links, and a floor
    is not felt below what it bounds."""
    links = [n for n in names if n.startswith("link:")]
    begins = [found | {n: start[n] * share for n in links} for share in (LINKS if links else (1.0,))]
    if "host" in names:
        begins = [b | {"host": start["host"] * times} for b in begins for times in HOSTS]
    return _descend(names, min(begins, key=loss), start, loss)


def _descend(
    names: list[str], found: dict[str, float], start: dict[str, float], loss: Callable[[Parameters], float]
) -> dict[str, float]:
    """Coordinate descent with ever smaller factors."""
    least = loss(found)
    for factor in STEPS:
        for _ in range(12):
            before = least
            for name in names:
                low, high = (b * start[name] for b in BOUNDS[name.split(":")[0]])
                for f in (factor, 1 / factor):
                    moved = {**found, name: min(high, max(low, found[name] * f))}
                    value = loss(moved)
                    if value < least:
                        least, found = value, moved
                        break
            if before - least < 1e-7:
                break
    return found
