"""Bad commands and bad files of users, and what nobody foresaw: each is an error with its place, and no finding."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.tools.cli.command_lines import USER_FILE, Run
from tilelink.tools.cli import COMMANDS

UNSOUND_ORDER = USER_FILE.replace("world - 1 - step", "1 // 0").replace("32)", "32), order=backwards")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("", "required: COMMAND"),
        ("plot all_gather_matmul", "choose from 'list', 'check', 'show'"),
        ("show", "required: TARGET"),
        ("show two operators", "unrecognized arguments: operators"),
        ("show all_to_all", "there is no operator all_to_all; there is all_gather"),
        ("show all_gather_matmull", "did you mean all_gather_matmul?"),
        ("shaw all_gather_matmul", "did you mean show?"),
        ("list --world 2", "unrecognized arguments: --world 2; see tilelink list -h"),
        ("simulate all_gather --machin h800", "--machin h800; did you mean --machine?; see tilelink simulate -h"),
    ],
)
def test_bad_commands(run: Run, argv: str, message: str) -> None:
    error = run.error(*argv.split())
    assert error["class"] == "UsageError"
    assert message in error["message"]
    assert run(*argv.split())[1]["command"] == next((c for c in argv.split()[:1] if c in COMMANDS), None)


def test_a_file_of_the_name_is_suggested(run: Run, user_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(user_file.parent)
    assert run.error("show", "user")["message"].endswith("or say FILE.py:NAME; did you mean user.py?")


def test_without_a_command_all_are_listed(run: Run) -> None:
    code, out, err = run.text()
    assert (code, out) == (2, "")
    for name in COMMANDS:
        assert re.search(rf"^    {name} +[A-Z].*[a-z]$", err, re.MULTILINE), name
    example = next(line.split()[1:] for line in err.splitlines() if line.startswith("  tilelink "))
    assert run.text(*example)[0] == 0


@pytest.mark.parametrize(
    ("text", "kind", "message", "line"),
    [
        ("import os\nx = (1,\n", "SyntaxError", "was never closed", 2),
        ("import os\n\nimport there_is_no_such_module\n", "ModuleNotFoundError", "there_is_no_such_module", 3),
        ("from sizes import COLUMNS\n", "ImportError", "COLUMNS", 1),
        ("def f():\n    return 1 // 0\n\nf()\n", "ZeroDivisionError", "division", 2),
        ("import sys\nsys.exit('done')\n", "UsageError", "ends the process with 'done'", None),
        (
            "import triton\n\n\n@triton.jit\ndef doubled(x):\n    pass\n", "UsageError",
            "doubled is a Triton kernel, not a tile program; there is no program. Kernels of your own are", None,
        ),
        (
            USER_FILE.replace("doubled(", "doubles("), "UsageError",
            "called 'doubled'; there is doubles, TARGET is FILE.py:NAME; did you mean doubles?", None,
        ),
        ("doubled = 3\n", "UsageError", "doubled is no program but of type int; there is no program", None),
        (USER_FILE.replace("doubled(", "tripled("), "UsageError", "called 'doubled'; there is tripled", None),
        (USER_FILE.replace("x[t].load()", "z[t].load()"), "UndefinedNameError", "z is not defined", 9),
        (USER_FILE.replace("double[tk.tiles(x)](x, y)", "double[x](x, y)"), "DimensionError", "a role runs over", 13),
        (USER_FILE.replace("plain = ", ""), "ScheduleError", "has no schedule beside it", 11),
        (UNSOUND_ORDER, "ScheduleError", "fails on rank 0", 13),
    ],
)  # fmt: skip
def test_bad_files(run: Run, user_file: Path, text: str, kind: str, message: str, line: int | None) -> None:
    user_file.write_text(text)
    error = run.error("show", f"{user_file}:doubled")
    assert error["class"] == kind
    assert message in error["message"]
    assert (error["file"], error["line"]) == (str(user_file), line)


def test_the_line_may_stand_in_a_module_beside_the_file(run: Run, user_file: Path) -> None:
    (user_file.parent / "sizes.py").write_text("\nROWS = 1 // 0\n")
    error = run.error("show", f"{user_file}:doubled")
    assert (error["class"], error["line"]) == ("ZeroDivisionError", 2)
    assert error["file"] == str(user_file.parent / "sizes.py")


@pytest.mark.parametrize("target", ["user.py:double", "user.py:nothing", "other.py:x", ".:x"])
def test_bad_targets(run: Run, user_file: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.chdir(user_file.parent)
    error = run.error("show", target)
    assert error["class"] == "UsageError"
    assert error["file"] == str(Path(target.split(":")[0]).resolve())


def test_what_nobody_foresaw_is_no_finding(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(program: Any, sizes: Any) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("tilelink.analysis.unroll.unroll", broken)
    code, out, err = run.text("show", "matmul", "--stage", "events", "--json")
    assert code == 2
    assert json.loads(out)["error"]["class"] == "RuntimeError"
    assert "Traceback" in err
