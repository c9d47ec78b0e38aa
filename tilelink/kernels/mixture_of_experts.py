"""A whole layer of experts in one kernel: tokens go to the ranks of their experts, each expert multiplies its rows
twice, and the results go back, where each token adds up its rows."""

import triton.language as tl

import tilelink as tk
from tilelink.kernels.all_gather_gated_matmul import silu_gate
from tilelink.kernels.dispatch_matmul import dispatch
from tilelink.kernels.matmul_combine import add_up, combine, keep
from tilelink.kernels.tiles import product, two_products

operator = "mixture_of_experts"
plan = "one_kernel"


@tk.tile
def gate_up(t, rows, gate, up, hidden, activation, gathered=None, gates=None, ups=None):
    """One tile of what an expert makes of its rows, as soon as those are here. What nobody here waits for is kept
    after it: the first tile of some rows keeps those."""
    here = tk.wait(rows[t.rows])
    left, right = two_products(t, here, gate[t.expert, :, :], up[t.expert, :, :], rows.cols)
    tk.notify(hidden[t].store(activation(left, right)))
    if gates is not None:
        gates[t].store(left)
    if ups is not None:
        ups[t].store(right)
    if gathered is not None and t.cols.start == 0:
        for k in tk.steps(rows.cols):
            tk.copy(here[:, k], gathered[t.rows, k])


@tk.tile
def down(t, hidden, weight, made):
    """One tile of what goes back, as soon as the hidden features of its rows are made."""
    here = tk.wait(hidden[t.rows])
    made[t].store(product(here, weight[t.expert, :, t.cols], hidden.cols, t.shape))
    tk.notify(made[t])


@tk.program
def mixture_of_experts(
    x: tk.Sharded("tokens", "K"),
    gate: tk.Local("experts", "K", "N", contiguous="K"),
    up: tk.Local("experts", "K", "N", contiguous="K"),
    weight: tk.Local("experts", "N", "K", contiguous="N"),
    route: tk.Route("sent", "routed", "experts"),
    order: tk.Sharded("sent", dtype=tl.int32),
    place: tk.Sharded("tokens", "top", dtype=tl.int32),
    out: tk.Sharded("tokens", "K"),
    weights: tk.Sharded("tokens", "top", dtype=tl.float32) = None,
    activation: tk.Function = silu_gate,
    gathered: tk.Sharded("routed", "K") = None,
    gates: tk.Sharded("routed", "N") = None,
    ups: tk.Sharded("routed", "N") = None,
    kept: tk.Sharded("sent", "K") = None,
):
    """out[token] = the weighted sum over the token's experts of activation(token @ gate, token @ up) @ weight. The sum
    is made in float32, in the order of the token's choices. weights: 1 if left out. x, order: as in `dispatch_matmul`.
    place: as in `matmul_combine`. On request: gathered, the rows of this rank's experts, by expert and source; gates
    and ups, the two products of these rows; kept, the rows that came back, in the order of all experts."""
    rows, hidden = tk.sharded("routed", "K"), tk.sharded("routed", "N")
    made, back = tk.sharded("routed", "K"), tk.sharded("sent", "K")
    dispatch[tk.tiles(route, x.cols)](x, order, rows)
    gate_up[tk.tiles(route.experts, hidden.cols)](rows, gate, up, hidden, activation, gathered, gates, ups)
    down[tk.tiles(route.experts, made.cols)](hidden, weight, made)
    combine[tk.tiles(route, made.cols)](made, back)
    if kept is not None:
        keep[tk.tiles(route, made.cols)](back, kept)
    add_up[tk.tiles(out)](back, place, out, weights)


push = tk.Schedule(
    dispatch=tk.SMs(16, tile=(32, None), order=tk.ring, at="source"),
    gate_up=tk.SMs(tile=(128, 64, 64), wave=4, stages=3, warps=8),
    down=tk.SMs(tile=(128, 128, 64), wave=4, stages=3, warps=8),
    combine=tk.SMs(16, tile=(32, None), order=tk.own_rank_first, at="home"),
    keep=tk.SMs(4, tile=(32, None), order=tk.ring, at="source"),
    add_up=tk.SMs(8, tile=(16, 512)),
)
pull = push.changed(dispatch={"order": tk.own_rank_first, "at": "home"}, combine={"at": "source"})
lines = {"tile": (16, None)}
few = push.changed(  # for few rows of an expert
    dispatch=lines,
    gate_up={"tile": (16, 128, 64), "stages": 5},
    down={"tile": (16, 128, 128), "stages": 5},
    combine=lines,
    keep=lines,
    add_up={"tile": (16, 128)},
)
