"""Tiles that go across the parts of ranks: their walk, their signals, what they read, and where they can't be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilelink as tk
from tests.analysis.check.damage import without
from tests.backend.edited import replaced
from tests.backend.test_waits_at_once import AT_ONCE
from tests.frontend.wrong import (
    GATHER_TILE,
    LAUNCH_GATHER,
    LAUNCH_USE,
    NOTIFY,
    PROGRAM,
    READ,
    USE_TILE,
    WAIT,
    Case,
    check,
    pair,
)
from tests.kernels.gather_gemm import Call, run, run_and_check, small_world
from tests.parameters import covering, rarely
from tests.verification.mutants.tools import MutatedWorld
from tilelink.analysis.check import check_events
from tilelink.analysis.check.structure import why_not_structural
from tilelink.analysis.events import READ as READS
from tilelink.analysis.events import WAIT as WAITS
from tilelink.backend.targets import CPU, portable
from tilelink.emulator import RaceError
from tilelink.errors import HomeError, ScheduleError, SignalCountError
from tilelink.kernels.all_gather_matmul import all_gather_matmul, few
from tilelink.kernels.matmul_all_reduce import matmul_all_reduce
from tilelink.kernels.matmul_all_reduce import push as all_reduce
from tilelink.kernels.matmul_fabric_all_reduce import matmul_fabric_all_reduce
from tilelink.kernels.matmul_fabric_all_reduce import multicast as by_fabric
from tilelink.kernels.matmul_reduce_scatter import few as scatter
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter, pull
from tilelink.programs.schedule_text import read_schedule, schedule_text
from tilelink.runtime.cpu.world import CpuWorld

ACROSS = {"order": tk.across_parts, "tile": (16, 16, 16)}
GATHER = few.changed(gather={"tile": (16, 16), "count": 4}, matmul=ACROSS)
ORDERS = [tk.grouped(2, tk.across_parts), tk.columns_first(1, tk.across_parts)]
PARTS = [(7,), (5, 9), (20, 0, 3), (0, 17, 1, 0), (3, 1, 0, 17, 0, 0, 5, 2)]
ASKED = "tile=(16, 16, 16), order=tk.across_parts"


@pytest.mark.parametrize(
    "order, parts",
    [
        *zip(ORDERS, PARTS, strict=False),
        (tk.across_parts, PARTS[2]),
        *(pytest.param(tk.across_parts, p, marks=pytest.mark.verify) for p in PARTS[3:5]),
    ],
)
def test_gathered_rows_are_right(order: tk.Order, parts: tuple[int, ...]) -> None:
    schedule = GATHER.changed(matmul={"order": order})
    calls = [Call(parts, schedule=schedule, integers=True, bias=True, seed=s) for s in range(2)]
    run_and_check(*calls, seed=len(parts))
    report = all_gather_matmul.check(schedule, world=len(parts), M=parts, N=24, K=40)
    assert (report.verdict, report.proof) == ("safe", "structural")


SCATTERED = rarely(
    covering([*((scatter, p) for p in PARTS[:4]), (pull, PARTS[2])]),
    lambda schedule, parts: schedule is scatter and len(parts) == 4,
)
SCATTERED += [pytest.param(s, PARTS[4], marks=pytest.mark.verify) for s in (scatter, pull)]


@pytest.mark.parametrize("schedule, parts", SCATTERED)
def test_scattered_sums_are_right(schedule: tk.Schedule, parts: tuple[int, ...]) -> None:
    """A rank's tiles are signalled across parts, and those that fetch them wait for rows of one part."""
    small = {"tile": (16, 16)}
    schedule = schedule.changed(matmul=ACROSS, send={**small, "count": 4, "own": "copied"}, reduce=small)
    world, M, N, K = len(parts), sum(parts), 24, 20
    x, weight = torch.randint(-4, 5, (world, M, K)).float(), torch.randint(-4, 5, (world, K, N)).float()
    right = (x @ weight).sum(0).split(parts)

    def rank(group: Any) -> None:
        for _ in range(2):
            out = torch.full((parts[group.rank], N), float("nan"))
            call = {"schedule": schedule, "group": group, "parts": {"M": parts}}
            matmul_reduce_scatter(x[group.rank], weight[group.rank], out=out, **call)
            assert torch.equal(out, right[group.rank])

    small_world(world).run(rank, seed=world)
    report = matmul_reduce_scatter.check(schedule, world=world, M=parts, N=N, K=K)
    assert (report.verdict, report.proof) == ("safe", "structural")


@pytest.mark.parametrize("program, schedule", [(matmul_all_reduce, all_reduce), (matmul_fabric_all_reduce, by_fabric)])
def test_sums_of_all_ranks_are_right(program: tk.Program, schedule: tk.Schedule) -> None:
    x, weight = torch.randint(-4, 5, (3, 20, 24)).float(), torch.randint(-4, 5, (3, 24, 40)).float()
    copied = {"send": {"own": "copied"}} if program is matmul_all_reduce else {}
    schedule = program.fit(schedule.changed(matmul=ACROSS, **copied), world=3, M=20, N=40, K=24)
    outs = small_world(3).run(lambda g: program(x[g.rank], weight[g.rank], schedule=schedule, group=g))
    assert all(torch.equal(out, (x @ weight).sum(0)) for out in outs)


