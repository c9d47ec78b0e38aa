"""What tests of the command line share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.runtime.processes import fork_server
from tests.tools.cli.command_lines import USER_FILE, Run


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    (tmp_path / "sizes.py").write_text("ROWS = 16\n")
    sys.modules.pop("sizes", None)  # the one of another test, in another folder
    file = tmp_path / "user.py"
    file.write_text(USER_FILE)
    return file


@pytest.fixture(autouse=True)
def same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command puts on the path to run a user's file goes with the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture(scope="session", autouse=True)
def one_fork_server() -> None:
    """Commands that predict on all cores take their processes from the server of the other tests."""
    fork_server()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)
