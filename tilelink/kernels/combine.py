"""Combine alone: rows go back from the ranks of their experts, and each token adds up its rows. It is the backward of
`dispatch`."""

import triton.language as tl

import tilelink as tk
from tilelink.kernels.matmul_combine import add_up, keep


@tk.tile
def combine_rows(t, rows, back):
    """Bring rows of one expert back to their source."""
    tk.notify(tk.copy(rows[t], back[t]))


@tk.program
def combine(
    rows: tk.Sharded("routed", "K"),
    route: tk.Route("sent", "routed", "experts"),
    place: tk.Sharded("tokens", "top", dtype=tl.int32),
    out: tk.Sharded("tokens", "K"),
    weights: tk.Sharded("tokens", "top", dtype=tl.float32) = None,
    kept: tk.Sharded("sent", "K") = None,
):
    """out[token] = the weighted sum of the token's rows, in float32 and in the order of its choices.

    weights: 1 for every row if left out. rows: the rows routed to the experts of this rank, by expert and source.
    place: see `matmul_combine`. kept: optional, the rows of this rank's tokens as they came back."""
    back = tk.sharded("sent", "K")
    combine_rows[tk.tiles(route, back.cols)](rows, back)
    if kept is not None:
        keep[tk.tiles(route, back.cols)](back, kept)
    add_up[tk.tiles(out)](back, place, out, weights)


pull = tk.Schedule(
    combine_rows=tk.SMs(tile=(32, None), order=tk.own_rank_first, at="source"),
    keep=tk.SMs(16, tile=(32, None), order=tk.own_rank_first, at="source"),
    add_up=tk.SMs(32, tile=(16, 512)),
)
