"""GEMM alone, on every rank's own tensors."""

import triton.language as tl

import tilelink as tk


@tk.tile
def multiply(t, x, weight, out, bias):
    """One tile of out."""
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(x.cols):
        acc = tl.dot(x[t.rows, k].load(), weight[k, t.cols].load(), acc, input_precision="ieee")
    if bias is not None:
        acc += bias[t.cols].load()[None, :]
    out[t].store(acc)


@tk.program
def matmul(
    x: tk.Local("M", "K"),
    weight: tk.Local("K", "N"),
    out: tk.Local("M", "N"),
    bias: tk.Local("N") = None,
):
    """out = x @ weight + bias on every rank."""
    multiply[tk.tiles(out)](x, weight, out, bias)


gemm = tk.Schedule(multiply=tk.SMs(tile=(128, 256, 64), order=tk.grouped(8), stages=3, warps=8))
