"""docs/performance.md has the tables that the records of a GPU give."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.gpu import page

PAGE = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()


def test_the_tables_are_those_of_the_records(capsys: pytest.CaptureFixture[str]) -> None:
    assert page.main() == 0
    tables = capsys.readouterr().out.strip().split("\n\n")
    assert len(tables) == 3 and all(table in PAGE for table in tables)
