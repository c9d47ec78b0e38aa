"""Dispatch alone: rows go to the ranks of their experts. Of `combine` it is the backward."""

import tilelink as tk


@tk.tile
def dispatch_rows(t, x, out):
    """Bring rows of one source to the home of their expert."""
    tk.copy(x[t], out[t])


@tk.program
def dispatch(
    x: tk.Sharded("sent", "K"), route: tk.Route("sent", "routed", "experts"), out: tk.Sharded("routed", "K")
):
    """out = the rows that are routed to the experts of this rank, by expert and source. x: the rows that this rank
    sends, in the order of all experts."""
    dispatch_rows[tk.tiles(route, x.cols)](x, out)


pull = tk.Schedule(dispatch_rows=tk.SMs(tile=(32, None), order=tk.own_rank_first, at="home"))
