"""The summary at the end of a run: how many cases were right, the other cases, and ratios of figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.gpu.report import BEGUN, DIED, NOT_DONE, OUT_OF_TIME, RIGHT, WRONG, where_of
from bench.gpu.supervise import FINDINGS, NO_END
from bench.progress import say
from bench.records import json_lines

LISTED = 20
"""The most wrong cases that the summary lists; the file has all."""


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Returns the findings in a file, without the first lines of steps."""
    return [r for r in json_lines(path) if r["what"] != BEGUN] if path.exists() else []


def summed_up(path: Path, earlier: int = 0) -> int:
    """Prints a summary of a file, without its first `earlier` findings. Returns the exit code: 0 if everything is
    right, 1 if something is wrong, 3 if something died or ran out of time."""
    found = lines_of(path)[earlier:]
    counts = {verdict: sum(r["verdict"] == verdict for r in found) for verdict in (RIGHT, WRONG, OUT_OF_TIME, DIED)}
    for line in ratios(found):
        say(line)
    bad = [r for r in found if r["verdict"] in (WRONG, OUT_OF_TIME, DIED)]
    for r in bad[:LISTED]:
        say(f"{r['verdict']}: step {r['step']}, {r['what']}: {where_of(r)}: {str(r['error']).splitlines()[0]}")
    if len(bad) > LISTED:
        say(f"... and {len(bad) - LISTED} more")
    said = [f"{n} {verdict}" for verdict, n in counts.items()]
    said.append(f"{len(found) - sum(counts.values())} {NOT_DONE}")
    say(f"{', '.join(said)}; all of it is in {path}")
    return NO_END if counts[OUT_OF_TIME] or counts[DIED] else FINDINGS if counts[WRONG] else 0


def ratios(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a line for each kind of figure with a baseline: the ratios of its cases."""
    kinds: dict[tuple[str, str, str], list[float]] = {}
    for r in found:
        if r.get("speedup"):
            kinds.setdefault((r["what"], f"{r['op']} {r['schedule']}", r["baseline"]), []).append(r["speedup"])
    return [
        f"{what}, {name}: {min(us):.2f} to {max(us):.2f} of {baseline}, median {median(us):.2f} of {len(us)}"
        for (what, name, baseline), us in kinds.items()
    ]
