"""What both models say of every published number, and how far off they are."""

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
"""Our model on the machine as it is described."""


@dataclass(frozen=True)
class Result:
    """A published number beside what the models predict; `off`: predicted / published - 1, by model."""

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
    """A source with its parameters by model, its results in the order listed, and what `tilelink plan` decides."""

    source: Source
    parameters: dict[str, dict[str, float]]
    results: tuple[Result, ...]
    decisions: tuple[Decision, ...] = ()


def outcome(source: Source, parameters: dict[str, dict[str, float]]) -> Outcome:
    """Predicts all rows of a source; decides nothing."""
    judged = {id(row): judging for row, judging in source.split()}
    results = []
    for case in cases(source):
        predicted = {m: predict(m, case, parameters[m]) for m in MODELS}
        predicted[UNFITTED] = predict(EVENTS, case, defaults(source))
        results.append(Result(case, judged[id(case.row)], predicted))
    return Outcome(source, parameters, tuple(results))


def slower(result: Result) -> float:
    """How many times as long as predicted, unfitted, a run took: of a speed-up, one over the other."""
    off = result.off[UNFITTED] + 1
    return off if result.case.published.speedup else 1 / off


def errors(results: Iterable[Result], model: str) -> tuple[float, float]:
    """Mean and worst of |off|; nothing for no results."""
    off = [abs(r.off[model]) for r in results]
    return (fmean(off), max(off)) if off else (0.0, 0.0)


def order_kept(results: Sequence[Result], model: str) -> tuple[int, int]:
    """Of all pairs of implementations of one row, how many the model ranks as published, and how many there are.
    Pairs within 2 % of each other are left out: charts are not read more closely."""
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
    """The parameters that were fitted, for a person."""
    return ", ".join(f"{n} {parameters[n]:.4g}" for n in source.fitted)
