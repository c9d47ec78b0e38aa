"""where= of copies, loads and stores: rows whose integer is -1 are neither read nor written."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilelink as tk
from tests.backend.small_programs import verdict
from tests.frontend.wrong import Case, check, of_role
from tests.kernels.gather_gemm import small_world
from tests.parameters import each_once
from tests.programs.moved import gathered_where, picked_where, scattered_where, stored_where
from tilelink.analysis.events import READ, WRITE
from tilelink.backend.targets import FORMS
from tilelink.emulator import Operation
from tilelink.errors import (
    DimensionError,
    DtypeError,
    ScheduleError,
    TileSizeError,
    UnguardedReadError,
    ViewError,
)
from tilelink.runtime.trace import align

PARTS = (19, 0, 33, 7)
TILES = tk.SMs(2, tile=(16, 16))


def sends(at: str, cols: int | None = None) -> tk.Schedule:
    return tk.Schedule(send=tk.SMs(2, tile=(16, cols), at=at), keep=TILES)


def truths(*shape: int, seed: int) -> torch.Tensor:
    """0 or more for about half of the rows, -1 for others."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).clamp(min=-1).int()


class Gathered:
    """Rows of all ranks, of which each rank wants some."""

    def __init__(self, seed: int) -> None:
        self.x = torch.randint(-4, 5, (sum(PARTS), 20), generator=torch.Generator().manual_seed(seed)).float()
        self.wanted = truths(sum(PARTS), len(PARTS), seed=seed)

    def on(self, group: Any, schedule: Any) -> torch.Tensor:
        mine, out = self.wanted[:, group.rank].contiguous(), torch.full_like(self.x, 9)
        x, wanted = (t.split(PARTS)[group.rank] for t in (self.x, self.wanted))
        made: torch.Tensor = gathered_where(x, wanted, mine, out, schedule=schedule, group=group, parts={"M": PARTS})
        return made

    def right(self, rank: int) -> torch.Tensor:
        return torch.where(self.wanted[:, rank, None] >= 0, self.x, 9)


@each_once("at, cols", ["home", "reader"], [None, 16])
def test_rows_that_nobody_wants_are_not_touched(at: str, cols: int | None) -> None:
    """Twice in a row; the kernel does what events say, and moves the bytes of the rows that are wanted, no more."""
    calls, operations = [Gathered(seed) for seed in (1, 2)], list[Operation]()
    lane = small_world(len(PARTS), observer=operations.append)
    outs = lane.run(lambda g: [call.on(g, sends(at, cols)) for call in calls])
    (prepared,) = lane.lane.prepared.values()
    for n, call in enumerate(calls):
        assert all(torch.equal(made[n], call.right(rank)) for rank, made in enumerate(outs))
        assert align(prepared.events, operations, f"gathered_where run {n}").done
    moved = [o for o in operations if o.region.name == "full" and o.kind == "store"]
    rows = sum(int((call.wanted >= 0).sum()) for call in calls)
    assert sum(o.elements for o in moved) == 20 * rows


def test_rows_go_to_other_nodes_one_at_a_time() -> None:
    call = Gathered(3)
    outs = small_world(4, per_node=2).run(lambda g: call.on(g, sends("home")))
    assert all(torch.equal(out, call.right(rank)) for rank, out in enumerate(outs))


