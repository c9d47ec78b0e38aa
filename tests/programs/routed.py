"""Programs with a route: rows go by expert, on the way that makes them, on the one that takes them, or on both."""

import triton.language as tl

import tilelink as tk
from tests.programs.gathered import take

ROWS, COUNTS = tk.Sharded("R", "K"), tk.Route("S", "R", "E")


@tk.tile
def make(t, x, rows):
    tk.notify(rows[t].store(x[t].load()))


@tk.tile
def add_up(t, rows, out):
    """In each row of a tile, the sum of its rows."""
    total = tl.zeros(t.shape, tl.float32)
    for step in tk.steps(t.rows):
        total += tl.sum(tk.wait(rows[step, t.cols]).load(), 0)[None, :]
    out[t].store(total)


@tk.tile
def add_up_all(t, rows, out):
    """In each row of a tile, the sum of the rows of all ranks."""
    total = tl.zeros(t.shape, tl.float32)
    for step in tk.steps(rows.R):
        total += tl.sum(tk.wait(rows[step, t.cols]).load(), 0)[None, :]
    out[t].store(total)


@tk.program
def made_by_experts(x: ROWS, sent: tk.Sharded("S", "K"), weight: tk.Local("E", "K"), route: COUNTS, out: ROWS):
    rows = tk.sharded("R", "K")
    make[tk.tiles(route.experts, x.cols)](x, rows)
    take[tk.tiles(route, x.cols)](rows, out)


@tk.program
def added_by_experts(x: ROWS, sent: tk.Sharded("S", "K"), weight: tk.Local("E", "K"), route: COUNTS, out: ROWS):
    rows = tk.sharded("R", "K")
    make[tk.tiles(route, x.cols)](x, rows)
    add_up[tk.tiles(route.experts, x.cols)](rows, out)


@tk.program
def made_and_added_by_experts(
    x: ROWS, sent: tk.Sharded("S", "K"), weight: tk.Local("E", "K"), route: COUNTS, out: ROWS
):
    rows = tk.sharded("R", "K")
    make[tk.tiles(route.experts, x.cols)](x, rows)
    add_up[tk.tiles(route.experts, x.cols)](rows, out)


@tk.program
def added_of_all_ranks(
    x: ROWS, sent: tk.Sharded("S", "K"), weight: tk.Local("E", "K"), route: COUNTS, out: tk.Local("E", "K")
):
    rows = tk.sharded("R", "K")
    make[tk.tiles(route.experts, x.cols)](x, rows)
    add_up_all[tk.tiles(out)](rows, out)


@tk.tile
def twice(t, x, out):
    out[t.R, t.K].store(2 * x[t.R, t.K].load())


@tk.program
def columns_before_rows(x: ROWS, sent: tk.Sharded("S", "K"), weight: tk.Local("E", "K"), route: COUNTS, out: ROWS):
    twice[tk.tiles(out.K, route.experts)](x, out)


# ---- what programs with one role more launch first


@tk.tile
def move(t, x, rows):
    tk.notify(tk.copy(x[t], rows[t]))


@tk.tile
def by_expert(t, x, rows):
    tk.notify(tk.copy(x[t.rows], rows[t.rows]))
