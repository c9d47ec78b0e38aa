"""The findings that README.md shows are what one gets."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tilelink as tk
from tests.verification.odd_rows import sums_of_tiles
from tilelink.runtime.cpu import RaceError

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "examples"
README = (HERE.parent.parent / "README.md").read_text()


def test_readme_shows_the_read_of_one_row_too_many() -> None:
    assert f"```python\n{(HERE / 'odd_rows.py').read_text()}```" in README
    assert sums_of_tiles.check(world=2, M=64, K=32).verdict == "safe"
    report = sums_of_tiles.check(world=2, dtypes="bfloat16", M=66, K=32)
    (finding,) = report.findings
    assert f"```\n{finding}\n```".replace(f"{HERE}/", "") in README
    assert finding.ranks == (1, 0) and len(finding.lines) == len(finding.regions) == 2


def test_only_an_odd_number_of_rows_is_found() -> None:
    for world, M in ((1, 31), (1, 30), (2, 20), (2, 30), (3, 36), (3, 96), (4, 100), (4, 104)):
        report = sums_of_tiles.check(world=world, M=M, K=32)
        odd = world > 1 and M // world % 2 == 1
        assert [f.kind for f in report.findings] == (["unguarded read"] if odd else []), (world, M, report)


def test_where_it_is_safe_it_is_right() -> None:
    x = torch.arange(40 * 32, dtype=torch.float32).reshape(2, 20, 32) % 7
    tiles = [part for rows in x for part in (rows[:16], rows[16:])]
    expected = torch.cat([part.sum(0).expand(len(part), -1) for part in tiles])
    for out in tk.CpuWorld(2).run(lambda group: sums_of_tiles(x[group.rank], group=group)):
        assert torch.equal(out, expected)


@pytest.mark.parametrize("seed", range(3))
def test_readme_shows_the_inbox_that_the_next_call_overwrites(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    shifted = __import__("next_call").shifted
    shifted(calls=1, credit=False, seed=seed)
    shifted(calls=3, credit=True, seed=seed)
    with pytest.raises(RaceError) as error:
        shifted(calls=2, credit=False, seed=seed)
    assert seed or f"```\n{error.value}\n```".replace(f"{EXAMPLES}/", "") in README
    for race in error.value.races:
        read, written = sorted((race.first, race.second), key=lambda party: party.kind)
        assert (read.launch, written.launch) == ("shift call 1", "shift call 2")
        assert written.rank == (read.rank - 1) % 3
