"""MoE layer 0, dispatch and grouped GEMM: tokens go to the ranks of their experts; each expert multiplies its rows."""

import triton.language as tl

import tilelink as tk
from tilelink.kernels.tiles import product


@tk.tile
def dispatch(t, x, order, rows):
    """Bring rows of one source, each a token of it, to the home of their expert."""
    tk.notify(tk.copy(x[order[t.sent], t.cols], rows[t]))


@tk.tile
def matmul(t, rows, weight, out, gathered=None):
    """One tile of an expert's rows, as soon as those are here, from as many sources as they come from; the first of
    some rows keeps them, too."""
    here = tk.wait(rows[t.rows])
    if gathered is not None and t.cols.start == 0:  # before the product, whose sum fills the registers
        for k in tk.steps(rows.cols):
            tk.copy(here[:, k], gathered[t.rows, k])
    acc = product(here, weight[t.expert, :, t.cols], rows.cols, t.shape)
    out[t].store(acc)


@tk.program
def dispatch_matmul(
    x: tk.Sharded("tokens", "K"),
    weight: tk.Local("experts", "K", "N", contiguous="K"),
    route: tk.Route("sent", "routed", "experts"),
    order: tk.Sharded("sent", dtype=tl.int32),
    out: tk.Sharded("routed", "N"),
    gathered: tk.Sharded("routed", "K") = None,
):
    """out = the rows routed to the experts of this rank, by expert and source, each times the weight of its expert.
    x: the tokens of this rank. order[row]: the token of a row that this rank sends; these rows are in the order of all
    experts. order and out may be longer than the rows. gathered: optional, the rows themselves, in the dtype of x. x
    and weight have one dtype, float32, float16 or bfloat16. Raises ArgumentError, DtypeError, CapacityError and others:
    see `tilelink.kernels`."""
    rows = tk.sharded("routed", "K")
    dispatch[tk.tiles(route, x.cols)](x, order, rows)
    matmul[tk.tiles(route.experts, out.cols)](rows, weight, out, gathered)


gemm = tk.SMs(tile=(128, 256, 64), order=tk.grouped(4), stages=3, warps=8)
push = tk.Schedule(dispatch=tk.SMs(16, tile=(32, None), order=tk.ring, at="source"), matmul=gemm)
pull = tk.Schedule(dispatch=tk.SMs(16, tile=(32, None), order=tk.own_rank_first, at="home"), matmul=gemm)
few = push.changed(dispatch={"tile": (16, None)}, matmul={"tile": (16, 128, 128), "stages": 5})  # few rows an expert
