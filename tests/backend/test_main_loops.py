"""Main loops that wait for pieces and are not written as `tile_in_pieces` writes them: what begins a tile depends on
the tile, or there are two such loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton.language as tl

import tilelink as tk
from tilelink.backend.targets import TARGETS
from tilelink.frontend import ir
from tilelink.kernels.all_gather_matmul import gather


@tk.tile
def of_own_columns(t, full, weight, out):  # type: ignore[no-untyped-def]
    acc = tl.zeros((16, 16), tl.float32)
    for k in tk.steps(t.cols):
        rows = tk.wait(full[t.rows, k])
        acc = tl.dot(rows.load(), weight[k, :].load(), acc)
    out[t].store(tl.sum(acc, 1)[:, None] + tl.zeros(t.shape, tl.float32))


@tk.program
def starts_at_the_tile(x: tk.Sharded("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "K")):  # type: ignore[no-untyped-def]
    full = tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    of_own_columns[tk.tiles(out)](full, weight, out)


@tk.tile
def twice(t, full, done, weight, sums):  # type: ignore[no-untyped-def]
    rows = tk.wait(full[t.rows])
    tk.wait(done[t.rows])  # nobody reads what it returns: it orders the store
    acc = tl.full(t.shape, t.cols.start, tl.float32)
    for k in tk.steps(full.cols):
        acc = tl.dot(rows[:, k].load(), weight[k, t.cols].load(), acc)
    for k in tk.steps(full.cols):
        acc = tl.dot(rows[:, k].load(), weight[k, t.cols].load(), acc)
    tk.notify(sums[t].store(acc))


@tk.tile
def first(t, w0, sums, done):  # type: ignore[no-untyped-def]
    sums[t].store(w0[t].load())
    tk.notify(tk.copy(w0[t], done[t]))


@tk.tile
def take(t, sums, out):  # type: ignore[no-untyped-def]
    tk.copy(tk.wait(sums[t]), out[t])


@tk.program
def two_loops(x: tk.Sharded("M", "K"), weight: tk.Local("K", "N"), w0: tk.Local("M", "N"), out: tk.Local("M", "N")):  # type: ignore[no-untyped-def]
    full, sums, done = tk.local("M", "K"), tk.local("M", "N"), tk.local("M", "N")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    first[tk.tiles(sums)](w0, sums, done)
    twice[tk.tiles(sums)](full, done, weight, sums)
    take[tk.tiles(out)](sums, out)


one = tk.SMs(1, tile=(16, 16), warps=4)
rows = tk.SMs(1, tile=(16, 16), at="home", warps=4)
product = tk.SMs(1, tile=(16, 16, 16), warps=4, waits="pieces")
IN_STEPS = tk.Schedule(gather=rows, of_own_columns=tk.SMs(1, tile=(16, 64, 16), warps=4, whole={"N": 16}))
IN_PIECES = tk.Schedule(gather=rows, first=one, twice=product, take=one)
SIZES: dict[str, Any] = {"M": 32, "K": 192, "N": 16}
CASES = [(starts_at_the_tile, IN_STEPS), (two_loops, IN_PIECES)]


@pytest.mark.parametrize(("program", "schedule"), CASES, ids=lambda c: getattr(c, "name", ""))
def test_they_are_lowered_for_every_target(program: tk.Program, schedule: tk.Schedule) -> None:
    for target in TARGETS:
        assert program.show("triton", target=target, schedule=schedule, world=2, **SIZES)


@pytest.mark.parametrize(("program", "schedule"), CASES, ids=lambda c: getattr(c, "name", ""))
def test_they_are_safe_and_right(program: tk.Program, schedule: tk.Schedule) -> None:
    assert program.check(schedule, world=2, **SIZES).verdict == "safe"
    x, weight = torch.randint(-2, 3, (2, 16, 192)).float(), torch.randint(-2, 3, (192, 16)).float()
    given = [x, weight] if program is starts_at_the_tile else [x, weight, torch.full((32, 16), float("nan"))]
    outs = tk.CpuWorld(2).run(
        lambda g: program(given[0][g.rank], *given[1:], schedule=schedule, group=g)
    )
    full = x.reshape(32, 192)
    parts = (full.reshape(32, 3, 64)[..., None] * weight.reshape(3, 64, 16)).sum((2, 3)).repeat_interleave(64, 1)
    right = parts if program is starts_at_the_tile else 2 * full @ weight
    assert all(torch.equal(out, right) for out in outs)


def test_a_wait_that_nobody_reads_stays() -> None:
    bound = two_loops.bind(IN_PIECES)
    waits = [s for s in ir.walk(bound.role("twice").body) if isinstance(s, ir.Wait)]
    assert [v.tensor for w in waits for v in w.views] == ["done", "full", "full"]
