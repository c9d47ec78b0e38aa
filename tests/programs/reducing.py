"""Sums over ranks: around a ring, through a buffer that rounds, and in places that are one for all or one for each."""

import triton.language as tl

import tilelink as tk
from tilelink.kernels.matmul_reduce_scatter import matmul

# ---- the sum of a tile comes round, each rank waits for the one after it


@tk.tile
def ring(t, partial, passed, out):
    """Add this rank's part to the sum that comes round; the rank after the home starts it, the home ends it."""
    acc = tk.wait(partial[t]).load()
    if (tk.rank() - t.home - 1) % tk.world():
        acc += tk.wait(passed[t]).load()
    if tk.rank() == t.home:
        out[t].store(acc)
    else:
        tk.notify(passed[t].at((tk.rank() + 1) % tk.world()).store(acc))


@tk.program
def ring_reduce_scatter(x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Sharded("M", "N")):
    partial, passed = tk.local("M", "N"), tk.local("M", "N")
    matmul[tk.tiles(partial)](x, weight, partial)
    ring[tk.tiles(passed)](partial, passed, out)


# ---- partial sums are sent from the epilogue, or by a role of their own: they are rounded on either way


@tk.tile
def multiply(t, x, weight, partial):
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(x.cols):
        acc = tl.dot(x[t.rows, k].load(), weight[k, t.cols].load(), acc, input_precision="ieee")
    tk.notify(partial[t].store(acc * 1.5))


@tk.tile
def deal(t, partial, own, inbox):
    """A rank's partial sum stays where it is, or goes to the home of its rows, in a loop of one step."""
    mine = tk.wait(partial[t].at(t.source))
    if t.home == t.source:
        tk.notify(tk.copy(mine, own[t]))
    else:
        for k in range(1):
            tk.notify(tk.copy(mine, inbox[t.source + k, t]))


@tk.tile
def add_up(t, own, inbox, out):
    acc = tk.wait(own[t]).load().to(tl.float32)
    for source in tk.ranks():
        if source != tk.rank():
            acc += tk.wait(inbox[source, t]).load()
    out[t].store(acc / 1.5)


@tk.program
def rounded_reduce_scatter(x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Sharded("M", "N")):
    """As the example, with partial sums in the dtype of x."""
    partial = tk.local("M", "N")
    own = tk.sharded("M", "N")
    inbox = tk.sharded(tk.ranks, "M", "N", axis=1)
    multiply[tk.tiles(partial)](x, weight, partial)
    deal[tk.tiles(out, source=tk.ranks)](partial, own, inbox)
    add_up[tk.tiles(out)](own, inbox, out)


multiplied = tk.SMs(tile=(16, 16, 16))
push = tk.Schedule(multiply=multiplied, deal=tk.SMs(2, tile=(16, 16), at="source"), add_up=tk.SMs(tile=(16, 16)))
fused = tk.Schedule(multiply=multiplied, deal=tk.Epilogue("multiply"), add_up=tk.SMs(tile=(16, 16)))


# ---- partial sums meet in one place, or have one each


@tk.tile
def add_here(t, x, sums):
    """All ranks store to one place: the one that comes last wins."""
    tk.notify(sums[t].store(x[t].load()))


@tk.tile
def take_sum(t, sums, out):
    tk.copy(tk.wait(sums[t]), out[t])


@tk.program
def one_place_for_all(x: tk.Local("M", "K"), out: tk.Sharded("M", "K")):
    sums = tk.sharded("M", "K")
    add_here[tk.tiles(x)](x, sums)
    take_sum[tk.tiles(out)](sums, out)


@tk.tile
def put_beside(t, x, parts):
    tk.notify(parts[tk.rank(), t].store(x[t].load()))


@tk.tile
def add_parts(t, parts, out):
    acc = tl.zeros(t.shape, tl.float32)
    for source in tk.ranks():
        acc += tk.wait(parts[source, t]).load()
    out[t].store(acc)


@tk.program
def a_place_for_each(x: tk.Local("M", "K"), out: tk.Sharded("M", "K")):
    parts = tk.sharded(tk.ranks, "M", "K", axis=1)
    put_beside[tk.tiles(x)](x, parts)
    add_parts[tk.tiles(out)](parts, out)
