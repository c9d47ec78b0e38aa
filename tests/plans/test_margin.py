"""The margin by which fused forms are chosen, and the interval around their times: counted again on the page that holds
them to published rows."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from bench.validation.decisions import Decision, counted, gained
from tilelink.analysis.simulate import FUSED, JUDGED, UNFUSED
from tilelink.plans import MARGIN

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "validation.md").read_text()
DECISION = re.compile(r"\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([\d.]+) x \| ([\d.]+) x \| ([^|]+) \| (yes|no) \|$", re.M)
ROW = re.compile(r"\| [fJ] \| [^|]+ \| ([^|]+) \| ([\d.]+)( x)? \|.*\| ([\d.]+)(?: x)? \| [^|]+\|$", re.M)


def decisions() -> list[Decision]:
    """The rows of the table of what `tilelink plan` decides."""
    made = [
        (Decision(source, row, implementation, float(published), float(predicted), form), fused)
        for source, row, implementation, published, predicted, form, fused in DECISION.findall(PAGE)
    ]
    assert all(d.fused() == (fused == "yes") for d, fused in made)
    return [d for d, _ in made]


def took(unfused: bool) -> list[float]:
    """How many times as long as predicted, with nothing fitted, published rows took."""
    found = []
    for implementation, published, speedup, predicted in ROW.findall(PAGE):
        if (implementation == "NCCL") == unfused:
            ratio = float(published) / float(predicted)
            found.append(1 / ratio if speedup else ratio)
    return found


def test_intervals_are_what_their_comment_says() -> None:
    fused, unfused = took(False), took(True)
    inside = [t for t in fused if 1 + FUSED.least <= t <= 1 + FUSED.most]
    faster, slower = ([t for t in fused if t < 1 + FUSED.least], [t for t in fused if t > 1 + FUSED.most])
    assert (len(fused), len(inside), len(faster), len(slower)) == (41, 19, 9, 13)
    assert round(1 - min(faster), 2) == 0.12 and round(max(slower) - 1, 2) == 0.71
    rows = [int(n.replace(",", "")) for n in re.findall(r"^\| [fJ] \| [^|]*\bM=([\d,]+)", PAGE, re.M)]
    assert min(rows) == JUDGED
    assert len(unfused) == 26 and all(1 + UNFUSED.least <= t <= 1 + UNFUSED.most for t in unfused)


def test_the_margin_is_among_the_best_of_those_that_were_tried() -> None:
    """It was chosen when schedules copied through registers; the page has the gains of all as they are now."""
    tried = {m: gained(decisions(), m) for m in (0.0, 0.1, 0.15, 0.2, 0.25)}
    assert tried[MARGIN] > 0.995 * max(tried.values())
    page = (DOCS / "performance-model.md").read_text()
    for times in tried.values():
        assert f"{times:.3f}" in page


@pytest.mark.parametrize(("margin", "fused", "slower", "missed"), [(0.0, 37, 16, 0), (MARGIN, 28, 9, 2)])
def test_what_is_decided_of_what_was_published(margin: float, fused: int, slower: int, missed: int) -> None:
    made = decisions()
    assert (len(made), *counted(made, margin)) == (38, fused, slower, missed)
    best = math.exp(sum(max(0.0, math.log(d.published)) for d in made) / len(made))
    assert f"taking the faster of both is {best:.3f}." in PAGE and f"{best:.3f}" in (
        DOCS / "performance-model.md"
    ).read_text()
