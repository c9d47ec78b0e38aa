"""Backward of dispatch and grouped GEMM, in one kernel. The gradients of rows go back to their tokens as soon as they
are made. Meanwhile the gradients of weights, which need nothing from other ranks, fill the SMs."""

import triton.language as tl

import tilelink as tk
from tilelink.kernels.expert_weight_gradient import weight_gradient
from tilelink.kernels.matmul_combine import add_up, combine, matmul


@tk.program
def dispatch_matmul_backward(
    dout: tk.Sharded("routed", "N"),
    weight: tk.Local("experts", "N", "K"),
    route: tk.Route("sent", "routed", "experts"),
    place: tk.Sharded("tokens", "top", dtype=tl.int32),
    rows: tk.Sharded("routed", "K"),
    dx: tk.Sharded("tokens", "K"),
    dweight: tk.Local("experts", "N", "K"),
):
    """dx[token] = the sum over the token's rows of dout times the weight of the row's expert; dweight[expert] = the
    transpose of the expert's rows of dout, times its rows. The sum of dx is made in float32, in the order of the
    token's choices. place: see `matmul_combine`."""
    made, back = tk.sharded("routed", "K"), tk.sharded("sent", "K")
    matmul.named("input_gradient")[tk.tiles(route.experts, made.cols)](dout, weight, made)
    combine[tk.tiles(route, made.cols)](made, back)
    weight_gradient[tk.tiles(route.experts, dweight.N, dweight.K)](dout, rows, dweight)
    add_up[tk.tiles(dx)](back, place, dx)


push = tk.Schedule(
    input_gradient=tk.SMs(tile=(128, 256, 64), stages=3, warps=8),
    combine=tk.SMs(8, tile=(32, None), order=tk.own_rank_first, at="home"),
    weight_gradient=tk.SMs(tile=(None, 128, 256, 64), stages=3, warps=8),
    add_up=tk.SMs(tile=(16, 512)),
)
pull = push.changed(combine={"count": 16, "at": "source"})
few = push.changed(  # for few rows of an expert
    input_gradient={"tile": (16, 128, 128), "stages": 5}, combine={"tile": (16, None)}, add_up={"tile": (16, 128)}
)
