"""Rows that integers of a tensor pick: what is said of them, what they are on every rank, what is not understood."""

from __future__ import annotations

import re
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilelink as tk
from tests.frontend.wrong import Case, check, of_role
from tests.kernels.gather_gemm import small_world
from tests.parameters import covering, rarely
from tests.programs.picked import (
    picked,
    picked_by_brought,
    picked_from_the_right,
    picked_product,
    there_and_back,
)
from tilelink.analysis.events import READ, WAIT
from tilelink.backend.targets import CPU, FORMS
from tilelink.emulator import Operation
from tilelink.errors import (
    DimensionError,
    DtypeError,
    FarAccessError,
    FormError,
    HomeError,
    RowIndexError,
    ScheduleError,
    TileSizeError,
    UnguardedReadError,
    ViewError,
)
from tilelink.runtime.trace import align

TILES = tk.SMs(3, tile=(16, 16))
SCHEDULES = {
    picked: tk.Schedule(pick=TILES),
    picked_from_the_right: tk.Schedule(pick_from_the_right=tk.SMs(3, tile=(16, None))),
    picked_by_brought: tk.Schedule(bring=tk.SMs(1, tile=(16,), at="home"), pick_by_brought=TILES),
    picked_product: tk.Schedule(multiply=tk.SMs(3, tile=(16, 16, 16))),
}


def there_and_back_by(at: str, cols: int | None = None) -> tk.Schedule:
    to, back = ("source", "home") if at == "push" else ("home", "source")
    return tk.Schedule(
        dispatch=tk.SMs(2, tile=(16, cols), at=to), combine=tk.SMs(2, tile=(16, cols), at=back), add_up=TILES
    )


