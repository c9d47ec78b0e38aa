"""The findings that README.md shows are what one gets."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tilelink as tk
from examples.mistakes.odd_rows import sums_of_tiles
from examples.mistakes.wrong_order import wrong_order
from tilelink.emulator import RaceError
from tilelink.errors import UnguardedReadError, UnsafeProgramError

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text()


@pytest.fixture(autouse=True)
def from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a reader of README.md types its commands: files are named from there."""
    monkeypatch.chdir(ROOT)


def test_readme_shows_the_read_of_one_row_too_many() -> None:
    assert f"```python\n{(EXAMPLES / 'mistakes' / 'odd_rows.py').read_text()}```" in README
    assert sums_of_tiles.check(world=2, M=64, K=32).verdict == "safe"
    report = sums_of_tiles.check(world=2, dtypes="bfloat16", M=66, K=32)
    (finding,) = report.findings
    assert f"```\n{finding}\n```" in README
    assert finding.ranks == (1, 0) and len(finding.lines) == len(finding.regions) == 2
    x = torch.ones(33, 32, dtype=torch.bfloat16)
    with pytest.raises(UnsafeProgramError) as e:
        tk.CpuWorld(2).run(lambda group: sums_of_tiles(x, group=group))
    assert str(finding) in str(e.value)


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


def test_readme_shows_the_order_that_can_not_be() -> None:
    (finding,) = wrong_order.check(world=2, M=64, K=64, N=32).findings
    for page in (README, (ROOT / "docs" / "check.md").read_text()):
        assert f"```\n{finding}\n```" in page


def test_readme_shows_the_read_without_a_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (EXAMPLES / "scaled_matmul.py").read_text()
    assert text.count("tk.wait(full[t.M], scales[t.M])") == 1
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "scaled_matmul.py").write_text(
        text.replace("tk.wait(full[t.M], scales[t.M])", "full[t.M], scales[t.M]")
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnguardedReadError) as error:
        runpy.run_path(str(tmp_path / "examples" / "scaled_matmul.py"))["scaled_matmul"].bind("push")
    assert f"```\nUnguardedReadError: {error.value}\n```" in README


@pytest.mark.parametrize("seed", range(3))
def test_readme_shows_the_inbox_that_the_next_call_overwrites(seed: int, example: Callable[[str], Any]) -> None:
    shifted = example("next_call").shifted
    assert shifted(calls=1, credit=False, seed=seed) == (True, False)
    assert shifted(calls=3, credit=True, seed=seed) == (True, False)
    with pytest.raises(RaceError) as error:
        shifted(calls=2, credit=False, seed=seed)
    assert seed or f"```\n{error.value}\n```" in README
    for race in error.value.races:
        read, written = sorted((race.first, race.second), key=lambda party: party.kind)
        assert (read.launch, written.launch) == ("shift call 1", "shift call 2")
        assert written.rank == (read.rank - 1) % 3


@pytest.mark.verify
def test_readme_counts_the_schedules_that_are_found(example: Callable[[str], Any]) -> None:
    shifted = example("next_call").shifted
    found = [shifted(calls=2, credit=False, seed=seed, collect=True) for seed in range(60)]
    wrong, racing = sum(not right for right, _ in found), sum(races for _, races in found)
    assert f"Of {len(found)} random schedules of two calls, {wrong} give a wrong" in README and racing == len(found)