@pytest.mark.parametrize("nodes", [1, 2])
def test_loads_are_zeros_and_stores_leave_what_was_there(nodes: int) -> None:
    world, M = 4, 37
    x = torch.randint(-4, 5, (world, M, 20), generator=torch.Generator().manual_seed(0)).float()
    taken, put = truths(world, M, seed=1), truths(world, M, seed=2)
    schedule = tk.Schedule(store_some=TILES, get_some=TILES)

    def on(group: Any) -> torch.Tensor:
        r, left = group.rank, (group.rank - 1) % world
        out = torch.full((M, 20), 9.0)
        made: torch.Tensor = stored_where(x[r], taken[r], put[r], put[left], out, schedule=schedule, group=group)
        return made

    for rank, out in enumerate(small_world(world, per_node=world // nodes).run(on)):
        left = (rank - 1) % world
        doubled = torch.where(taken[left, :, None] >= 0, 2 * x[left], 0)
        assert torch.equal(out, torch.where(put[left, :, None] >= 0, doubled, 9))


@pytest.mark.parametrize("send", [tk.SMs(2, tile=(16, 16), at="source"), tk.Epilogue("twice")], ids=str)
def test_sums_of_the_rows_that_ranks_have(send: Any) -> None:
    """Rows that did not come are not read: in memory of the inbox may be NaN. A folded copy is a store where it was."""
    world, parts = 3, (20, 5, 17)
    random = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 4, (world, 42, 24), generator=random).float()
    weight = torch.randint(-3, 4, (world, 24, 18), generator=random).float()
    there = truths(42, world, seed=3)
    schedule = tk.Schedule(twice=tk.SMs(3, tile=(16, 16, 16)), to_home=send, total=TILES)

    def on(group: Any) -> torch.Tensor:
        here = there[:, group.rank].contiguous()
        made: torch.Tensor = scattered_where(
            x[group.rank], weight[group.rank], here, there.split(parts)[group.rank], schedule=schedule, group=group,
            parts={"M": parts},
        )  # fmt: skip
        return made

    lane = small_world(world)
    for heap in lane.lane.heaps:
        heap.view(torch.uint8)[1 << 16 :].fill_(0xFF)
    every = torch.where(there.T[:, :, None] >= 0, x @ weight, 0).sum(0)
    assert torch.equal(torch.cat(lane.run(on)), every)
    sizes = {"M": parts, "K": 24, "N": 18}
    report = scattered_where.check(schedule, world=world, **sizes)
    assert (report.verdict, report.proof) == ("safe", "structural")


def test_picked_rows_are_moved_where_both_integers_say_so() -> None:
    x, order = torch.randn(9, 20), torch.tensor([3, -1, 8, 0, 5, 2]).int()
    put = torch.tensor([0, 0, -1, 5, -1, 1]).int()
    out, schedule = torch.full((6, 20), 9.0), tk.Schedule(pick_some=TILES)
    small_world(1).run(lambda g: picked_where(x, order, put, out, schedule=schedule, group=g))
    moved = ((order >= 0) & (put >= 0))[:, None]
    assert torch.equal(out, torch.where(moved, x[order.long()], 9))


def test_for_the_check_all_rows_are_written() -> None:
    """Nobody knows the integers before the run: signals, waits and bytes are those of all rows."""
    events = gathered_where.unroll(sends("home"), world=2, M=(20, 16), N=20)
    full = [t.name for t in events.program.tensors].index("full")
    writes = np.flatnonzero((events.op == WRITE) & (events.tensor == full))
    assert events.picked[writes].all() and events.amount[writes].sum() == 2 * 36 * 20 * 4
    integers = [t.name for t in events.program.tensors].index("wanted")
    assert events.amount[(events.op == READ) & (events.tensor == integers)].sum() == 2 * 36 * 4
    assert "full[M[M_lo:+16], N].at(reader) where wanted[M[M_lo:+16], reader]" in str(events.program)


def test_what_does_not_know_the_integers_is_refused() -> None:
    engine = tk.Schedule(send=tk.CopyEngine(tile=(16, None), at="home"), keep=TILES)
    with pytest.raises(ScheduleError, match=r"copies rows where wanted\[.*\] says so, and the host .* copy all rows"):
        gathered_where.check(engine, world=2, M=32, N=32)
    multicast = tk.Schedule(send=tk.SMs(2, tile=(16, 32), at="home", via="multicast"), keep=TILES)
    said = r"send can't multicast: where=wanted\[.*\] .* moves other rows for each reader"
    with pytest.raises(ScheduleError, match=said):
        gathered_where.check(multicast, world=2, M=32, N=32)


@pytest.mark.versions
def test_the_specialised_form_moves_them_too() -> None:
    tiles = {"twice": tk.SMs(tile=(64, 64, 64), warps=4), "to_home": tk.SMs(tile=(16, 64), at="source", warps=4)}
    at = {"target": FORMS["sm_90+warps"], "world": 2, "sizes": {"M": 128, "K": 64, "N": 64}, "dtypes": "bf16"}
    made = scattered_where.lowered_at(tk.Schedule(**tiles, total=tk.SMs(2, tile=(16, 16), warps=4)), **at)
    found = verdict(made)
    assert found.findings == () and found.expected == found.found and "mask=" in made[0].source


# ---- what is not understood

PROGRAM = """
@tk.tile
def role(t, x, order, table, floats, out):
    {body}

@tk.program
def program(x: tk.Local("S", "N"), order: tk.Local("S", dtype="int32"), table: tk.Local("S", "N", dtype="int32"),
            floats: tk.Local("S"), out: tk.Local("S", "N")):
    numbers = tk.local("S", dtype=order)
    count[tk.tiles(order)](order, numbers)
    role[tk.tiles(out)](x, order, table, floats, out{more})

@tk.tile
def count(t, order, numbers):
    tk.notify(tk.copy(order[t], numbers[t]))

schedule = tk.Schedule(count=tk.SMs(1, tile=(16,)), role=tk.SMs(1, tile=(16, 16)))

def main():
    return program.check(schedule, world=1, S=32, N=32)
"""


wrong = partial(of_role, PROGRAM)


WRONG = [
    wrong("floats", DtypeError, "tk.copy(x[t], out[t], where=floats[t.rows])  # <-", "says which rows of out[",
          "is float32", "int32 or int64"),
    wrong("a matrix", DimensionError, "tk.copy(x[t], out[t], where=table[t])  # <-", "is of 2 dimensions",
          "one row of integers"),
    wrong("columns", DimensionError, "out[t].store(0.0, where=table[0, t.cols])  # <-", "goes along N[",
          "not along S["),
    wrong("a block", ViewError, "out[t].store(0.0, where=order[t.rows].load() >= 0)  # <-", "a view of integers"),
    wrong("without a wait", UnguardedReadError, "tk.copy(x[t], out[t], where=numbers[t.rows])  # <-",
          "read without a wait", takes="numbers"),
    wrong("cut into tiles", TileSizeError, "a = x[:, t.cols].load(where=order[:])  # <-", "takes all of S"),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_where(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
