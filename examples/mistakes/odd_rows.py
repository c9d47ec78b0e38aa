"""Adds up the rows of each tile, a pair at a time. There is a mistake in it: see README.md."""

import triton.language as tl

import tilelink as tk


@tk.tile
def gather(t, x, full):
    """Bring one tile of x from its home to one reader."""
    tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def add_up(t, full, out):
    """One tile of out: in each row the sum of the tile's rows."""
    rows = tk.wait(full[t])
    total = tl.zeros(t.shape, tl.float32)
    for pair in tk.steps(full.rows, stop=(t.rows.stop + 1) // 2 * 2):  # rounds up to a pair: if odd, one row too many
        if pair.start >= t.rows.start:
            total += tl.sum(rows[pair].load(), 0)[None, :]
    out[t].store(total)


@tk.program
def sums_of_tiles(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K")  # every rank's copy of all rows
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    add_up[tk.tiles(out)](full, out)


push = tk.Schedule(gather=tk.SMs(2, tile=(16, 32), at="home"), add_up=tk.SMs(2, tile=(16, 32, 2)))
