"""AllGather-GEMM with a gate: each tile is two products, with two weights, that a function combines in registers.

It computes the gate and up projections of an MLP, silu(x @ gate) * (x @ up). The two products are never stored.
"""

import triton
import triton.language as tl

import tilelink as tk
from tilelink.kernels.all_gather_matmul import by_engine, gather
from tilelink.kernels.tiles import finished, two_products


@triton.jit
def silu_gate(gate, up):
    return gate * tl.sigmoid(gate) * up


@tk.tile
def gated_matmul(t, full, gate, up, out, gate_bias, up_bias, combine):
    """One tile of out, as soon as its rows are here."""
    rows = tk.wait(full[t.rows])
    left, right = two_products(t, rows, gate, up, full.cols)
    left = finished(left, t.cols, gate_bias)
    right = finished(right, t.cols, up_bias)
    out[t].store(combine(left, right))


@tk.program
def all_gather_gated_matmul(
    x: tk.Sharded("M", "K"),
    gate: tk.Local("K", "N", contiguous="K"),
    up: tk.Local("K", "N", contiguous="K"),
    out: tk.Local("M", "N"),
    gate_bias: tk.Local("N") = None,
    up_bias: tk.Local("N") = None,
    combine: tk.Function = silu_gate,
):
    """out = combine(all_gather(x) @ gate + gate_bias, all_gather(x) @ up + up_bias) on every rank."""
    full = tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    gated_matmul[tk.tiles(out)](full, gate, up, out, gate_bias, up_bias, combine)


gemm = tk.SMs(tile=(128, 128, 64), order=tk.grouped(4, tk.own_rank_first), stages=3, warps=8)
# Not in bulk: with two sums and the descriptors of all peers, kernels for Hopper spill registers on Triton 3.9.
push = tk.Schedule(gather=tk.SMs(16, tile=(128, 256), order=tk.ring, at="home", own="read"), gated_matmul=gemm)
pull = push.changed(gather={"order": tk.own_rank_first, "at": "reader"})
multicast = push.changed(gather={"count": 8, "order": tk.own_rank_first, "via": "multicast", "own": "copied"})
# Own rows are copied: with one more descriptor, the portable form for Hopper spills registers on Triton 3.6.
engine = tk.Schedule(gather=by_engine, gated_matmul=gemm).changed(gather={"own": "copied"})
across = {"tile": (128, 64, 64), "order": tk.across_parts, "stages": 6}
few = push.changed(gather={"count": 32, "own": "copied"}, gated_matmul=across)
