"""What commands report of a user's file names it from the working directory, as the user does."""

from __future__ import annotations

import json
import re

import pytest

from tests.tools.cli.command_lines import ROOT, Run

HERE = ROOT / "examples" / "mistakes"
ROWS = "odd_rows.py:sums_of_tiles", "--world", "2", "--shape", "M=66,K=32"


@pytest.fixture(autouse=True)
def beside_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)


@pytest.mark.parametrize("command", ["check", "explore"])
def test_reports(command: str, run: Run) -> None:
    code, found = run(command, *ROWS)
    (finding,) = found["findings"]
    assert code == 1 and all(re.match(r"odd_rows.py:\d+: ", line) for line in finding["lines"])
    assert str(HERE) not in json.dumps(finding)
    assert str(HERE) not in "".join(run.text(command, *ROWS)[1:])


def test_errors(run: Run) -> None:
    """For programs the key `file` is the whole path."""
    _, _, said = run.text("check", *ROWS, "--schedule", "gather.at=nobody")
    assert re.match(r"odd_rows.py:\d+: ScheduleError: ", said) and str(HERE) not in said
    nothing = "show", "odd_rows.py:nothing"
    assert run.text(*nothing)[2].startswith("odd_rows.py: UsageError: ")
    assert run.error(*nothing)["file"] == str(HERE / "odd_rows.py")
