"""What flags may say: shapes and schedules, read and written again, and what is said about bad ones."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

import tilelink as tk
from tests.parameters import first_of
from tests.tools.cli.command_lines import SIZES, Run
from tilelink.kernels import tiles
from tilelink.kernels.all_gather_matmul import all_gather_matmul, pull, push
from tilelink.programs.schedule_text import schedule_text
from tilelink.tools.cli.program import read_schedule, read_shape, shape_text

PUSH, PULL = (s.changed(gather={"tile": (128, 512)}) for s in (push, pull))
"""As they are fitted to the sizes."""


def test_shape_grammar() -> None:
    shape = read_shape("M=512, N=7168,K=5+0+3")
    assert shape == {"M": 512, "N": 7168, "K": (5, 0, 3)}
    assert read_shape(shape_text(shape)) == shape


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (None, PUSH),
        ("pull", PULL),
        ("matmul.tile=64x64x32", PUSH.changed(matmul={"tile": (64, 64, 32)})),
        ("pull,gather.count=4, gather.tile=128xnone", pull.changed(gather={"count": 4, "tile": (128, None)})),
        ("gather.count=none", PUSH.changed(gather={"count": None})),
        ("matmul.order=ring", PUSH.changed(matmul={"order": tk.ring})),
        ("matmul.group=4,gather.order=own_rank_first", PUSH.changed(
            matmul={"order": tk.grouped(4)}, gather={"order": tk.own_rank_first},
        )),
        ("gather.at=reader,gather.at=home,matmul.at=none", PUSH),
        ("matmul.stages=4,matmul.warps=4", PUSH.changed(matmul={"stages": 4, "warps": 4})),
    ],
)  # fmt: skip
def test_schedule_grammar(text: str | None, wanted: tk.Schedule) -> None:
    schedule = read_schedule(all_gather_matmul, text, 4, dict(SIZES))
    assert schedule == wanted
    again = schedule_text(all_gather_matmul, schedule, text)
    assert read_schedule(all_gather_matmul, again, 4, dict(SIZES)) == wanted


def test_every_field_of_a_role_can_be_said() -> None:
    said = ["count=1", "tile=16x16x16", "order=ring", "at=none", "stages=1", "warps=1", "via=load-store"]
    said += ["signals=late", "waits=pieces", "wave=none", "whole=none", "own=copied"]
    assert [s.split("=")[0] for s in said] == [f.name for f in fields(tk.SMs)]
    for change in said:
        read_schedule(all_gather_matmul, f"matmul.{change}", 4, dict(SIZES))


@pytest.mark.parametrize(
    "command",
    first_of(["check", "simulate", "show", "explore --seeds 1", "inspect"], 3),
    ids=lambda c: c.partition(" ")[0],
)
def test_sizes_that_nobody_gave_are_named(command: str, run: Run) -> None:
    name, *flags = command.split()
    _, found = run(name, "matmul", *flags, "--world", "2", "--shape", "M=32,K=32")
    assert found["defaults"] == ["N"]
    _, _, said = run.text(name, "matmul", *flags, "--world", "2", "--shape", "M=32,K=32")
    assert said.splitlines().count("# sizes by default: N") == 1
    _, _, said = run.text(name, "matmul", *flags, "--world", "2", "--shape", "M=32,K=32,N=32")
    assert "by default" not in said


def test_dtypes_that_nobody_gave_are_named(run: Run) -> None:
    flags = "--world", "2", "--shape", "M=32,K=32,N=32+16", "--dtype"
    _, _, said = run.text("check", "all_gather_matmul", *flags, "weight=fp16")
    assert "# dtypes by default: x=float16, out_0=float16, out_1=float16" in said.splitlines()
    _, _, said = run.text("check", "all_gather_matmul", *flags, "fp16")
    assert "dtypes by default" not in said


def test_named_schedules_are_fitted_and_changes_are_not(run: Run) -> None:
    _, found = run("show", "all_gather_matmul", "--shape", "M=64,K=64,N=64")
    assert found["schedule"] == "push,gather.tile=16x64,matmul.tile=16x64x64"
    error = run.error("show", "all_gather_matmul", "--shape", "M=64,K=64,N=64", "--schedule", "matmul.tile=128x64x64")
    assert error["class"] == "TileSizeError"


@pytest.mark.parametrize(
    ("flags", "kind", "message"),
    [
        ("--world 0", "WorldError", "a world of 0"),
        ("--world -1", "WorldError", "a world of -1"),
        ("--world many", "UsageError", "invalid int value"),
        ("--shape M", "UsageError", "'M' is neither DIM=SIZE"),
        ("--shape M=-4", "UsageError", "'M=-4' is neither"),
        ("--shape M=4,M=8", "UsageError", "M is given twice"),
        ("--shape Q=4", "DimensionError", "no dimension Q; it has M, K, N"),
        ("--shape M=4+4", "DimensionError", "2 parts (4, 4) for 4 ranks"),
        ("--shape K=1+1+1+1", "DimensionError", "K is not spread over the ranks"),
        ("--dtype bf17", "UsageError", "bf17 is not a dtype"),
        ("--dtype int64", "DtypeError", "tl.dot does not take int64"),
        ("--schedule shove", "ScheduleError", "no schedule shove; it has push, pull, multicast, engine"),
        ("--schedule push,pull", "ScheduleError", "--schedule pull: a change is ROLE.FIELD=VALUE"),
        ("--schedule push,", "ScheduleError", "a change is ROLE.FIELD=VALUE"),
        ("--schedule push,matmul.whole=4096", "ScheduleError", "whole=4096 is not DIM:SIZE, or DIM:SIZE+DIM:SIZE"),
        ("--schedule tile=64", "ScheduleError", "--schedule tile=64: a change is"),
        ("--schedule send.tile=64", "ScheduleError", "no role send in this schedule; it has gather, matmul"),
        ("--schedule matmul.speed=9", "ScheduleError", "a role on SMs has no speed; it has count, tile, order"),
        ("--schedule matmul.tile=64*64", "ScheduleError", "'64*64' is not a natural number"),
        ("--schedule matmul.tile=65x64x32", "TileSizeError", "--schedule matmul.tile=65x64x32: tile (65, 64"),
        ("--schedule matmul.stages=none", "ScheduleError", "'none' is not a natural number"),
        ("--schedule matmul.order=random", "ScheduleError", "no order random; there is own_rank_first"),
        ("--schedule gather.at=work", "ScheduleError", "it can be 'reader' or 'home'"),
        ("--schedule push,matmul.tile=64x64", "TileSizeError", "; the schedule: --schedule push,matmul.tile=64x64"),
        ("--stage llir", "UsageError", "choose from 'program', 'events', 'triton'"),
        ("--target sm_75", "UsageError", "choose from 'cpu'"),
        ("--wor 4", "UsageError", "unrecognized arguments"),
        ("--loud", "UsageError", "unrecognized arguments: --loud"),
    ],
)  # fmt: skip
def test_bad_flags(run: Run, flags: str, kind: str, message: str) -> None:
    error = run.error("show", "all_gather_matmul", *flags.split())
    assert error["class"] == kind
    assert message in error["message"]


def test_errors_of_the_frontend_have_their_line(run: Run) -> None:
    error = run.error("show", "all_gather_matmul", "--dtype", "int64")
    assert error["file"] == tiles.__file__, "the loop that its matmul calls"
    assert "tl.dot" in Path(error["file"]).read_text().splitlines()[error["line"] - 1]
