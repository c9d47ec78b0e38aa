"""Random programs of the language, held against a reference that shares no code with TileLink.

A seed is a program (`generator.py`). It runs on CPU ranks; `reference.py` runs its file as plain Python on numpy; the
outputs have the same bits. Damaged programs have one thing wrong, such as a missing wait, another entry, or an output
that peers read. They are refused, with a line of the file, or they are right on every seed of the execution.
One program alone, with its source: python -m tests.differential.comparing SEED [small] [damaged]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.differential.comparing import outcome, said
from tests.differential.generator import Case, damaged, drawn
from tests.parameters import some_of


def held(draw: Callable[..., Case], seeds: range, folder: Path, small: bool) -> Counter[str]:
    """What became of the programs of these seeds. Fails for those that are wrong, and shows the first."""
    found: Counter[str] = Counter()
    wrong: list[tuple[Case, str]] = []
    for seed in seeds:
        case = draw(seed, small=small)
        o = outcome(case, folder, case.schedules[seed % len(case.schedules)], (0, 1) if case.damage else (0,))
        found[o.verdict] += 1
        if o.verdict == "wrong":
            wrong.append((case, o.why))
    if wrong:
        pytest.fail(f"wrong: {', '.join(map(said, (c for c, _ in wrong)))}\n\n{wrong[0][0].source}\n{wrong[0][1]}")
    return found


@some_of(140, first=5)
def test_programs(seeds: range, tmp_path: Path) -> None:
    found = held(drawn, seeds, tmp_path, small=True)
    assert found["right"] >= 0.64 * len(seeds), found  # what is refused tries nothing


@some_of(60, first=6)
def test_damaged_programs(seeds: range, tmp_path: Path) -> None:
    found = held(damaged, seeds, tmp_path, small=True)
    assert found["refused"] >= 0.2 * len(seeds), found


@pytest.mark.verify
@pytest.mark.parametrize("batch", range(35))
def test_more_programs(batch: int, tmp_path: Path) -> None:
    found = held(drawn, range(1000 + batch * 100, 1100 + batch * 100), tmp_path, small=False)
    assert found["right"] >= 70, found


@pytest.mark.verify
@pytest.mark.parametrize("batch", range(15))
def test_more_damaged_programs(batch: int, tmp_path: Path) -> None:
    found = held(damaged, range(1000 + batch * 100, 1100 + batch * 100), tmp_path, small=False)
    assert found["refused"] >= 20, found
