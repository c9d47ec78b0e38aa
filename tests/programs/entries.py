"""Programs that read the entries along a dimension: one by one, as they come, or all in one block."""

from __future__ import annotations

import triton.language as tl

import tilelink as tk


@tk.tile
def give(t, x, sums):
    tk.notify(sums[t].store(x[t].load() * 2))


@tk.tile
def add_up(t, sums, out):
    acc = tl.zeros(t.shape, tl.float32)
    for i in tk.steps(sums.S, by=1):
        here = tk.wait(sums[i, t.M, t.N])
        acc += tl.sum(here.load(), 0)
    out[t].store(acc)


@tk.program
def sum_of_entries(x: tk.Local("S", "M", "N"), out: tk.Local("M", "N")):
    sums = tk.local("S", "M", "N")
    give[tk.tiles(sums)](x, sums)
    add_up[tk.tiles(out)](sums, out)


@tk.tile
def add_row(t, x, out):
    out[t].store(tl.sum(x[t.M, :].load(), 1))


@tk.tile
def double_row(t, x, doubled):
    doubled[t.M, :].store(x[t.M, :].load() * 2)


@tk.program
def row_sums(x: tk.Local("M", "Q"), out: tk.Local("M"), doubled: tk.Local("M", "Q")):
    add_row[tk.tiles(out)](x, out)
    double_row[tk.tiles(doubled.M)](x, doubled)


one_by_one = tk.Schedule(give=tk.SMs(2, tile=(1, 16, 16)), add_up=tk.SMs(2, tile=(16, 16)))
at_once = tk.Schedule(**dict.fromkeys(["add_row", "double_row"], tk.SMs(2, tile=(16,), whole={"Q": 16})))
