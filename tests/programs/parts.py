"""A program that reads what ranks sent of their parts, a part at a time."""

import triton.language as tl

import tilelink as tk


@tk.tile
def bring(t, x, full):
    tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def add_picked(t, full, order, out):
    """The sum over the ranks of the row of each that integers pick, counted in its part."""
    acc = tl.zeros(t.shape, tl.float32)
    for r in tk.ranks():
        here = tk.wait(full[tk.part(r), t.cols])
        acc += here[order[t.rows, r], :].load()
    out[t].store(acc)


@tk.program
def picked_of_parts(
    x: tk.Sharded("M", "N"), order: tk.Local("S", tk.ranks, dtype=tl.int32), out: tk.Local("S", "N")
):  # fmt: skip
    full = tk.local("M", "N")
    bring[tk.tiles(x, reader=tk.ranks)](x, full)
    add_picked[tk.tiles(out)](full, order, out)
