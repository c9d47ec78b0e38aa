"""GEMM alone, on every rank's own tensors."""

import tilelink as tk
from tilelink.kernels.tiles import finished, product


@tk.tile
def multiply(t, x, weight, out, bias):
    """One tile of out."""
    acc = product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)
    acc = finished(acc, t.cols, bias)
    out[t].store(acc)


@tk.program
def matmul(
    x: tk.Local("M", "K"),
    weight: tk.Local("K", "N"),
    out: tk.Local("M", "N"),
    bias: tk.Local("N") = None,
):
    """out = x @ weight + bias on every rank. x and weight have one dtype, float32, float16 or bfloat16.
    Raises ArgumentError, DtypeError and others: see `tilelink.kernels`."""
    multiply[tk.tiles(out)](x, weight, out, bias)


gemm = tk.Schedule(multiply=tk.SMs(tile=(128, 256, 64), order=tk.grouped(8), stages=3, warps=8))
