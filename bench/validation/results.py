"""The predictions of both models for every published number, and their errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from bench.validation.decisions import Decision
from bench.validation.fit import cases
from bench.validation.models import EVENTS, SIMPLE, Case, Parameters, defaults, predict
from bench.validation.rows import Source

MODELS = (EVENTS, SIMPLE)
UNFITTED = "unfitted"
"""Our model on the machine as described."""


@dataclass(frozen=True)
class Result:
    """A published number with the models' predictions; `off`: predicted / published - 1, by model."""

    case: Case
    judged: bool
    predicted: dict[str, float]

    @property
    def off(self) -> dict[str, float]:
        return {m: p / self.case.published.value - 1 for m, p in self.predicted.items()}

    @property
    def fused(self) -> bool:
        return self.case.published.form is not None


@dataclass(frozen=True)
class Outcome:
    """A source with its parameters by model, its results in the listed order, and decisions of `tilelink plan`."""

    source: Source
    parameters: dict[str, dict[str, float]]
    results: tuple[Result, ...]
    decisions: tuple[Decision, ...] = ()


def outcome(source: Source, parameters: dict[str, dict[str, float]]) -> Outcome:
    """Returns the predictions for all rows of a source, without decisions."""
    judged = {id(row): judging for row, judging in source.split()}
    results = []
    for case in cases(source):
        predicted = {m: predict(m, case, parameters[m]) for m in MODELS}
        predicted[UNFITTED] = predict(EVENTS, case, defaults(source))
        results.append(Result(case, judged[id(case.row)], predicted))
    return Outcome(source, parameters, tuple(results))


def slower(result: Result) -> float:
    """Returns how many times as long as predicted (unfitted) a run took. A row may be a time or a speed-up."""
    off = result.off[UNFITTED] + 1
    return off if result.case.published.speedup else 1 / off


def errors(results: Iterable[Result], model: str) -> tuple[float, float]:
    """Returns the mean and the largest |off|, or 0 for no results."""
    off = [abs(r.off[model]) for r in results]
    return (fmean(off), max(off)) if off else (0.0, 0.0)


def order_kept(results: Sequence[Result], model: str) -> tuple[int, int]:
    """Returns how many pairs of implementations of one row the model ranks as published, and how many pairs there are.
    Pairs within 2 % of each other are left out: charts can't be read more exactly."""
    right = total = 0
    for k, a in enumerate(results):
        for b in results[k + 1 :]:
            same_row = a.case.row is b.case.row and a.case.published.speedup == b.case.published.speedup
            if not same_row or abs(a.case.published.value / b.case.published.value - 1) < 0.02:
                continue
            total += 1
            right += (a.case.published.value < b.case.published.value) == (a.predicted[model] < b.predicted[model])
    return right, total


def fitted(parameters: Parameters, source: Source) -> str:
    """Returns the fitted parameters as text."""
    return ", ".join(f"{n} {parameters[n]:.4g}" for n in source.fitted)
