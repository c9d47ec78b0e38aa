"""The command as a process: what goes where, who may leave, what is not imported; and its help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools.cli.command_lines import ROOT, Run
from tilelink.tools.cli import COMMANDS, main


def tilelink(command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A line of a shell in which `tilelink` is this package's command."""
    line = f'tilelink() {{ "{sys.executable}" -m tilelink "$@"; }}; set -o pipefail; {command}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment, timeout=60, **options)


@pytest.mark.verify  # a process whose input is bad is in every run
def test_process(user_file: Path) -> None:
    done = tilelink("tilelink show user.py:doubled --stage triton --json", cwd=user_file.parent)
    assert done.returncode == 0
    assert json.loads(done.stdout)["status"] == "ok"
    assert done.stderr == "a user's file may print\n"


def test_process_with_bad_input(user_file: Path) -> None:
    """Its exit code, and what goes where, also of a file of the user's."""
    done = tilelink("tilelink show user.py:tripled --json", cwd=user_file.parent)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["class"] == "UsageError"
    assert done.stderr == "a user's file may print\n"


def test_a_reader_may_leave() -> None:
    done = tilelink("tilelink show all_gather_matmul --stage events --shape M=4096 2>/dev/null | head -n 1")
    assert done.returncode == 0
    assert done.stdout.startswith("rank 0 worker 0 gather tile 12: ")  # the tiles before are the rank's own rows


@pytest.mark.verify
def test_a_reader_may_leave_before_anything_is_said() -> None:
    done = tilelink("tilelink show all_gather_matmul --stage events --shape M=4096 --json | true && tilelink -h | true")
    assert (done.returncode, done.stderr) == (0, "")


def test_torch_is_not_imported() -> None:
    """It takes seconds, and nothing that is shown needs it."""
    show = "import sys; from tilelink.tools.cli import main; main(['show', 'matmul', '--stage', 'triton'])"
    code = f"{show}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=[pytest.mark.verify] * (c in ("inspect", "plan", "explore"))) for c in COMMANDS]
)
def test_help_shows_an_example_that_works(run: Run, command: str) -> None:
    with pytest.raises(SystemExit) as exit:
        main([command, "-h"])
    assert exit.value.code == 0
    example = run.capsys.readouterr().out.split("example:")[1].replace("\\\n", " ").split()
    assert example[:2] == ["tilelink", command]
    assert run.text(*example[1:])[0] == 0
