"""Stages of a program as text."""

from __future__ import annotations

import pytest

from tilelink.backend.targets import CPU
from tilelink.errors import DimensionError, TargetError, TileSizeError, WorldError
from tilelink.kernels.all_gather_matmul import all_gather_matmul, pull, push
from tilelink.programs.show import SIZE, WORLD

SIZES = {"M": 70, "N": 40, "K": 48}
fitted = all_gather_matmul.fit("push", M=(24, 24, 22), N=40, K=48)


def test_program_is_the_tile_program() -> None:
    bound = all_gather_matmul.bind(fitted, "float16", all_gather_matmul.optional)
    assert all_gather_matmul.show("program", "push", world=3, dtypes="float16", **SIZES) == str(bound)


def test_events_are_those_of_the_unrolling() -> None:
    events = all_gather_matmul.unroll(fitted, world=3, **SIZES)
    text = all_gather_matmul.show("events", "push", world=3, dtypes="float32", **SIZES)
    assert text == events.text()
    assert len(text.splitlines()) == len(events)


def test_triton_is_the_source_that_a_call_of_these_sizes_runs() -> None:
    lowered, _ = all_gather_matmul.lowered_at(fitted, target=CPU, world=3, sizes=SIZES, dtypes="bfloat16")
    text = all_gather_matmul.show("triton", "push", world=3, **SIZES)
    assert text == lowered.source
    compile(text, "shown", "exec")
    assert text == all_gather_matmul.show("triton", "push", world=3, **{**SIZES, "M": (24, 24, 22)})


def test_defaults() -> None:
    said = {"world": WORLD, "dtypes": "bfloat16", **dict.fromkeys(SIZES, SIZE)}
    tiles = {"tile": (128, 512)}
    assert all_gather_matmul.show("events") == all_gather_matmul.show("events", push.changed(gather=tiles), **said)
    assert all_gather_matmul.show() == all_gather_matmul.show("program", "push", **said)
    pulled = pull.changed(gather=tiles)
    assert all_gather_matmul.show(schedule="pull") == all_gather_matmul.show("program", pulled, **said)


def test_optional_tensors_are_shown_where_they_have_a_dtype() -> None:
    dtypes = {"x": "float16", "weight": "float16", "out": "float16", "bias": "float32"}
    assert "input bias: float32[N]" in all_gather_matmul.show(dtypes=dtypes)
    assert "bias" not in all_gather_matmul.show(dtypes="float16")


def test_a_schedule_that_is_given_is_not_fitted() -> None:
    with pytest.raises(TileSizeError):
        all_gather_matmul.show("program", push, **SIZES)


def test_bad_input() -> None:
    stages = "program, events, triton, gluon, host, ptx, sass, amdgcn"
    with pytest.raises(TargetError, match=f"no stage obj; there is {stages}"):
        all_gather_matmul.show("obj")
    with pytest.raises(TargetError, match="no target sm_75; there is cpu, sm_90, sm_100, gfx942, sm_80"):
        all_gather_matmul.show("triton", target="sm_75")
    with pytest.raises(TargetError, match="sm_90 has no amdgcn; gfx942 has"):
        all_gather_matmul.show("amdgcn", target="sm_90")
    with pytest.raises(WorldError):
        all_gather_matmul.show(world=0)
    with pytest.raises(DimensionError):
        all_gather_matmul.show(Q=3)
