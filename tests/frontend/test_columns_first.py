"""tk.columns_first: tiles of the experts of a route, some columns of all experts before the next columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilelink as tk
from tests.kernels.routed import Routed, in_tiles, random_counts, run_and_check
from tilelink.analysis.events import DOT, WRITE
from tilelink.errors import ScheduleError
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul_combine import matmul_combine
from tilelink.programs.schedule_text import read_schedule

COUNTS = [[20, 0], [0, 17], [0, 0], [3, 35]]


def by_columns(columns: int) -> tk.Schedule:
    order = tk.columns_first(columns, tk.next_rank_first)
    return in_tiles(matmul_combine, "push", 16).changed(matmul={"order": order})


def tiles_of(schedule: tk.Schedule, N: int, rank: int) -> list[tuple[int, int]]:
    """(rows, columns) where the tiles of the product begin, in the order in which a rank goes through them."""
    sizes: dict[str, Any] = {"tokens": 8, "top": 2, "K": 16, "N": N, "experts": 2, "routed": COUNTS}
    events = matmul_combine.unroll(schedule, world=2, **sizes)
    made = [t.name for t in events.program.tensors].index("made")
    mine = np.flatnonzero((events.op == WRITE) & (events.tensor == made) & (events.rank == rank))
    mine = mine[np.argsort(events.tile[mine])]
    assert events.tile[mine].tolist() == list(range(len(mine)))
    assert (events.op == DOT).sum() >= len(mine)
    return [(int(lo), int(at)) for lo, at in events.lo[mine, :2]]


@pytest.mark.parametrize("columns", [1, 2, 3, 8])
def test_so_many_columns_of_all_experts_come_first(columns: int) -> None:
    found = tiles_of(by_columns(columns), N=72, rank=1)
    assert sorted(found) == sorted(tiles_of(in_tiles(matmul_combine, "push", 16), N=72, rank=1))
    rows = list(dict.fromkeys(lo for lo, _ in found))
    groups = [range(0, 72, 16)[k : k + columns] for k in range(0, 5, columns)]
    assert found == [(lo, at) for group in groups for lo in rows for at in group]
    assert tiles_of(by_columns(columns), N=72, rank=0)[0][1] == 0


@pytest.mark.parametrize("world", [1, 3])
def test_results_are_the_same(world: int) -> None:
    calls = [Routed((matmul_combine, by_columns(2)), random_counts(world, 2, seed, 30), N=50, integers=True, seed=seed)
             for seed in (1, 2)]  # fmt: skip
    nothing = Routed((matmul_combine, by_columns(2)), [[0] * world] * 2 * world, N=50, integers=True)
    run_and_check(*calls, nothing)
    report = matmul_combine.check(
        by_columns(2), world=2, tokens=8, top=2, K=16, N=50, experts=2, routed=COUNTS
    )  # fmt: skip
    assert (report.verdict, report.proof) == ("safe", "structural")


def test_it_is_for_tiles_of_rows_and_columns_of_experts() -> None:
    wrong = all_gather_matmul.schedule("push").changed(matmul={"order": tk.columns_first(2)})
    with pytest.raises(ScheduleError, match=r"columns_first\(2, own_rank_first\) is for tiles of the experts of a"):
        all_gather_matmul.check(wrong, world=2, M=256, N=256, K=64)
    moved = matmul_combine.schedule("push").changed(combine={"order": tk.columns_first(2)})
    with pytest.raises(ScheduleError, match=r"of the experts of a route, tk\.tiles\(route\.experts, out\.cols\)"):
        matmul_combine.check(moved, world=2, tokens=8, top=2, K=64, N=256, experts=2, routed=COUNTS)
    with pytest.raises(ScheduleError, match="0 columns at a time: it must be at least 1"):
        tk.columns_first(0)


def test_it_is_read_and_written_as_text() -> None:
    text = "push,matmul.columns=4"
    schedule = read_schedule(matmul_combine, text).changed(matmul_combine.schedule("push"))
    assert schedule["matmul"].order == tk.columns_first(4)  # type: ignore[union-attr]
    assert str(schedule["matmul"].order) == "columns_first(4, own_rank_first)"  # type: ignore[union-attr]
    assert "matmul.columns=4" in str(read_schedule(matmul_combine, text))
