"""Waits for pieces of rows: their place in the program, what signals follow, and the roles that can't have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontend.wrong import GATHER_TILE, LAUNCH_GATHER, LAUNCH_USE, USE_TILE, Case, check, pair
from tests.kernels.gather_gemm import in_tiles
from tilelink.analysis.check.structure import why_not_structural
from tilelink.analysis.events import WAIT
from tilelink.errors import ScheduleError
from tilelink.frontend import ir
from tilelink.kernels.all_gather_matmul import all_gather_matmul

PIECES = in_tiles("pieces", (16, 64), (16, 16, 16))
ASKED = 'tile=(16, 16, 16), waits="pieces"'
NO_LOOP = 'has waits="pieces", and no main loop goes step by step through one view that its tiles wait for'


@pytest.mark.parametrize(
    "wrong",
    [
        pair("another word", ScheduleError, {f"{USE_TILE}),": f'{USE_TILE}, waits="parts"),  # <-'},
             "waits='parts': it is one of 'whole', 'pieces'"),
        pair("waits for nothing", ScheduleError,
             {GATHER_TILE: f'{GATHER_TILE}, waits="pieces"', LAUNCH_GATHER: f"{LAUNCH_GATHER}  # <-"},
             f"gather {NO_LOOP}"),
        pair("adds up and does not multiply", ScheduleError, {USE_TILE: ASKED, LAUNCH_USE: f"{LAUNCH_USE}  # <-"},
             f"use {NO_LOOP}"),
    ],
    ids=lambda c: c.name,
)  # fmt: skip
def test_what_can_not_wait_in_pieces(wrong: Case, tmp_path: Path) -> None:
    check(wrong, tmp_path)


def test_where_they_stand_in_the_program() -> None:
    dtypes = dict.fromkeys(["x", "weight", "out", "gathered"], "float32")
    program = all_gather_matmul.bind(PIECES, dtypes, absent=frozenset({"bias", "epilogue"}))
    role = program.role("matmul")
    assert "waits='pieces'" in str(role.resource)
    assert not any(isinstance(s, ir.Wait) for s in role.body), "none stands before the loops"
    waits = list(ir.every(ir.Wait, role.body))
    assert [w.name for w in waits] == ["rows_ready", "rows_ready_1"], "all of them are kept, too"
    (main,) = (s for s in role.body if isinstance(s, ir.For))
    assert (main.step, main.body[0]) == (64, waits[0]), "a piece is what a tile of the gathering role brings"
    assert why_not_structural(program) == ""


def test_one_signal_a_piece() -> None:
    copying = PIECES.changed(gather={"own": "copied"})
    events = all_gather_matmul.unroll(copying, world=2, M=64, N=32, K=160)
    waits = events.op == WAIT
    assert waits.sum() == 2 * (4 * 2) * 3, "of two ranks, eight tiles each, three pieces of K"
    assert set(events.expected[waits].tolist()) == {1}
