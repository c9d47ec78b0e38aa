"""Another kernel that holds SMs: it and ours wait for each other where one rank launches it first and another last."""

from __future__ import annotations

import pytest

from tilelink.errors import WorldError
from tilelink.kernels.all_gather_matmul import all_gather_matmul, push
from tilelink.tools.cli import main
from tilelink.tools.explore import Lowered, explore

SMALL = push.changed(gather={"tile": (16, 16), "count": 2, "own": "copied"}, matmul={"tile": (16, 16, 16)})
SMS, BLOCKS = 6, 3
"""Two workers gather, and four at most multiply: three blocks have no room beside those that wait."""


def subject(reserved: int, beside: int = BLOCKS) -> Lowered:
    return Lowered(
        all_gather_matmul, SMALL, world=2, sms=SMS, beside=beside, reserved=reserved, M=64, N=32, K=16
    )


def test_a_collective_beside_a_grid_that_leaves_it_no_room() -> None:
    found = explore(subject(0), range(2))
    assert [f.kind for f in found.findings] == ["deadlock"]
    what = found.findings[0].what
    assert "rank 0 another kernel" in what and "rank 1 worker 0 of another kernel: never started, because no" in what
    assert "role matmul, tile" in what and "of role gather" in what
    assert found.findings[0].remedy == "leave 3 SMs to another kernel, on every rank: reserved=3"


def test_room_for_it_is_enough() -> None:
    found = explore(subject(BLOCKS), range(4))
    assert not found.findings and found.distinct > 1


def test_without_another_kernel_all_workers_have_room() -> None:
    assert not explore(subject(0, beside=0), range(2)).findings


def test_all_sms_may_not_be_reserved() -> None:
    with pytest.raises(WorldError, match="reserved=6: of 6 SMs, one at least is ours"):
        subject(SMS)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    shape, schedule = ["--shape", "M=64,N=32,K=16"], ["--schedule", "push,gather.own=copied,gather.count=2"]
    flags = ["--world", "2", *shape, *schedule, "--sms", "6", "--seeds", "1", "--beside", "3"]
    assert main(["explore", "all_gather_matmul", *flags]) != 0
    assert "leave 3 SMs to another kernel" in capsys.readouterr().out
    assert main(["explore", "all_gather_matmul", *flags, "--reserved", "3"]) == 0
    assert main(["explore", "all_gather_matmul", *flags, "--backend", "oracle"]) == 2
    assert "--beside and --reserved are for the backend lowered" in capsys.readouterr().err
