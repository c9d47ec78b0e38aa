"""Programs that read a neighbour's input where there is a neighbour: the rank behind the last one is none."""

import triton.language as tl

import tilelink as tk


@tk.tile
def add_both(t, x, out):
    """One tile of x, and of those of both neighbours."""
    acc = tl.zeros(t.shape, tl.float32)
    acc += x[t].load()
    if tk.rank() > 0:
        acc += x[t].at(tk.rank() - 1).load()
    if tk.rank() + 1 < tk.world():
        acc += x[t].at(tk.rank() + 1).load()
    out[t].store(acc)


@tk.tile
def take_next(t, x, out):
    """One tile of the next rank's x, or else of the own."""
    if tk.rank() + 1 < tk.world():
        tk.copy(x[t].at(tk.rank() + 1), out[t])
    else:
        tk.copy(x[t], out[t])


@tk.tile
def add_before(t, x, out):
    """One tile of x, and for each rank before this one a tile of the last of them."""
    acc = tl.zeros(t.shape, tl.float32)
    acc += x[t].load()
    for _ in range(tk.rank()):
        acc += x[t].at(tk.rank() - 1).load()
    out[t].store(acc)


@tk.program
def both_neighbours(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    """out = x of this rank and of both neighbours, added up."""
    add_both[tk.tiles(out)](x, out)


@tk.program
def next_one(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    """out = x of the next rank."""
    take_next[tk.tiles(out)](x, out)


@tk.program
def one_before(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    """out = x, and the x of the rank before as often as there are ranks before."""
    add_before[tk.tiles(out)](x, out)
