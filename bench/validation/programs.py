"""Kernels that others publish and the library does not have, as programs, so that models can predict them."""

import triton.language as tl

import tilelink as tk


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
