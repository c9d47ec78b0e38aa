"""MoE layer 1, grouped GEMM and combine: each expert multiplies its rows, and these go back where they came from."""

import triton.language as tl

import tilelink as tk


@tk.tile
def experts(t, rows, weight, made):
    """One tile of an expert's rows, times its weight."""
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(rows.cols):
        acc = tl.dot(rows[t.rows, k].load(), weight[t.expert, k, t.cols].load(), acc, input_precision="ieee")
    made[t].store(acc)
    tk.notify(made[t])


@tk.tile
def send(t, made, back):
    """Bring rows of one expert to the rank that they came from."""
    tk.notify(tk.copy(tk.wait(made[t]), back[t]))


@tk.tile
def keep(t, back, out):
    out[t].store(tk.wait(back[t]).load())


@tk.program
def matmul_combine(rows: tk.Sharded("R", "K"), weight: tk.Local("E", "K", "N"), out: tk.Sharded("S", "N")):
    """out: the rows that this rank sent to experts, each times the weight of its expert, in the order of `S`."""
    route = tk.route(sent="S", rows="R", experts="E")
    made, back = tk.sharded("R", "N"), tk.sharded("S", "N")
    experts[tk.tiles(route.experts, made.cols)](rows, weight, made)
    send[tk.tiles(route, made.cols)](made, back)
    keep[tk.tiles(out)](back, out)


gemm = tk.SMs(tile=(128, 256, 64), stages=3, warps=8)
push = tk.Schedule(experts=gemm, send=tk.SMs(16, tile=(128, 256), order=tk.next_rank_first, at="home"), keep=tk.SMs(8, tile=(64, 256)))
pull = tk.Schedule(experts=gemm, send=tk.SMs(16, tile=(128, 256), order=tk.own_rank_first, at="source"), keep=tk.SMs(8, tile=(64, 256)))
