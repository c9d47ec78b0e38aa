"""Command lines in this process, and the file of a user whom they serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilelink.errors import Site
from tilelink.tools.cli import main

ROOT = Path(__file__).parents[3]
SIZES = {"M": 512, "K": 512, "N": 512}

USER_FILE = """\
import triton.language as tl
import tilelink as tk
from sizes import ROWS

print("a user's file may print")

@tk.tile
def double(t, x, y):
    y[t].store(x[t].load() * 2)

@tk.program
def doubled(x: tk.Sharded("A", "B"), y: tk.Sharded("A", "B")):
    double[tk.tiles(x)](x, y)

backwards = tk.order(lambda step, rank, world: world - 1 - step)
plain = tk.Schedule(double=tk.SMs(tile=(ROWS, 32)))
"""


class Run:
    """A command line in this process. Called, it returns the exit code and what --json printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *argv: str) -> tuple[int, dict[str, Any]]:
        code, out, _ = self.text(*argv, "--json")
        found = json.loads(out)
        assert found["schema"] == 1
        assert found["status"] == {0: "ok", 1: "finding", 2: "error"}[code]
        return code, found

    def text(self, *argv: str) -> tuple[int, str, str]:
        code = main(argv)
        return code, *self.capsys.readouterr()

    def error(self, *argv: str) -> dict[str, Any]:
        """The error of bad input. People are told the same, on stderr, and nothing on stdout."""
        code, found = self(*argv)
        error: dict[str, Any] = found["error"]
        assert code == 2
        assert set(error) == {"class", "message", "file", "line"}
        code, out, err = self.text(*argv)
        assert (code, out) == (2, "")
        assert f"{error['class']}: {error['message']}" in err
        assert "Traceback" not in err
        if error["line"]:
            assert f"{Site(error['file'], error['line'])}: " in err
        return error
