"""Dispatch alone: tokens go to the ranks of their experts. It is the backward of `combine`."""

import triton.language as tl

import tilelink as tk


@tk.tile
def dispatch_rows(t, x, order, out):
    """Bring rows of one source, each a token of it, to the home of their expert."""
    tk.copy(x[order[t.sent], t.cols], out[t])


@tk.program
def dispatch(
    x: tk.Sharded("tokens", "K"),
    route: tk.Route("sent", "routed", "experts"),
    order: tk.Sharded("sent", dtype=tl.int32),
    out: tk.Sharded("routed", "K"),
):
    """out = the rows routed to the experts of this rank, by expert and source. x: the tokens of this rank.
    order[row]: the token of a row that this rank sends; these rows are in the order of all experts.
    x and out have one dtype, any of TileLink's. Raises ArgumentError, DtypeError and others: see `tilelink.kernels`."""
    dispatch_rows[tk.tiles(route, x.cols)](x, order, out)


pull = tk.Schedule(dispatch_rows=tk.SMs(tile=(32, None), order=tk.own_rank_first, at="home"))
