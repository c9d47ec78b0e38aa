"""Fits a few parameters of a source to its rows for fitting. It never uses the other rows."""

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
"""The physically possible range of each parameter, as shares of its value in the machine description. Other power
limits can give rates above the description's."""


def cases(source: Source, judging: bool | None = None) -> Iterator[Case]:
    for row, judged in source.split():
        if judging is None or judged == judging:
            for p in row.published:
                yield Case(source, row, p)


def fit(model: str, source: Source) -> dict[str, float]:
    """Returns all parameters of a source. The fitted ones minimise the squared logarithms of predicted / published over
    the rows for fitting."""
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
    """Descends from the best of several starts: with other link rates another resource bounds a run, and a lower bound
    on the time has no effect until it is reached."""
    links = [n for n in names if n.startswith("link:")]
    begins = [found | {n: start[n] * share for n in links} for share in (LINKS if links else (1.0,))]
    if "host" in names:
        begins = [b | {"host": start["host"] * times} for b in begins for times in HOSTS]
    return _descend(names, min(begins, key=loss), start, loss)


def _descend(
    names: list[str], found: dict[str, float], start: dict[str, float], loss: Callable[[Parameters], float]
) -> dict[str, float]:
    """Descends along one coordinate after the other, with ever smaller factors."""
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
