"""Backward of GEMM-ReduceScatter, in one kernel: the rows of dy are gathered once, for both gradients. Tiles of the
gradient of x begin as soon as their rows are here; the gradient of the weight goes over all rows as they come.

Sums are made in a fixed order, so every run gives the same bits. All ranks share one bias and its gradient dbias: each
rank sums all rows of dy, and gets the same bits. The operator `tilelink.ops.linear_reduce_scatter` instead gives each
rank the sum of its own rows of dy, as torch does for replicated parameters. Summed over the ranks, that is dbias.
"""

import tilelink as tk
from tilelink.kernels.all_gather_matmul import by_engine, gather, in_bulk
from tilelink.kernels.tiles import bias_gradient, product, weight_gradient


@tk.tile
def input_gradient(t, full, weight, dx):
    """One tile of the gradient of x, as soon as its rows of dy are here."""
    rows = tk.wait(full[t.rows])
    acc = product(rows, weight[t.cols, :], full.cols, t.shape, transposed=True)
    dx[t].store(acc)


@tk.program
def matmul_reduce_scatter_backward(
    dy: tk.Sharded("M", "N"),
    weight: tk.Local("K", "N", contiguous="K"),
    x: tk.Local("M", "K"),
    dx: tk.Local("M", "K"),
    dweight: tk.Local("K", "N", contiguous="K"),
    dbias: tk.Local("N") = None,
):
    """dx = all_gather(dy) @ weight^T, dweight = x^T @ all_gather(dy), dbias = the sum of all rows of dy."""
    full = tk.local("M", "N")
    gather[tk.tiles(dy, reader=tk.ranks)](dy, full)
    input_gradient[tk.tiles(dx)](full, weight, dx)
    weight_gradient[tk.tiles(dweight)](full, x, dweight, True)
    if dbias is not None:
        bias_gradient[tk.tiles(dbias)](full, dbias, True)


input_gemm = tk.SMs(tile=(128, 256, 64), order=tk.grouped(4, tk.own_rank_first), stages=3, warps=8)
weight_gemm = tk.SMs(tile=(128, 256, 64), order=tk.grouped(8), stages=3, warps=8)
columns = tk.SMs(tile=(64, 256))
# Own rows are copied: with one more descriptor, kernels for Hopper spill registers on Triton 3.7 and 3.9.
push = tk.Schedule(
    gather=in_bulk, input_gradient=input_gemm, weight_gradient=weight_gemm, bias_gradient=columns
).changed(gather={"own": "copied"})
pull = push.changed(gather={"order": tk.own_rank_first, "at": "reader"})
to_all = {"count": 8, "tile": (128, 256), "order": tk.own_rank_first, "via": "multicast"}
multicast = push.changed(gather=to_all)
engine = tk.Schedule(
    gather=by_engine, input_gradient=input_gemm, weight_gradient=weight_gemm, bias_gradient=columns
)
pieces = push.changed(gather={"tile": (128, 1024)}, input_gradient={"waits": "pieces"})
operator = "linear_reduce_scatter_backward"
