"""Backward of AllGather-GEMM, in one kernel. The gradient of x is a GEMM-ReduceScatter. Meanwhile the rows of x are
gathered again for the gradients of the weights. Tiles of these gradients fill the SMs while partial sums travel.

Sums over the weights, the ranks and the rows are made in a fixed order, so every run gives the same bits. Partial
sums travel in the dtype of `dx`.
"""

import triton.language as tl

import tilelink as tk
from tilelink.kernels.all_gather_matmul import by_engine, gather, in_bulk
from tilelink.kernels.matmul_reduce_scatter import as_they_are_made, reduce, send
from tilelink.kernels.tiles import bias_gradient, product, weight_gradient


@tk.tile
def input_gradient(t, dys, weights, partial):
    """One tile of this rank's part of the gradient of x: a sum over the weights."""
    acc = tl.zeros(t.shape, tl.float32)
    for dy, weight in tk.each(dys, weights):
        acc = product(dy[t.rows, :], weight[t.cols, :], dy.cols, t.shape, acc, transposed=True)
    tk.notify(partial[t].store(acc))


@tk.program
def all_gather_matmul_backward(
    dy: tk.Each(tk.Local("M", "N")),
    weight: tk.Each(tk.Local("K", "N", contiguous="K")),
    x: tk.Sharded("M", "K"),
    dx: tk.Sharded("M", "K"),
    dweight: tk.Each(tk.Local("K", "N", contiguous="K")),
    dbias: tk.Each(tk.Local("N")) = None,
):
    """dx = reduce_scatter(dy @ weight^T), dweight = all_gather(x)^T @ dy, dbias = the sum of dy over its rows."""
    full = tk.local("M", "K", dtype=x)
    partial = tk.local("M", "K", dtype=dx)
    inbox = tk.sharded(tk.ranks, "M", "K", axis=1, dtype=dx)
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    input_gradient[tk.tiles(partial)](dy, weight, partial)
    send[tk.tiles(dx, source=tk.ranks)](partial, inbox)
    for d, dw in tk.each(dy, dweight):
        weight_gradient[tk.tiles(dw)](full, d, dw)
    for d, db in tk.each(dy, dbias):
        if db is not None:
            bias_gradient[tk.tiles(db)](d, db)
    reduce[tk.tiles(dx)](inbox, dx)


partial_gemm = tk.SMs(tile=(128, 128, 64), order=tk.grouped(8, tk.next_rank_first), stages=3, warps=8)
gemm = tk.SMs(tile=(128, 256, 64), order=tk.grouped(8), stages=3, warps=8)
add, columns = tk.SMs(tile=(64, 256)), tk.SMs(tile=(64, 256))
# More SMs gather rows than send sums: gradients of weights wait for rows, and fill the SMs while sums travel.
sent = tk.SMs(8, tile=(128, 512), order=tk.next_rank_first, at="source", stages=6, via="tma", own="stored")
epilogue = tk.Epilogue("input_gradient")
push = tk.Schedule(
    gather=in_bulk, input_gradient=partial_gemm, send=sent, weight_gradient=gemm, bias_gradient=columns, reduce=add
)
pull = push.changed(
    gather={"order": tk.own_rank_first, "at": "reader"}, send={"order": as_they_are_made, "at": "home"}
)
fused = tk.Schedule(
    gather=in_bulk, input_gradient=partial_gemm, send=epilogue, weight_gradient=gemm, bias_gradient=columns, reduce=add
)
engine = tk.Schedule(
    gather=by_engine, input_gradient=partial_gemm, send=epilogue,
    weight_gradient=tk.SMs(tile=(128, 128, 64), order=tk.grouped(8), stages=3, warps=8), bias_gradient=columns,
    reduce=add,
)  # fmt: skip
operator = "all_gather_linear_backward"
