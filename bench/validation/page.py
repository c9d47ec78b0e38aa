"""The page of predicted beside published, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.validation.averages import PUBLISHED
from bench.validation.decisions import counted, gained
from bench.validation.models import EVENTS, SIMPLE
from bench.validation.results import UNFITTED, Outcome, Result, errors, fitted, order_kept, slower
from tilelink.analysis.simulate import FUSED, OUTSIDE

HEAD = """\
# Predicted beside published

For whoever wants to know how far a prediction is from the truth. Nothing here was measured by us.

"""

ABOUT = """\
Written by `python -m bench.validation`; [performance-model.md](performance-model.md) says what the model is.
*Unfitted* is our model on the machine as described, with nothing fitted. *Events* is our model and *simple* is
max(operations / rate, bytes / bandwidth), both with the same parameters, fitted to rows of the same papers: they say
how good the model could be if a machine's rates were measured. Within a source rows alternate in the order listed: the
first is for fitting (f), the second for judging (J), and so on; a row for judging is looked at only here. Numbers in
ms, or, where marked x, how many times faster than unfused. Errors are predicted / published - 1.

Parameters: `matmul`, TFLOP/s of the fused kernel, and `library`, of the library's; `link`, GB/s that an implementation
gets out of a link in one direction; `collective`, GB/s of the library's; `fixed`, microseconds that a run takes beside
all else; `host`, microseconds in which the host enqueues it, and before which it can't end.

"""


def write(outcomes: Sequence[Outcome], means: Mapping[str, float], notes: Path, path: Path) -> None:
    """Writes the page. `means`: predicted averages by name; `notes`: the text that says where the model is wrong."""
    text = HEAD + _unfitted(outcomes) + ABOUT + _summary(outcomes) + _decided(outcomes) + notes.read_text()
    text += "".join(map(_source, outcomes)) + _averages(means)
    path.write_text(text.rstrip() + "\n")


def _averages(means: Mapping[str, float]) -> str:
    about = "arXiv 2503.20313: mean speed-ups over six shapes of MLPs, M=8192. Nothing is fitted."
    lines = ["## TileLink, 8x H800", "", about, ""]
    lines += ["| | published | events | error |", "|---|---|---|---|"]
    lines += [f"| {n} | {PUBLISHED[n]:.2f} x | {v:.2f} x | {v / PUBLISHED[n] - 1:+.1%} |" for n, v in means.items()]
    return "\n".join(lines) + "\n"


def _unfitted(outcomes: Sequence[Outcome]) -> str:
    """What the commands' own predictions are off by: the first thing to know."""
    fused, unfused = ([r for o in outcomes for r in o.results if r.fused == which] for which in (True, False))
    judged = [r for r in fused if r.judged]
    fast = sum(slower(r) > 1 for r in fused)
    inside = sum(1 + FUSED.least <= slower(r) <= 1 + FUSED.most for r in fused)
    right, total = map(sum, zip(*(order_kept(o.results, UNFITTED) for o in outcomes), strict=True))
    (all_off, worst), (judged_off, _) = errors(fused, UNFITTED), errors(judged, UNFITTED)
    unfused_off, unfused_worst = errors(unfused, UNFITTED)
    return (
        "**`tilelink simulate` and `tilelink plan` use nothing fitted.** Of fused rows their predictions are "
        f"{judged_off:.0%} off where rows are for judging, {all_off:.0%} over all {len(fused)}, {worst:.0%} at worst; "
        f"{fast} of {len(fused)} took longer than predicted. Of two implementations of a row they say rightly which is "
        f"faster in {right} of {total} pairs. Unfused rows are {unfused_off:.0%} off, {unfused_worst:.0%} at worst.\n"
        f"On 29 further rows from public threads, {OUTSIDE}.\n"
        f"So both commands print an interval, {FUSED}, around a fused time. It is rough: {inside} of the {len(fused)} "
        "rows here lie in it.\n\n"
    )


def _decided(outcomes: Sequence[Outcome]) -> str:
    """What `tilelink plan` decides, beside what was published."""
    made = [d for o in outcomes for d in o.decisions]
    if not made:
        return ""
    fused, wrong, missed = counted(made)
    best = math.exp(sum(max(0.0, math.log(d.published)) for d in made) / len(made))
    lines = [
        "## What `tilelink plan` decides",
        "",
        f"Of {len(made)} published fused rows with an unfused one it would fuse {fused}, in the library's own "
        f"schedules. {wrong} of these were slower than unfused, and {missed} of the others were faster. Taking what it "
        f"decides is {gained(made):.3f} times as fast as unfused, the geometric mean; taking the faster of both is "
        f"{best:.3f}.",
        "",
        "| source | row | implementation | published | predicted | form | fused |",
        "|---" * 7 + "|",
    ]
    for d in made:
        cells = [d.source, d.row, d.implementation, f"{d.published:.3f} x", f"{d.predicted:.3f} x", d.form]
        lines.append(f"| {' | '.join(cells)} | {'yes' if d.fused() else 'no'} |")
    return "\n".join(lines) + "\n\n"


def _summary(outcomes: Sequence[Outcome]) -> str:
    every = [r for o in outcomes for r in o.results]
    kinds = [
        ("dense fused rows for judging", [r for r in every if r.fused and r.judged]),
        ("dense fused rows for fitting", [r for r in every if r.fused and not r.judged]),
        ("unfused rows for judging", [r for r in every if not r.fused and r.judged]),
        ("unfused rows for fitting", [r for r in every if not r.fused and not r.judged]),
    ]
    lines = ["| | numbers | unfitted, mean | worst | events, mean | worst | simple, mean | worst |", "|---" * 8 + "|"]
    for name, results in kinds:
        lines.append(f"| {name} | {len(results)} | {_errors(results)} |")
    for o in outcomes:
        judged = [r for r in o.results if r.fused and r.judged]
        lines.append(f"| of them, judged: {o.source.name} | {len(judged)} | {_errors(judged)} |")
    right, total = map(sum, zip(*(order_kept(o.results, EVENTS) for o in outcomes), strict=True))
    simple, _ = map(sum, zip(*(order_kept(o.results, SIMPLE) for o in outcomes), strict=True))
    order = f"Fitted, {right} of {total} pairs of implementations are in the right order; the simple model, {simple}."
    return "\n".join(lines) + f"\n\n{order}\n\n"


def _errors(results: Sequence[Result]) -> str:
    return " | ".join(f"{e:.1%}" for model in (UNFITTED, EVENTS, SIMPLE) for e in errors(results, model))


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
