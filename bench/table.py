"""Results as a text table, with notes that say what each figure is; the head of a table in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from textwrap import fill
from typing import Any

from bench.records import LOGICAL, Record

NOTES = (
    "[1] Not a time: memory operations on the longest chain of the execution. The overlap is real; the assumption that "
    "every operation costs one, whatever its size and target, is not. Publishing inputs, entering and leaving runs "
    "count; the timelines leave them out.",
    "[2] Logical makespan of the unfused form, divided by this form's. Not a speed-up.",
    "[3] Wall time of Triton's interpreter, which executes all ranks in one process. Not performance.",
)
RING = "ring"
OF_RING = (
    "[4] Its partial sums travel in float32. In all other forms, also the unfused one, they travel in the dtype of the "
    "results. No figure here counts bytes."
)


def table(made: Sequence[Record]) -> str:
    """Returns the records of a run of the harness as tables. Two records, one a figure, make a row."""
    sections = []
    for _, group in groupby(made, key=lambda r: (r["op"], r["dtype"], r["world"])):
        sections.append(_section(list(group)))
    repeats = max((r["repeats"] for r in made), default=0)
    spread = (
        f"Figures: median (least – most) of {repeats} runs, each with another seed of the scheduler. The first is "
        "searched for races, too, and drawn."
    )
    notes = [spread, *NOTES, *([OF_RING] if any(r["schedule"] == RING for r in made) else [])]
    return "\n".join([*sections, *map(wrapped, notes), ""])


def _section(group: list[Record]) -> str:
    first = group[0]
    rows = [["shape", "schedule", "relative RMS", "", "logical makespan [1]", "logical ratio [2]", "interpreter [3]"]]
    work = [["shape", "schedule", "what the workers of a rank do"]]
    wrong = []
    shown = None
    for logical, wall in zip(*(iter(group),) * 2, strict=True):
        shape = f"{logical['layer'] or ''} {logical['shape']}".strip()
        schedule = f"{RING} [4]" if logical["schedule"] == RING else logical["schedule"]
        name = [shape if shape != shown else "", schedule]
        shown = shape
        rows.append([*name, *_cells(logical, wall)])
        work.append([*name, logical["work"]])
        if not logical["ok"]:
            why = logical["error"] or f"the relative RMS is over the limit of {logical['limit']:.1e}; no figures"
            wrong.append(f"WRONG: {shape}, {logical['schedule']}: {why}\n")
    head = f"{first['op']}: {first['world']} ranks on the CPU, {first['dtype']}, {first['workers']} workers a rank\n"
    baseline = next((r["baseline"] for r in group if r["baseline"]), "")
    return "\n".join([head, aligned(rows), *wrong, aligned(work), f"{wrapped(baseline)}\n"])


def _cells(logical: Record, wall: Record) -> list[str]:
    assert logical["what"] == LOGICAL
    rms = "none" if logical["rel_rms"] is None else f"{logical['rel_rms']:.2e}"
    if not logical["ok"]:
        return [rms, "WRONG", "", "", ""]
    figure: dict[str, Any] = logical["logical"]
    seconds = [wall[key] / 1e6 for key in ("median_us", "min_us", "max_us")]
    ratio = "1" if logical["baseline"] is None else "" if figure["ratio"] is None else f"{figure['ratio']:.2f}"
    return [
        rms, "right", f"{figure['median']:g} ({figure['min']} – {figure['max']})", ratio,
        "{:.1f} ({:.1f} – {:.1f}) s".format(*seconds),
    ]  # fmt: skip


def head(*names: str) -> list[str]:
    """Returns the first two lines of a table in Markdown: the names of its columns, and the rule."""
    return ["|" + "".join(f" {n} |" if n else " |" for n in names), "|---" * len(names) + "|"]


def wrapped(note: str) -> str:
    """Returns a note, wrapped to lines."""
    return fill(note, 118, subsequent_indent="    " if note.startswith("[") else "", break_long_words=False)


def aligned(rows: list[list[str]]) -> str:
    """Returns rows as text: columns two spaces apart, and a rule under the first row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows = [rows[0], ["-" * w for w in widths], *rows[1:]]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "".join(f"{line}\n" for line in lines)
