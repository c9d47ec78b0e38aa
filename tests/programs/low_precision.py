"""all_gather_matmul as it should not be written: the sum is kept in the precision of the operands."""

import triton.language as tl

import tilelink as tk
from tilelink.kernels.all_gather_matmul import gather, pull, push

__all__ = ["all_gather_matmul_low", "pull", "push"]


@tk.tile
def matmul(t, full, weight, out, bias):
    rows = tk.wait(full[t.rows])
    acc = tl.zeros(t.shape, out.dtype)
    for k in tk.steps(full.cols):
        acc = acc + tl.dot(rows[:, k].load(), weight[k, t.cols].load()).to(out.dtype)
    if bias is not None:
        acc = acc + bias[t.cols].load()[None, :]
    out[t].store(acc)


@tk.program
def all_gather_matmul_low(
    x: tk.Sharded("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N"), bias: tk.Local("N") = None
):
    full = tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    matmul[tk.tiles(out)](full, weight, out, bias)
