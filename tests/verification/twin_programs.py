"""Tile programs with mistakes that real projects shipped, and that no other test needs."""

import triton.language as tl

import tilelink as tk
from tests.programs.gathered import gather, gathering
from tests.programs.reducing import take_sum

# ---- acquire missing


@tk.tile
def take_unasked(t, full, out):
    out[t].store(full[t].load())


read_without_wait = gathering("read_without_wait", gather, take_unasked)


# ---- partial sums


@tk.tile
def add_atomically(t, x, sums):
    tl.atomic_add(sums[t], x[t].load())
    tk.notify(sums[t])


@tk.program
def atomics(x: tk.Local("M", "K"), out: tk.Sharded("M", "K")):
    sums = tk.sharded("M", "K")
    add_atomically[tk.tiles(x)](x, sums)
    take_sum[tk.tiles(out)](sums, out)
