"""tk.columns_first: some columns of all ranks, experts and rows before the next columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilelink as tk
from tests.kernels.gather_gemm import NAMED, Call
from tests.kernels.gather_gemm import run_and_check as run_and_check_gather
from tests.kernels.routed import Routed, in_tiles, random_counts, run_and_check
from tests.parameters import first_of
from tests.programs.routed import columns_before_rows
from tilelink.analysis.events import DOT, WRITE
from tilelink.errors import ScheduleError
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul_combine import matmul_combine
from tilelink.programs.schedule_text import read_schedule

COUNTS = [[20, 0], [0, 17], [0, 0], [3, 35]]


def by_columns(columns: int) -> tk.Schedule:
    order = tk.columns_first(columns, tk.next_rank_first)
    moved = {"tile": (16, 32), "order": tk.columns_first(1, tk.ring)}
    return in_tiles(matmul_combine, "push", 16).changed(matmul={"order": order}, combine=moved)


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


@pytest.mark.parametrize("world", first_of([2, 3, 1]))
def test_results_are_the_same(world: int) -> None:
    form, options = (matmul_combine, by_columns(2)), {"K": 16, "N": 50, "integers": True}
    calls = [Routed(form, random_counts(world, 2, seed, 20 // world), seed=seed, **options) for seed in (1, 2)]
    nothing = Routed(form, [[0] * world] * 2 * world, **options)
    run_and_check(*calls, nothing)
    report = matmul_combine.check(
        by_columns(2), world=2, tokens=8, top=2, K=16, N=50, experts=2, routed=COUNTS
    )  # fmt: skip
    assert (report.verdict, report.proof) == ("safe", "structural")


def test_columns_of_all_ranks_come_first() -> None:
    order = {"order": tk.columns_first(2, tk.ring), "tile": (16, 16), "own": "copied"}
    schedule = NAMED["push"].changed(gather=order, matmul={"tile": (16, 16, 16), "order": tk.columns_first(3)})
    run_and_check_gather(Call((19, 0, 33), 72, 50, integers=True, schedule=schedule))
    events = all_gather_matmul.unroll(schedule, world=3, M=(19, 0, 33), N=72, K=50)
    names = [t.name for t in events.program.tensors]
    writes = (events.op == WRITE) & (events.tensor == names.index("full")) & (events.rank == 2)
    mine = np.flatnonzero(writes)[np.argsort(events.tile[writes])]
    homes = zip(events.lo[mine], events.home[mine], strict=True)
    found = [(int(lo[1]) // 32, int(home), int(lo[0])) for lo, home in homes]
    expected = [(group, reader, row) for group in (0, 1) for reader in (2, 1, 0) for row in (19, 35, 51)]
    assert list(dict.fromkeys(found)) == expected


def test_it_is_for_tiles_of_rows_and_columns_that_take_no_turns() -> None:
    by_two = {"order": tk.columns_first(2), "tile": (16, 16, 16)}
    wrong = NAMED["push"].changed(gather={"tile": (16, 16)}, matmul=by_two)
    with pytest.raises(ScheduleError, match="take turns, rank by rank, so none of them has columns first"):
        all_gather_matmul.of(2).check(wrong, world=2, M=256, N=(64, 64), K=64)
    moved = matmul_combine.schedule("push").changed(combine={"order": tk.columns_first(2)})
    with pytest.raises(ScheduleError, match=r"both with a size; its space is routed, N, and its tile \(32, None\)"):
        matmul_combine.check(moved, world=2, tokens=8, top=2, K=64, N=256, experts=2, routed=COUNTS)
    turned = tk.Schedule(twice=tk.SMs(tile=(16, 16), order=tk.columns_first(1)))
    with pytest.raises(ScheduleError, match="columns behind the rows of a route; its space is K, R: name"):
        columns_before_rows.bind(turned)
    with pytest.raises(ScheduleError, match="0 columns at a time: it must be at least 1"):
        tk.columns_first(0)


def test_it_is_read_and_written_as_text() -> None:
    text = "push,matmul.columns=4"
    schedule = read_schedule(matmul_combine, text).changed(matmul_combine.schedule("push"))
    assert schedule["matmul"].order == tk.columns_first(4)  # type: ignore[union-attr]
    assert str(schedule["matmul"].order) == "columns_first(4, own_rank_first)"  # type: ignore[union-attr]
    assert "matmul.columns=4" in str(read_schedule(matmul_combine, text))
