"""What became of the mutants, counted, kept in a file, and as a table for the page of verification."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.verification.mutants.job import Job
from tests.verification.mutants.tools import TOOLS

FILE = Path(__file__).parent / "record.json"
EQUIVALENT, MISSED = "no mistake", "missed"
Counts = dict[str, dict[str, dict[str, int]]]


def summary(jobs: Iterable[Job], results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts by level and kind: of all mutants there are, of those that were given to the tools, by the first tool that
    found them; and, one by one, those that none found, with the reason why that is no mistake, if there is one."""
    answers = {r["key"]: r for r in results}
    counts: Counts = {}
    survivors = []
    for job in jobs:
        row = counts.setdefault(job.level, {}).setdefault(job.mutant.kind, dict.fromkeys(("all", "tried"), 0))
        row["all"] += 1
        answer = answers.get(job.key)
        if answer is None:
            continue
        outcome = answer["tool"] or (EQUIVALENT if answer["why"] else MISSED)
        row["tried"] += 1
        row[outcome] = row.get(outcome, 0) + 1
        if not answer["tool"]:
            survivors.append({k: answer[k] for k in ("level", "subject", "kind", "line", "what", "why")})
    return {"counts": counts, "survivors": survivors}


def kept() -> dict[str, Any]:
    """The record that the page shows."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def keep(record: Mapping[str, Any]) -> None:
    FILE.write_text(json.dumps(record, indent=1) + "\n")


def table(record: Mapping[str, Any]) -> str:
    """Markdown: a row for each kind of each level, then why survivors are no mistakes, then what was missed."""
    heads = ["mutants of", "", "total", "tried", *(f"by {t}" for t in TOOLS), EQUIVALENT, MISSED]
    lines = [" | ".join(heads), "|".join(["---"] * len(heads))]
    total = dict[str, int]()
    for level, kinds in record["counts"].items():
        for n, (kind, row) in enumerate(sorted(kinds.items())):
            lines.append(" | ".join([f"{level}s" * (n == 0), kind, *_numbers(row)]))
            total = {k: total.get(k, 0) + row.get(k, 0) for k in {*total, *row}}
    lines.append(" | ".join(["all", "", *_numbers(total)]))
    made = "\n".join(f"| {line} |" if " | " in line else f"|{line}|" for line in lines)
    reasons = dict[str, int]()
    for s in record["survivors"]:
        if s["why"]:
            reasons[s["why"]] = reasons.get(s["why"], 0) + 1
    why = "\n".join(
        textwrap.fill(f"- {n}: {reason}.", 100, subsequent_indent="  ", break_on_hyphens=False)
        for reason, n in sorted(reasons.items(), key=lambda i: -i[1])
    )
    missed = [s for s in record["survivors"] if not s["why"]]
    rest = "\n".join(f"- {s['subject']}, {s['level']}, {s['kind']}: `{s['what']}`" for s in missed)
    return f"{made}\n\n{why}\n\nMissed:\n\n{rest or '- none.'}"


def _numbers(row: Mapping[str, int]) -> list[str]:
    return [str(row.get(k, 0)) for k in ("all", "tried", *TOOLS, EQUIVALENT, MISSED)]
