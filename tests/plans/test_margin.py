"""The margin by which fused forms are chosen, counted again on the published rows: what its page says of it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from tilelink.plans import MARGIN

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"\| [fJ] \| ([^|]+) \| ([^|]+) \| ([\d.]+)( x)? \|.*\| ([\d.]+)(?: x)? \| [^|]+\|$")


def pairs() -> list[tuple[float, float]]:
    """How many times as fast as unfused a fused row is, as published and as predicted unfitted."""
    fused, unfused, found = [], {}, []
    section = ""
    for line in (DOCS / "validation.md").read_text().splitlines():
        section = line if line.startswith("## ") else section
        if (match := ROW.match(line)) is None:
            continue
        row, kernel, published, speedup, unfitted = match.groups()
        if speedup:
            found.append((float(published), float(unfitted)))
        elif kernel == "NCCL":
            unfused[section, row] = float(published), float(unfitted)
        else:
            fused.append(((section, row), float(published), float(unfitted)))
    return found + [(unfused[key][0] / a, unfused[key][1] / b) for key, a, b in fused if key in unfused]


def gained(margin: float) -> float:
    """The geometric mean of what is gained where fused is chosen by this margin, and unfused elsewhere."""
    logs = [math.log(published) if predicted >= 1 + margin else 0.0 for published, predicted in pairs()]
    return math.exp(sum(logs) / len(logs))


def test_the_margin_is_the_best_of_those_that_were_tried() -> None:
    tried = {m: gained(m) for m in (0.0, 0.1, 0.15, 0.2, 0.25)}
    assert max(tried, key=lambda m: tried[m]) == MARGIN
    page = (DOCS / "performance-model.md").read_text()
    for times in tried.values():
        assert f"{times:.3f}" in page


@pytest.mark.parametrize(("margin", "chosen", "slower"), [(0.0, 36, 15), (MARGIN, 27, 8)])
def test_what_is_chosen_of_what_was_published(margin: float, chosen: int, slower: int) -> None:
    fused = [published for published, predicted in pairs() if predicted >= 1 + margin]
    assert (len(pairs()), len(fused), sum(p < 1 for p in fused)) == (38, chosen, slower)
    left_out = sorted(published for published, predicted in pairs() if predicted < 1 + margin and published > 1)
    assert [round(p, 2) for p in left_out] == ([1.03, 1.07] if margin else [])
