"""Writes the page that compares predicted with published times, as Markdown."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.table import head
from bench.validation.averages import PUBLISHED
from bench.validation.decisions import counted, gained
from bench.validation.experts import Table
from bench.validation.models import EVENTS, SIMPLE
from bench.validation.results import UNFITTED, Outcome, Result, errors, fitted, order_kept, slower
from tilelink.analysis.simulate import FUSED, OUTSIDE

MODELS = UNFITTED, EVENTS, SIMPLE

HEAD = """\
# Predicted times compared with published times

This page is for engineers who use predictions of TileLink. After reading it you know their errors,
and where the model is wrong. We measured none of these times.

"""

ABOUT = """\
`python -m bench.validation` writes this page. [performance-model.md](performance-model.md)
describes the model. The tables have three predictions:

- *Unfitted* is our model on the machine as described.
- *Events* is our model with fitted parameters.
- *Simple* is max(operations / rate, bytes / bandwidth) with the same parameters, fitted, too.

Parameters are fitted to rows of the same papers. *Events* and *simple* therefore say how good the
models could be if a machine's rates were measured. Within a source, rows alternate in the listed
order: the first is for fitting (f), the second for judging (J), and so on. Fits never use a row for
judging. Numbers are in ms; numbers marked x are speed-ups over the unfused form. Errors are
predicted / published - 1.

| parameter | unit | meaning |
|---|---|---|
| `matmul` | TFLOP/s | rate of the fused kernel |
| `library` | TFLOP/s | rate of the library's matmul |
| `link` | GB/s | rate that an implementation gets from a link in one direction |
| `collective` | GB/s | rate of the library's collective |
| `fixed` | us | time that a run takes in addition to its work |
| `host` | us | time in which the host enqueues the run; the run can't end earlier |

"""


def write(
    outcomes: Sequence[Outcome], means: Mapping[str, float], tables: Sequence[Table], notes: Path, path: Path
) -> None:
    """Writes the page. `means`: predicted averages by name; `tables`: layers of experts; `notes`: the text that says
    where the model is wrong."""
    text = HEAD + _unfitted(outcomes) + ABOUT + _summary(outcomes) + _decided(outcomes) + notes.read_text()
    text += "".join(map(_source, outcomes)) + _averages(means) + "\n" + experts(tables)
    path.write_text(text.rstrip() + "\n")


def _averages(means: Mapping[str, float]) -> str:
    about = "arXiv 2503.20313: mean speed-ups over six shapes of MLPs, M=8192. Nothing is fitted."
    lines = ["## TileLink, 8x H800", "", about, ""]
    lines += head("", "published", "events", "error")
    lines += [f"| {n} | {PUBLISHED[n]:.2f} x | {v:.2f} x | {v / PUBLISHED[n] - 1:+.1%} |" for n, v in means.items()]
    return "\n".join(lines) + "\n"


EXPERTS = """\
## Layers of experts

Nothing is fitted in the tables of this section: every number is predicted from the machine as
described. Times are in us. Errors are predicted / published - 1.

