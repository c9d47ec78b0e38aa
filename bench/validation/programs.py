"""GEMM-ReduceScatter as others publish it, in our language: what the library does not have, but a model is held to."""

import triton.language as tl

import tilelink as tk


@tk.tile
def matmul(t, x, weight, partial):
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(x.cols):
        acc = tl.dot(x[t.rows, k].load(), weight[k, t.cols].load(), acc)
    tk.notify(partial[t].store(acc))


@tk.tile
def send(t, partial, inbox):
    """Bring one tile of one rank's partial sum to the home of its rows."""
    mine = tk.wait(partial[t].at(t.source))
    tk.notify(tk.copy(mine, inbox[t.source, t]))


@tk.tile
def reduce(t, inbox, out):
    """Add up what all ranks sent."""
    acc = tl.zeros(t.shape, tl.float32)
    for source in tk.ranks():
        acc += tk.wait(inbox[source, t]).load()
    out[t].store(acc)


@tk.program
def reduce_scatter(x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Sharded("M", "N")):
    """out = the rows of this rank of the sum over ranks of x @ weight."""
    partial, inbox = tk.local("M", "N"), tk.sharded(tk.ranks, "M", "N", axis=1)
    matmul[tk.tiles(partial)](x, weight, partial)
    send[tk.tiles(out, source=tk.ranks)](partial, inbox)
    reduce[tk.tiles(out)](inbox, out)


@tk.tile
def scattered_matmul(t, x, weight, inbox):
    """One tile of a partial sum, added to the sum at the home of its rows: here it is stored there, as many bytes."""
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(x.cols):
        acc = tl.dot(x[t.rows, k].load(), weight[k, t.cols].load(), acc)
    inbox[tk.rank(), t].store(acc)


@tk.program
def adding_scatter(x: tk.Local("M", "K"), weight: tk.Local("K", "N")):
    """GEMM-ReduceScatter whose stores add up at the home (ParallelKittens)."""
    inbox = tk.sharded(tk.ranks, "M", "N", axis=1)
    scattered_matmul[tk.tiles(x.rows, weight.cols)](x, weight, inbox)
