"""MoE layer 1, grouped GEMM and combine: each expert multiplies its rows, and these go back where they came from."""

import tilelink as tk
from tilelink.kernels.tiles import product


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
def keep(t, back, out):
    """One tile of out, as soon as its rows are back."""
    tk.copy(tk.wait(back[t]), out[t])


@tk.program
def matmul_combine(
    rows: tk.Sharded("routed", "K"),
    weight: tk.Local("experts", "K", "N", contiguous="K"),
    route: tk.Route("sent", "routed", "experts"),
    out: tk.Sharded("sent", "N"),
):
    """out = the rows that this rank sent to experts, in the order of all experts, each times the weight of its expert.
    rows: those that are routed to the experts of this rank, by expert and source. Behind them there may be room."""
    made, back = tk.sharded("routed", "N"), tk.sharded("sent", "N")
    matmul[tk.tiles(route.experts, made.cols)](rows, weight, made)
    combine[tk.tiles(route, made.cols)](made, back)
    keep[tk.tiles(route, out.cols)](back, out)


gemm = tk.SMs(tile=(128, 256, 64), stages=3, warps=8)
copies = tk.SMs(6, tile=(32, None), order=tk.ring, at="source")
sent = tk.SMs(16, tile=(32, None), order=tk.own_rank_first, at="home")
push = tk.Schedule(matmul=gemm, combine=sent, keep=copies)
pull = push.changed(combine={"at": "source"})
lines = {"tile": (16, None)}
few = push.changed(matmul={"tile": (16, 128, 128), "stages": 5}, combine=lines, keep=lines)  # rows of an expert
