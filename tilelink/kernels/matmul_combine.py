"""MoE layer 1, grouped GEMM and combine: experts multiply their rows, products go back, each token adds up its rows."""

import triton.language as tl

import tilelink as tk
from tilelink.kernels.tiles import product, sum_of_rows


@tk.tile
def matmul(t, rows, weight, made):
    """One tile of an expert's rows, times its weight."""
    acc = product(rows[t.rows, :], weight[t.expert, :, t.cols], rows.cols, t.shape)
    made[t].store(acc)
    tk.notify(made[t])


@tk.tile
def combine(t, made, back):
    """Bring rows of one expert back to their source, as soon as those are made."""
    tk.notify(tk.copy(tk.wait(made[t]), back[t]))


@tk.tile
def keep(t, back, kept):
    """Rows of one expert, as they came back."""
    tk.copy(tk.wait(back[:, t.cols].at(tk.rank()))[t.sent, :], kept[t])


@tk.tile
def add_up(t, back, place, out, weights=None):
    """One tile of tokens, as soon as all rows are back."""
    out[t].store(sum_of_rows(t, tk.wait(back[:, t.cols].at(tk.rank())), place, weights))


@tk.program
def matmul_combine(
    rows: tk.Sharded("routed", "K"),
    weight: tk.Local("experts", "K", "N", contiguous="K"),
    route: tk.Route("sent", "routed", "experts"),
    place: tk.Sharded("tokens", "top", dtype=tl.int32),
    out: tk.Sharded("tokens", "N"),
    weights: tk.Sharded("tokens", "top", dtype=tl.float32) = None,
    kept: tk.Sharded("sent", "N") = None,
):
    """out[token] = the weighted sum of the token's rows, each first multiplied by the weight of its expert.

    The sum is made in float32, in the order of the token's choices. weights: 1 if left out. rows: the rows routed to
    the experts of this rank, by expert and source, then padding. place[token, choice]: the number of the row among the
    rows that this rank sent, in the order of all experts, or -1. kept: optional, these rows as they came back.
    rows and weight have one dtype, float32, float16 or bfloat16. Raises ArgumentError, DtypeError, CapacityError and
    others: see `tilelink.kernels`."""
    made, back = tk.sharded("routed", "N"), tk.sharded("sent", "N")
    matmul[tk.tiles(route.experts, made.cols)](rows, weight, made)
    combine[tk.tiles(route, made.cols)](made, back)
    if kept is not None:
        keep[tk.tiles(route, made.cols)](back, kept)
    add_up[tk.tiles(out)](back, place, out, weights)


gemm = tk.SMs(tile=(128, 256, 64), stages=3, warps=8)
sent = tk.SMs(16, tile=(32, None), order=tk.own_rank_first, at="home")
sums = tk.SMs(8, tile=(16, 512))
kept_rows = tk.SMs(4, tile=(32, None), order=tk.ring, at="source")
push = tk.Schedule(matmul=gemm, combine=sent, keep=kept_rows, add_up=sums)
pull = push.changed(combine={"at": "source"})
columns = push.changed(  # COMET (arXiv 2502.19811, section 3): sums of the first columns leave early
    matmul={"order": tk.columns_first(4)},
    combine={"tile": (32, 1024), "order": tk.columns_first(1)},
    add_up={"order": tk.columns_first(2)},
)
lines = {"tile": (16, None)}
few = push.changed(  # for few rows of an expert
    matmul={"tile": (16, 128, 128), "stages": 5}, combine=lines, keep=lines, add_up={"tile": (16, 128)}
)
