"""The page of predicted beside published, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.validation.averages import PUBLISHED
from bench.validation.models import EVENTS, SIMPLE
from bench.validation.results import UNFITTED, Outcome, Result, errors, fitted, order_kept

HEAD = """\
# Predicted beside published

Written by `python -m bench.validation`; [performance-model.md](performance-model.md) says what the model is.
Nothing here was measured by us. *Events* is our model, *simple* is max(operations / rate, bytes / bandwidth); both
have the same parameters, fitted to the same rows. *Unfitted* is our model on the machine as described, with nothing
fitted: what `tilelink simulate` says. Within a source rows alternate in the order listed: the first is for
fitting (f), the second for judging (J), and so on; a row for judging is looked at only here. Numbers in ms, or, where
marked x, how many times faster than unfused. Errors are predicted / published - 1.

Parameters: `matmul`, TFLOP/s of the fused kernel, and `library`, of the library's; `link`, GB/s that an implementation
gets out of a link in one direction; `collective`, GB/s of the library's; `fixed`, microseconds that a run takes beside
all else; `host`, microseconds in which the host enqueues it, and before which it can't end.

"""


def write(outcomes: Sequence[Outcome], means: Mapping[str, float], notes: Path, path: Path) -> None:
    """Writes the page. `means`: predicted averages by name; `notes`: the text that says where the model is wrong."""
    text = HEAD + _summary(outcomes) + notes.read_text() + "".join(map(_source, outcomes))
    path.write_text(f"{text}{_averages(means)}".rstrip() + "\n")


def _averages(means: Mapping[str, float]) -> str:
    about = "arXiv 2503.20313: mean speed-ups over six shapes of MLPs, M=8192. Nothing is fitted."
    lines = ["## TileLink, 8x H800", "", about, ""]
    lines += ["| | published | events | error |", "|---|---|---|---|"]
    lines += [f"| {n} | {PUBLISHED[n]:.2f} x | {v:.2f} x | {v / PUBLISHED[n] - 1:+.1%} |" for n, v in means.items()]
    return "\n".join(lines) + "\n"


def _summary(outcomes: Sequence[Outcome]) -> str:
    every = [r for o in outcomes for r in o.results]
    kinds = [
        ("dense fused rows for judging", [r for r in every if r.fused and r.judged]),
        ("dense fused rows for fitting", [r for r in every if r.fused and not r.judged]),
        ("unfused rows for judging", [r for r in every if not r.fused and r.judged]),
        ("unfused rows for fitting", [r for r in every if not r.fused and not r.judged]),
    ]
    lines = ["| | numbers | events, mean | worst | simple, mean | worst | unfitted, mean | worst |", "|---" * 8 + "|"]
    for name, results in kinds:
        lines.append(f"| {name} | {len(results)} | {_errors(results)} |")
    for o in outcomes:
        judged = [r for r in o.results if r.fused and r.judged]
        lines.append(f"| of them, judged: {o.source.name} | {len(judged)} | {_errors(judged)} |")
    right, total = map(sum, zip(*(order_kept(o.results, EVENTS) for o in outcomes), strict=True))
    simple, _ = map(sum, zip(*(order_kept(o.results, SIMPLE) for o in outcomes), strict=True))
    order = f"Which implementation of a row is faster: {right} of {total} pairs right; the simple model, {simple}.\n\n"
    return "\n".join(lines) + "\n\n" + order


def _errors(results: Sequence[Result]) -> str:
    return " | ".join(f"{e:.1%}" for model in (EVENTS, SIMPLE, UNFITTED) for e in errors(results, model))


def _source(o: Outcome) -> str:
    lines = [f"## {o.source.name}", "", f"{o.source.where}. {o.source.note}".strip(), ""]
    for model in (EVENTS, SIMPLE):
        lines.append(f"Fitted, {model}: {fitted(o.parameters[model], o.source)}.")
    lines += ["", "| | row | implementation | published | events | error | simple | error | unfitted | error |"]
    lines += ["|---" * 10 + "|"]
    for r in o.results:
        p, row = r.case.published, r.case.row
        unit = " x" if p.speedup else ""
        cells = [f"{r.predicted[m]:.3f}{unit} | {r.off[m]:+.1%}" for m in (EVENTS, SIMPLE, UNFITTED)]
        about = f"{row.operator}, {row.shape} | {p.implementation}"
        lines.append(f"| {'J' if r.judged else 'f'} | {about} | {p.value:.3f}{unit} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n"