def test_a_weight_is_read_once_and_waits_are_for_what_a_tile_touches() -> None:
    M, N, K = 64, 64, 32
    schedule = GATHER.changed(matmul={"tile": (64, 16, 16)})
    events = all_gather_matmul.unroll(schedule, world=8, M=M, N=N, K=K)
    names = [t.name for t in events.program.tensors]
    read = events.amount[(events.op == READS) & (events.tensor == names.index("weight"))]
    assert read.sum() == 8 * N * K * 4, "each rank reads each element once"
    waits = (events.op == WAITS) & (events.rank == 0)
    assert waits.sum() == N // 16 * 8, "a tile waits for one cell of each rank"
    narrow = all_gather_matmul.unroll(GATHER, world=8, M=M, N=N, K=K)
    waits = (narrow.op == WAITS) & (narrow.rank == 0)
    assert waits.sum() == N // 16 * M // 16 * 2, "16 rows are those of two ranks"


def test_a_tile_that_does_not_wait_for_its_last_rank_is_a_race() -> None:
    """In events, and in the kernel that runs."""
    call = Call((5, 9), N=16, K=16, schedule=GATHER)
    events = all_gather_matmul.unroll(GATHER, world=2, M=call.parts, N=16, K=16)
    assert check_events(events).verdict == "safe"
    waits = (events.op == WAITS) & (events.cell == events.cell[events.op == WAITS].max())
    assert check_events(without(events, np.flatnonzero(waits))).verdict != "safe"
    edit = replaced(r"wait\(control, full_signals_here \+ M_cell,", "wait(control, full_signals_here,")
    world = MutatedWorld(2, kernel=edit, primitives=portable, target=CPU, heap_bytes=1 << 20, sms=20)
    with pytest.raises(RaceError):
        for seed in range(8):
            run([call], world=world, seed=seed)


@pytest.mark.parametrize("parts", [PARTS[2], pytest.param(PARTS[4], marks=pytest.mark.verify)], ids=str)
def test_cells_of_several_ranks_are_polled_at_once(parts: tuple[int, ...]) -> None:
    call = Call(parts, schedule=GATHER, integers=True)
    world = CpuWorld(call.world, target=AT_ONCE, heap_bytes=1 << 20, sms=20)
    run_and_check(call, call, world=world)
    (prepared,) = world.lane.prepared.values()
    assert "rows_ready += wait_all(" in prepared.lowered.source


def test_it_is_read_and_written_as_text() -> None:
    named = read_schedule(all_gather_matmul, "push,matmul.order=across_parts,matmul.tile=128x64x64")
    changed = named.changed(all_gather_matmul.schedule("push"))
    assert changed["matmul"].order == tk.across_parts
    assert "matmul.order=across_parts" in schedule_text(all_gather_matmul, changed, "push")
    assert str(tk.grouped(4, tk.across_parts)) == "grouped(4, across_parts)"


def test_tiles_are_fitted_to_the_rows_of_all_ranks() -> None:
    fitted = all_gather_matmul.fit("few", world=8, M=128, N=3584, K=8192)
    assert (fitted["gather"].tile, fitted["matmul"].tile[0]) == ((16, 256), 128)
    assert all_gather_matmul.fit("few", world=8, M=16, N=3584, K=8192)["matmul"].tile[0] == 16


@pytest.mark.parametrize(
    "wrong",
    [
        pair("a tile has no home", HomeError,
             {USE_TILE: ASKED, WAIT: "tk.wait(full[t.rows].at(t.home))  # <-"},
             "no tile has a home where order=across_parts", "order of ranks"),
        pair("rows of a sharded tensor", HomeError,
             {USE_TILE: ASKED, "def use(t, full, out):": "def use(t, full, x, out):",
              LAUNCH_USE: LAUNCH_USE.replace("full, out)", "full, x, out)"),
              READ: "        acc += rows[:, k].load() + x[t.rows, k].load()  # <-"},
             "load of x[M[M_lo:+16], K[k:+16]]: it has more than one home", "in place of order=across_parts"),
        pair("a sharded space", ScheduleError,
             {GATHER_TILE: f"{GATHER_TILE}, order=tk.across_parts", LAUNCH_GATHER: f"{LAUNCH_GATHER}  # <-"},
             "gather: order=across_parts is for tiles of local tensors on SMs", "along M, so a tile has one home"),
        pair("a rank axis", ScheduleError,
             {USE_TILE: f'{ASKED}, at="place"', LAUNCH_USE: "use[tk.tiles(out, place=tk.locals)](full, out)  # <-"},
             "use: order=across_parts", "the rank axis place, whose order this is"),
        pair("a copy engine", ScheduleError,
             {"tk.SMs(tile=(16, 16, 16))": "tk.CopyEngine(tile=(16, 16, 16), order=tk.across_parts)",
              LAUNCH_USE: f"{LAUNCH_USE}  # <-"},
             "a copy engine covers the signals of one rank"),
        pair("two kinds of tiles notify", SignalCountError,
             {LAUNCH_USE: f'{LAUNCH_USE}\n    again[tk.tiles(full)](y, full)',
              "@tk.program": "@tk.tile\ndef again(t, y, full):\n    tk.notify(tk.copy(y[t], full[t]))\n\n\n@tk.program",
              NOTIFY: f"{NOTIFY}  # <-", PROGRAM: PROGRAM.replace("out:", 'y: tk.Local("M", "K"), out:'),
              f"    use=tk.SMs({USE_TILE}),": f"    use=tk.SMs({USE_TILE}),\n"
                                              "    again=tk.SMs(tile=(16, 16), order=tk.across_parts),"},
             "tiles of again notify full across the parts of the ranks"),
    ],
    ids=lambda c: c.name,
)  # fmt: skip
def test_what_can_not_go_across_parts(wrong: Case, tmp_path: Path) -> None:
    check(wrong, tmp_path)


def test_the_structure_proves_it_for_all_sizes() -> None:
    for program, schedule in ((all_gather_matmul, GATHER), (matmul_reduce_scatter, scatter)):
        absent = program.optional
        assert why_not_structural(program.bind(schedule, "float32", absent)) == ""
