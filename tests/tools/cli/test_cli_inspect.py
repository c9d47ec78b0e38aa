"""`tilelink inspect`: what compiled kernels hold, for people and for programs."""

from __future__ import annotations

import re

import pytest

from tests.tools.cli.command_lines import Run
from tilelink.inspect.dialects import KINDS

SMALL = "--world 2 --shape M=512,N=256,K=512 --schedule push,gather.tile=64x128,matmul.tile=64x64x64"


def test_inspect(run: Run) -> None:
    code, found = run("inspect", "all_gather_matmul", *SMALL.split())
    assert (code, found["command"], found["target"], found["label"]) == (0, "inspect", "sm_90", "compiled only")
    assert found["world"] == 2 and found["defaults"] == []
    (kernel,) = found["kernels"]
    assert kernel["name"] == "all_gather_matmul" and kernel["registers"] > 32 and kernel["spill_bytes"] == 0
    gather, matmul = kernel["roles"]
    assert (gather["name"], matmul["name"], matmul["stages"]) == ("gather", "matmul", 3)
    for part in ("before", "step", "after"):
        assert set(matmul[part]["kinds"]) == set(KINDS) and set(matmul[part]) == {"total", "kinds", "widths"}
    assert matmul["step"]["kinds"]["matrix"] > 0 and matmul["step"]["kinds"]["tma_load"] == 2
    assert gather["step"]["kinds"]["matrix"] == 0 < gather["step"]["kinds"]["tma_store"]
    assert "1 system_fence" in gather["order"] and matmul["exposed_us"] > 0


@pytest.mark.verify
def test_inspect_for_people(run: Run) -> None:
    code, text, said = run.text("inspect", "all_gather_matmul", *SMALL.split(), "--target", "gfx942")
    assert code == 0
    assert "all_gather_matmul (compiled only): " in text and "exposed us a tile (estimate)" in text
    assert text.splitlines()[1].split() == ["instructions:", "before+step+after", "gather", "matmul"]
    assert "--target gfx942 --world 2" in said and "nothing was run; exposed times are estimates" in said


def test_tables_of_many_roles_are_as_wide_as_a_screen(run: Run) -> None:
    code, text, said = run.text("inspect", "all_gather_matmul_backward", "--target", "sm_90+warps")
    assert code == 0 and "stages: of the schedule" in said
    assert max(map(len, text.splitlines())) <= 120
    heads = [line for line in text.splitlines() if line.startswith("instructions:")]
    assert len(heads) > 1 and len({name for head in heads for name in head.split()[2:]}) == 8, "a column for each role"
    rows = [re.split(r"  +", line)[1:] for line in text.splitlines() if line.startswith(KINDS)]
    assert rows and all(set(cells) != {"0"} for cells in rows), "kinds that no role has are left out"


@pytest.mark.parametrize(
    ("flags", "kind", "message"),
    [
        ("--target sm_91", "UsageError", "invalid choice: 'sm_91'"),
        ("--target cpu", "UsageError", "invalid choice: 'cpu'"),
        ("--schedule shove", "ScheduleError", "no schedule shove"),
        ("--schedule matmul.tile=1024x1024x64 --shape M=4096,N=1024", "TileSizeError", "registers"),
    ],
)
def test_bad_input(run: Run, flags: str, kind: str, message: str) -> None:
    error = run.error("inspect", "all_gather_matmul", *flags.split())
    assert error["class"] == kind and message in error["message"]