"""


def experts(tables: Sequence[Table]) -> str:
    """Returns the section on layers of experts: the errors of each prediction, and the rows of each source."""
    lines = head("source", "rows", "prediction", "mean", "worst")
    for table in tables:
        for part in dict.fromkeys(row.part for row in table.rows):
            rows = [row for row in table.rows if row.part == part]
            for name in rows[0].predicted:
                off = [abs(row.off[name]) for row in rows]
                lines.append(
                    f"| {table.name}: {part} | {len(rows)} | {name} | {sum(off) / len(off):.0%} | {max(off):.0%} |"
                )
    return EXPERTS + "\n".join(lines) + "\n" + "".join(map(_table, tables))


def _table(table: Table) -> str:
    names = list(table.rows[0].predicted)
    lines = ["", f"### {table.name}", "", f"{table.where}.", table.note, ""]
    lines += head("row", "published", *(column for n in names for column in (n, "error")))
    for row in table.rows:
        cells = [f"{row.predicted[n]:.0f} | {row.off[n]:+.0%}" for n in names]
        lines.append(f"| {row.part}, {row.row} | {row.published:.0f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _unfitted(outcomes: Sequence[Outcome]) -> str:
    """Returns the errors of the commands' own predictions, which a reader needs first."""
    fused, unfused = ([r for o in outcomes for r in o.results if r.fused == which] for which in (True, False))
    judged = [r for r in fused if r.judged]
    fast = sum(slower(r) > 1 for r in fused)
    inside = sum(1 + FUSED.least <= slower(r) <= 1 + FUSED.most for r in fused)
    right, total = map(sum, zip(*(order_kept(o.results, UNFITTED) for o in outcomes), strict=True))
    (all_off, worst), (judged_off, _) = errors(fused, UNFITTED), errors(judged, UNFITTED)
    unfused_off, unfused_worst = errors(unfused, UNFITTED)
    return (
        "**`tilelink simulate` and `tilelink plan` use nothing fitted.** Their predictions of fused rows are\n"
        f"{100 * judged_off:.0f} % off for the rows for judging, and {100 * all_off:.0f} % for all {len(fused)} rows.\n"
        f"The largest error is {100 * worst:.0f} %. {fast} of {len(fused)} took longer than predicted.\n"
        f"Predictions name the faster of two implementations of a row in {right} of {total} pairs.\n"
        f"Unfused rows are {100 * unfused_off:.0f} % off, with a largest error of {100 * unfused_worst:.0f} %.\n"
        f"On 29 further rows from public threads, {OUTSIDE}.\n"
        f"Both commands therefore print an interval, {FUSED}, around a fused time. The interval is rough:\n"
        f"{inside} of the {len(fused)} rows here lie in it.\n\n"
    )


def _decided(outcomes: Sequence[Outcome]) -> str:
    """Returns the section that compares decisions of `tilelink plan` with published times."""
    made = [d for o in outcomes for d in o.decisions]
    if not made:
        return ""
    fused, wrong, missed = counted(made)
    best = math.exp(sum(max(0.0, math.log(d.published)) for d in made) / len(made))
    lines = [
        "## What `tilelink plan` decides",
        "",
        f"{len(made)} published fused rows have an unfused row. `tilelink plan` would fuse {fused} of them, in the\n"
        f"library's own schedules. {wrong} of these were slower than unfused, and {missed} of the others were faster.\n"
        f"Its decisions are {gained(made):.3f} times as fast as unfused (geometric mean);\n"
        f"taking the faster of both is {best:.3f}.",
        "",
        *head("source", "row", "implementation", "published", "predicted", "form", "fused"),
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
    lines = head("", "numbers", *(column for m in MODELS for column in (f"{m}, mean", "worst")))
    for name, results in kinds:
        lines.append(f"| {name} | {len(results)} | {_errors(results)} |")
    for o in outcomes:
        judged = [r for r in o.results if r.fused and r.judged]
        lines.append(f"| judged: {o.source.name} | {len(judged)} | {_errors(judged)} |")
    right, total = map(sum, zip(*(order_kept(o.results, EVENTS) for o in outcomes), strict=True))
    simple, _ = map(sum, zip(*(order_kept(o.results, SIMPLE) for o in outcomes), strict=True))
    order = f"*Events* puts {right} of {total} pairs of implementations in the right order, *simple* {simple}."
    return "\n".join(lines) + f"\n\n{order}\n\n"


def _errors(results: Sequence[Result]) -> str:
    return " | ".join(f"{e:.1%}" for model in MODELS for e in errors(results, model))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_on_hyphens=False)


def _source(o: Outcome) -> str:
    lines = [f"## {o.source.name}", "", _wrapped(f"{o.source.where}. {o.source.note}"), ""]
    for model in (EVENTS, SIMPLE):
        lines.append(_wrapped(f"Fitted, {model}: {fitted(o.parameters[model], o.source)}."))
    models = EVENTS, SIMPLE, UNFITTED
    lines += ["", *head("", "row", "implementation", "published", *(column for m in models for column in (m, "error")))]
    for r in o.results:
        p, row = r.case.published, r.case.row
        unit = " x" if p.speedup else ""
        cells = [f"{r.predicted[m]:.3f}{unit} | {r.off[m]:+.1%}" for m in models]
        about = f"{row.operator}, {row.shape} | {p.implementation}"
        lines.append(f"| {'J' if r.judged else 'f'} | {about} | {p.value:.3f}{unit} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n"
