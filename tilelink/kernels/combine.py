"""Combine alone: rows go back from the ranks of their experts. Of `dispatch` it is the backward."""

import tilelink as tk


@tk.tile
def combine_rows(t, rows, out):
    """Bring rows of one expert back to their source."""
    tk.copy(rows[t], out[t])


@tk.program
def combine(
    rows: tk.Sharded("routed", "K"), route: tk.Route("sent", "routed", "experts"), out: tk.Sharded("sent", "K")
):
    """out = the rows that this rank sent to experts, in the order of all experts. rows: those that are routed to the
    experts of this rank, by expert and source."""
    combine_rows[tk.tiles(route, out.cols)](rows, out)


pull = tk.Schedule(combine_rows=tk.SMs(tile=(32, None), order=tk.own_rank_first, at="source"))
