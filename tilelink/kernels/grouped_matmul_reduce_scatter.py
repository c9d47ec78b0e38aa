"""MoE layer 1 by a reduce-scatter: each rank adds up the rows of a token that its experts made, and sends the sum to
the token's rank. The token's rank adds up the sums of all ranks. With a slice of every expert on every rank, all ranks
send sums of all tokens, as in FLUX's layer 1.

DeepEP and FLUX (arXiv 2406.06858) add up before they send, as TileLink (MLSys 2025) does.
"""

import triton.language as tl

import tilelink as tk
from tilelink.kernels.matmul_combine import matmul
from tilelink.kernels.tiles import added_up, sum_of_rows


@tk.tile
def add_here(t, made, at, inbox, wanted=None, weights=None):
    """What some tokens have at one rank, as soon as its rows are made, goes to their home."""
    here = tk.wait(made[:, t.cols].at(tk.rank()))
    total = sum_of_rows(t, here, at, weights)
    tk.notify(inbox[t.maker, t].store(total, where=None if wanted is None else at[t.rows, 0]))


@tk.tile
def reduce(t, inbox, out, wanted=None):
    """Add up what ranks have sent of some tokens."""
    out[t].store(added_up(t, inbox, wanted))


@tk.program
def grouped_matmul_reduce_scatter(
    rows: tk.Sharded("routed", "K"),
    weight: tk.Local("experts", "K", "N", contiguous="K"),
    route: tk.Route("sent", "routed", "experts"),
    at: tk.Local("tokens", "top", dtype=tl.int32),
    out: tk.Sharded("tokens", "N"),
    wanted: tk.Sharded("tokens", tk.ranks, dtype=tl.int32) = None,
    weights: tk.Local("tokens", "top", dtype=tl.float32) = None,
):
    """out[token] = the weighted sum of the token's rows, each first multiplied by the weight of its expert. The rank of
    the experts adds up its rows in float32, in the order of `at`. The token's rank adds up these sums in rank order.
    rows: the rows routed to the experts of this rank, by expert and source, then padding. at[token, n]: for a token of
    any rank, its rows at this rank, then -1. weights: of the same rows; 1 if left out. wanted[token, rank]: -1 if that
    rank has no row of the token; without `wanted`, every rank sends a sum for every token."""
    made = tk.sharded("routed", "N")
    inbox = tk.sharded(tk.ranks, "tokens", "N", axis=1)  # one place for every rank
    matmul[tk.tiles(route.experts, made.cols)](rows, weight, made)
    add_here[tk.tiles(out, maker=tk.ranks)](made, at, inbox, wanted, weights)
    reduce[tk.tiles(out)](inbox, out, wanted)


gemm = tk.SMs(tile=(128, 256, 64), order=tk.columns_first(4), stages=3, warps=8)  # COMET: sums leave early
push = tk.Schedule(
    matmul=gemm,
    add_here=tk.SMs(24, tile=(16, 512), order=tk.columns_first(2, tk.next_rank_first), at="maker"),
    reduce=tk.SMs(8, tile=(16, 512), order=tk.columns_first(2)),
)
lines = {"tile": (16, 128)}
few = push.changed(matmul={"tile": (16, 128, 128), "stages": 5}, add_here=lines, reduce=lines)  # few rows an expert
