"""The command `python -m bench.validation [--fit]`: writes docs/validation.md.

With --fit, the command fits the parameters anew first. Without it, the command takes the parameters of the last fit.
"""

from __future__ import annotations

import argparse
import tomllib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from bench import progress
from bench.validation import experts, page
from bench.validation.averages import averages
from bench.validation.decisions import decisions
from bench.validation.fit import fit
from bench.validation.models import to_fit
from bench.validation.results import MODELS, Outcome, errors, outcome
from bench.validation.rows import SOURCES

HERE = Path(__file__).parent
FITTED, NOTES = HERE / "fitted.toml", HERE / "notes.md"
PAGE = HERE.parent.parent / "docs" / "validation.md"

Fits = dict[str, dict[str, dict[str, float]]]


def fit_source(number: int) -> dict[str, dict[str, float]]:
    """Fits the parameters of a source; returns them by model."""
    source = SOURCES[number]
    found = {}
    for model in MODELS:
        parameters = fit(model, source)
        found[model] = {n: parameters[n] for n in source.fitted}
    progress.say(f"fitted: {source.name}")
    return found


def predict_source(number: int, fits: Fits) -> Outcome:
    source = SOURCES[number]
    made = replace(
        outcome(source, {m: to_fit(source) | fits[source.name][m] for m in MODELS}), decisions=decisions(source)
    )
    judged = [r for r in made.results if r.fused and r.judged]
    progress.say(f"predicted: {source.name}; judged, mean and worst: {errors(judged, MODELS[0])}")
    return made


def read() -> Fits:
    """Returns the parameters of the last fit."""
    return tomllib.loads(FITTED.read_text())


def write(fits: Fits) -> None:
    lines = ["# Fitted parameters by source and model, written by `python -m bench.validation --fit`."]
    for source, models in fits.items():
        for model, parameters in models.items():
            lines += ["", f'["{source}".{model}]', *(f'"{n}" = {v!r}' for n, v in parameters.items())]
    FITTED.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.validation", description=__doc__)
    parser.add_argument("--fit", action="store_true", help="fit the parameters anew (half an hour)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    args = parser.parse_args()
    numbers = range(len(SOURCES))
    with ProcessPoolExecutor(args.jobs, get_context("spawn"), progress.begin, (progress.began(),)) as pool:
        if args.fit:
            order = sorted(numbers, key=lambda k: -sum(r.m * r.n for r in SOURCES[k].rows))
            found = dict(zip(order, pool.map(fit_source, order), strict=True))
            write({SOURCES[k].name: found[k] for k in numbers})
        fits = read()
        outcomes = list(pool.map(predict_source, numbers, [fits] * len(numbers)))
    page.write(outcomes, averages(), list(experts.tables()), NOTES, PAGE)
    progress.say(f"written: {PAGE}")


