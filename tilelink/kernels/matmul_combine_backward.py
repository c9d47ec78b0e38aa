"""Backward of grouped GEMM and combine, in one kernel. Gradients of tokens go to the experts of their rows once, for
both gradients. A tile of the gradient of rows begins when its rows are here; a tile of the gradient of an expert's
weight begins when all rows of the expert are here."""

import triton.language as tl

import tilelink as tk
from tilelink.kernels.dispatch_matmul import matmul
from tilelink.kernels.expert_weight_gradient import weight_gradient


@tk.tile
def dispatch(t, dout, order, scale, grads):
    """Bring the gradients of one source's rows to the home of their expert: of each that of its token, times its
    `scale`."""
    block = dout[order[t.sent], t.cols].load()
    tk.notify(grads[t].store(block if scale is None else scale[t.sent].load()[:, None] * block.to(tl.float32)))


@tk.program
def matmul_combine_backward(
    dout: tk.Sharded("tokens", "N"),
    weight: tk.Local("experts", "N", "K"),
    route: tk.Route("sent", "routed", "experts"),
    order: tk.Sharded("sent", dtype=tl.int32),
    rows: tk.Sharded("routed", "K"),
    drows: tk.Sharded("routed", "K"),
    dweight: tk.Local("experts", "N", "K"),
    scale: tk.Sharded("sent", dtype=tl.float32) = None,
):
    """drows = grads times the weight of the expert; dweight[expert] = the transpose of the expert's grads, times its
    rows. Here grads[row] is dout of the row's token, times `scale` of the row (1 if left out), for each row that is
    routed to the experts of this rank. order[row]: the token of a row that this rank sends, or -1 for none; these rows
    are in the order of all experts."""
    grads = tk.sharded("routed", "N")
    dispatch[tk.tiles(route, dout.cols)](dout, order, scale, grads)
    matmul.named("input_gradient")[tk.tiles(route.experts, drows.cols)](grads, weight, drows)
    weight_gradient[tk.tiles(route.experts, dweight.N, dweight.K)](grads, rows, dweight, True)


push = tk.Schedule(
    dispatch=tk.SMs(16, tile=(32, 512), order=tk.ring, at="source"),
    input_gradient=tk.SMs(tile=(128, 256, 64), stages=3, warps=8),
    weight_gradient=tk.SMs(tile=(None, 256, 128, 64), stages=3, warps=8),
)
pull = push.changed(dispatch={"order": tk.own_rank_first, "at": "home"})
few = push.changed(  # for few rows of an expert
    dispatch={"tile": (16, 512)}, input_gradient={"tile": (16, 128, 128), "stages": 5}
)