class Tokens:
    """Small whole numbers: tokens of every rank, the experts that they go to, and what comes back."""

    def __init__(self, world: int, tokens: tuple[int, ...], top: int = 3, experts: int = 2, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.world, self.experts, every = world, experts, experts * world
        self.x = [torch.from_numpy(random.integers(-4, 5, (n, 20))).float() for n in tokens]
        chosen = [random.integers(-1, every, (n, top)) for n in tokens]
        self.weights = [torch.from_numpy(random.integers(-2, 3, (n, top))).float() for n in tokens]
        counts = np.stack([np.bincount(c[c >= 0], minlength=every) for c in chosen], 1)
        self.counts = torch.from_numpy(counts.astype(np.int32))
        self.order, self.place = [], []
        for c in chosen:
            pairs = np.argsort(np.where(c < 0, every, c).reshape(-1), kind="stable")
            order, place = pairs // top, np.empty(len(pairs), np.int64)
            place[pairs] = np.arange(len(pairs))
            self.order.append(torch.from_numpy(order.astype(np.int32)))
            self.place.append(torch.from_numpy(np.where(c < 0, -1, place.reshape(c.shape))))
        kept = [torch.from_numpy(c >= 0) * w for c, w in zip(chosen, self.weights, strict=True)]
        self.right = [x * w.sum(1, keepdim=True) for x, w in zip(self.x, kept, strict=True)]
        self.parts = {
            "tokens": tokens, "sent": tuple(n * top for n in tokens), "routed": (sum(tokens) * top,) * world,
        }  # fmt: skip

    def on(self, group: Any, schedule: Any) -> torch.Tensor:
        r = group.rank
        given = self.x[r], self.order[r], self.counts, self.place[r], self.weights[r]
        made: torch.Tensor = there_and_back(*given, schedule=schedule, group=group, parts=self.parts)
        return made


TOKENS = [(19,), (7, 0), (5, 33, 2), (3, 6, 0, 4)]
"""Of each rank."""


SOME = rarely(covering(product(TOKENS[:-1], ["push", "pull"])), lambda tokens, _: len(tokens) == 3)
OF_FOUR = [pytest.param(TOKENS[-1], at, marks=pytest.mark.verify) for at in ("push", "pull")]


@pytest.mark.parametrize(("tokens", "at"), [*SOME, *OF_FOUR], ids=str)
def test_tokens_go_to_experts_and_their_sums_come_back(tokens: tuple[int, ...], at: str) -> None:
    """Twice in a row, by other routings; the kernel does what the events say."""
    world = len(tokens)
    calls, schedule = [Tokens(world, tokens, seed=seed) for seed in (1, 2)], there_and_back_by(at)
    operations: list[Operation] = []
    lane = small_world(world, observer=operations.append)
    outs = lane.run(lambda g: [call.on(g, schedule) for call in calls])
    for rank, made in enumerate(outs):
        assert all(torch.equal(out, call.right[rank]) for out, call in zip(made, calls, strict=True))
    for n in range(2):
        assert align(lane.groups[0].recent[n].counted.events, operations, f"there_and_back run {n}").done


def test_a_sum_waits_once_for_all_rows_of_its_columns() -> None:
    """Of a rank's rows in all segments: a cell for each of the columns that `combine` brings at a time."""
    for cols, cells in ((None, 1), (16, 2)):
        schedule = there_and_back_by("push", cols)
        call = Tokens(2, (7, 9))
        sizes = {"tokens": (7, 9), "K": 20, "top": 3, "experts": 2, "routed": call.counts.tolist()}
        report = there_and_back.check(schedule, world=2, **sizes)
        assert (report.verdict, report.proof) == ("safe", "structural")
        events = there_and_back.unroll(schedule, world=2, **sizes)
        names = [t.name for t in events.program.tensors]
        waits = np.flatnonzero((events.op == WAIT) & (events.tensor == names.index("back")))
        segments = call.counts.numpy()
        for rank in range(2):
            mine = waits[events.rank[waits] == rank]
            assert set(events.cell[mine].tolist()) == set(range(cells))
            assert set(events.expected[mine].tolist()) == {int((-(-segments[:, rank] // 16)).sum())}


@pytest.mark.parametrize("integers", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("program", [picked, picked_from_the_right, picked_product], ids=lambda p: p.name)
def test_rows_are_picked_by_integers_of_either_width(program: Any, integers: torch.dtype) -> None:
    """Where -1 picks none, a load reads zeros, and a copy leaves what was there."""
    world, M, S, N = 2, 21, 35, 18
    random = torch.Generator().manual_seed(0)
    x = torch.randint(-4, 5, (world, M, N), generator=random).float()
    order = torch.randint(-1, M, (world, S), generator=random).to(integers)
    weight = torch.randint(-2, 3, (N, 17), generator=random).float()
    more = [weight] if program is picked_product else []
    left = torch.full((world, S, 17 if more else N), 9.0)
    outs = small_world(world).run(
        lambda g: program(x[g.rank], order[g.rank], *more, left[g.rank], schedule=SCHEDULES[program], group=g)
    )
    for rank, out in enumerate(outs):
        mine = x[(rank + 1) % world if program is picked_from_the_right else rank]
        rows = torch.where(order[rank, :, None] >= 0, mine[order[rank].long().clamp(min=0)], 0 if more else 9)
        assert torch.equal(out, rows @ weight if more else rows)


def test_integers_may_be_made_in_the_run() -> None:
    x, order = torch.randn(2, 9, 20), torch.tensor([3, -1, 8, 0, 5, 5]).int()
    schedule = SCHEDULES[picked_by_brought]
    left = torch.full((2, 6, 20), 9.0)
    outs = small_world(2).run(
        lambda g: picked_by_brought(x[g.rank], order[3 * g.rank :][:3], left[g.rank], schedule=schedule, group=g)
    )
    for mine, out in zip(x, outs, strict=True):
        assert torch.equal(out, torch.where(order[:, None] >= 0, mine[order.long()], 9))
    assert "x[here[S[S_lo:+16]], N[N_lo:+16]]" in picked_by_brought.show("program", schedule, world=2)


@pytest.mark.parametrize("wrong", [9, -2])
def test_an_integer_that_is_no_row_is_named(wrong: int) -> None:
    x, order = torch.randn(9, 16), torch.tensor([3, -1, wrong, 0]).int()
    lane = small_world(2)
    with pytest.raises(RowIndexError) as raised:
        lane.run(lambda g: picked(x, order, schedule=SCHEDULES[picked], group=g))
    said = f"x[order[S[S_lo:+16]]] picks row {wrong} on rank "
    assert said in str(raised.value) and "there are 9 rows: 0 to 8, or -1 for none" in str(raised.value)
    assert raised.value.site is not None and raised.value.site.file.endswith("picked.py")
    order[2] = 8
    outs = lane.run(lambda g: picked(x, order, schedule=SCHEDULES[picked], group=g))
    assert torch.equal(outs[0][2], x[8])


def test_a_simulation_counts_the_bytes_of_rows_that_are_read() -> None:
    events = picked.unroll(SCHEDULES[picked], world=1, M=4096, S=40, N=16)
    x = [t.name for t in events.program.tensors].index("x")
    reads = np.flatnonzero((events.op == READ) & (events.tensor == x))
    assert events.amount[reads].tolist() == [16 * 64, 16 * 64, 8 * 64] and events.picked[reads].all()
    assert (events.hi - events.lo)[reads, 0].tolist() == [4096] * 3


def test_rows_of_a_peer_are_published_with_their_integers_where_both_are_a_peers() -> None:
    schedule = there_and_back_by("pull")
    sizes = {"tokens": 14, "K": 20, "top": 3, "experts": 2, "routed": 24}
    assert there_and_back.bound_at(schedule, world=2, sizes=sizes)[0].published == ("x", "order")
    right = picked_from_the_right.bind(SCHEDULES[picked_from_the_right])
    assert right.published == ("x",)


def test_to_other_nodes_a_row_is_put_at_a_time() -> None:
    call = Tokens(4, (7, 3, 0, 5), experts=1)
    lane = small_world(4, per_node=2)
    outs = lane.run(lambda g: call.on(g, there_and_back_by("push")))
    assert all(torch.equal(out, right) for out, right in zip(outs, call.right, strict=True))
    with pytest.raises(FarAccessError, match=r"order\[.*\]\.at\(source\) may be on another node"):
        lane.run(lambda g: call.on(g, there_and_back_by("pull")))


def test_a_product_of_them_has_no_descriptors_and_no_copy_engine_brings_them() -> None:
    schedule, at = SCHEDULES[picked_product], {"world": 1, "sizes": dict.fromkeys("MSKN", 32)}
    with pytest.raises(FormError, match="multiply loads blocks of x that no descriptor describes"):
        picked_product.lowered_at(schedule, target=FORMS["sm_90+warps"], dtypes="bf16", **at)
    assert "tl.load(x + " in picked_product.lowered_at(schedule, target=CPU, **at)[0].source

    engine = tk.Schedule(pick=tk.CopyEngine(tile=(16, None)))
    with pytest.raises(ScheduleError, match="rows that integers pick, and the host that enqueues the copy does not"):
        picked.check(engine, world=1, M=32, S=32, N=32)


def test_a_call_takes_integers_alone() -> None:
    with pytest.raises(DtypeError, match=r"order has dtype torch\.float32; its integers are int32 or int64"):
        small_world(1).run(lambda g: picked(torch.ones(4, 16), torch.ones(4), group=g, schedule=SCHEDULES[picked]))


# ---- what is not understood

PROGRAM = """
@tk.tile
def role(t, x, order, table, floats, out):
    {body}

@tk.program
def program(x: tk.Local("M", "N"), order: tk.Local("S", dtype="int32"), table: tk.Local("S", "N", dtype="int32"),
            floats: tk.Local("S"), out: tk.Local("S", "N")):
    made, numbers = tk.local("S", "N"), tk.local("S", dtype=order)
    make[tk.tiles(made)](x, made)
    count[tk.tiles(order)](order, numbers)
    role[tk.tiles(out)](x, order, table, floats, out{more})

@tk.tile
def make(t, x, made):
    tk.notify(made[t].store(0.0))

@tk.tile
def count(t, order, numbers):
    tk.notify(tk.copy(order[t], numbers[t]))

schedule = tk.Schedule(make=tk.SMs(1, tile=(16, 16)), count=tk.SMs(1, tile=(16,)), role=tk.SMs(1, tile=(16, 16)))

def main():
    return program.check(schedule, world=1, M=32, S=32, N=32)
"""


wrong = partial(of_role, PROGRAM)


WRONG = [
    wrong("floats", DtypeError, "tk.copy(x[floats[t.rows], t.cols], out[t])  # <-", "floats[S[S_lo:+16]] picks rows",
          "is float32", "int32 or int64", "dtype=tl.int32"),
    wrong("a matrix of integers", DimensionError, "a = x[table[t]].load()  # <-", "is of 2 dimensions",
          "one row of integers"),
    wrong("columns", DimensionError, "a = x[:, order[t.rows]].load()  # <-", "no index of dimension 1 of x",
          "the first dimension"),
    wrong("integers that are picked", DimensionError, "a = x[order[order[t.rows]]].load()  # <-",
          "itself picked by integers"),
    wrong("picked twice", ViewError, "a = x[order[t.rows]][order[t.rows]].load()  # <-", "rows are picked once"),
    wrong("picked, then cut", ViewError, "a = x[order[t.rows]][t.rows].load()  # <-", "they are taken whole"),
    wrong("stored to", ViewError, "out[order[t.rows], t.cols].store(0.0)  # <-", "only read"),
    wrong("copied to", ViewError, "tk.copy(x[order[t.rows], t.cols], out[order[t.rows], t.cols])  # <-", "only read"),
    wrong("waited for", ViewError, "a = tk.wait(made[order[t.rows]])  # <-", "wait for all that they are picked from",
          takes="made"),
    wrong("read without a wait", UnguardedReadError, "tk.copy(made[order[t.rows], t.cols], out[t])  # <-",
          "read without a wait", takes="made"),
    wrong("by integers without a wait", UnguardedReadError, "tk.copy(x[numbers[t.rows], t.cols], out[t])  # <-",
          "read without a wait", takes="numbers"),
    wrong(
        "a copy of another shape", DimensionError, "tk.copy(x[order[t.rows]], out[t])  # <-",
        "another range along N: a copy keeps coordinates",
    ),
    wrong("of no block", DimensionError, "tk.copy(x[t.rows, order], out[t])  # <-", "order is no index of a view"),
    wrong("cut into tiles", TileSizeError, "tk.copy(x[order[:], t.cols], out[t])  # <-", "takes all of S", "write t.S"),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_rows_that_integers_pick(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_the_part_of_a_rank_is_said_of_what_is_whole() -> None:
    @tk.tile
    def whole(t: Any, x: Any, out: Any) -> None:
        tk.copy(x[t].at(0), out[t])

    @tk.program
    def wrong_part(x: tk.Sharded("M", "N"), out: tk.Sharded("M", "N")) -> None:  # type: ignore[valid-type]
        whole[tk.tiles(x)](x, out)

    with pytest.raises(HomeError, match=re.escape("for the part that a rank has of one that is sharded, x[:, ...].at")):
        wrong_part.check(tk.Schedule(whole=TILES), world=2, M=32, N=16)
