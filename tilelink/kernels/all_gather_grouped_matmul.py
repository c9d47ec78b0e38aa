"""MoE layer 0 by a gather: a token goes once to each rank that has experts of the token. That rank lays out its rows
and multiplies them. With a slice of every expert on every rank, all tokens go to all ranks, as in FLUX's layer 0.

DeepEP sends a token once to a rank; FLUX (arXiv 2406.06858) and TileLink (MLSys 2025) gather all tokens.
"""

import triton.language as tl

import tilelink as tk
from tilelink.kernels.dispatch_matmul import matmul


@tk.tile
def send(t, x, wanted, full):
    """Bring some tokens to a reader, those that it wants."""
    tk.notify(tk.copy(x[t], full[t].at(t.reader), where=None if wanted is None else wanted[t.rows, t.reader]))


@tk.tile
def fan_out(t, full, token, rows):
    """Rows of one expert from one source, each a token of it, as soon as these are here."""
    here = tk.wait(full[tk.part(t.source), t.cols])
    tk.notify(tk.copy(here[token[t.routed], :], rows[t]))


@tk.program
def all_gather_grouped_matmul(
    x: tk.Sharded("tokens", "K"),
    weight: tk.Local("experts", "K", "N", contiguous="K"),
    route: tk.Route("sent", "routed", "experts"),
    token: tk.Sharded("routed", dtype=tl.int32),
    out: tk.Sharded("routed", "N"),
    wanted: tk.Sharded("tokens", tk.ranks, dtype=tl.int32) = None,
    gathered: tk.Sharded("routed", "K") = None,
):
    """out = the rows routed to the experts of this rank, by expert and source, each times the weight of its expert.

    x: the tokens of this rank. token[row]: the number of the row's token, at the rank that sent it. wanted[token,
    rank]: -1 if that rank needs no row of the token; without `wanted`, every token goes to every rank. token and out
    may be longer than the rows. gathered: optional, the rows themselves."""
    full = tk.local("tokens", "K")  # room for all tokens; only wanted ones arrive
    rows = tk.sharded("routed", "K")
    send[tk.tiles(x, reader=tk.ranks)](x, wanted, full)
    fan_out[tk.tiles(route, full.cols)](full, token, rows)
    matmul[tk.tiles(route.experts, out.cols)](rows, weight, out, gathered)


gemm = tk.SMs(tile=(128, 256, 64), order=tk.grouped(4), stages=3, warps=8)
laid_out = tk.SMs(tile=(32, None), order=tk.ranks_first(), at="home")
push = tk.Schedule(send=tk.SMs(16, tile=(32, None), order=tk.ring, at="home"), fan_out=laid_out, matmul=gemm)
by_rank = push.changed(  # COMET (arXiv 2502.19811, section 3): tiles of local rows first
    fan_out={"count": 8}, matmul={"tile": (128, 128, 64), "order": tk.grouped(4, tk.ranks_first())}
)
pull = push.changed(send={"tile": (32, 512), "order": tk.own_rank_first, "at": "reader"})
multicast = push.changed(send={"count": 8, "via": "multicast"})  # sends all tokens, as engine: without `wanted`
by_engine = tk.CopyEngine(tile=(None, None), order=tk.ring, at="home", streams="one", own="read")
# In columns: with rows outermost it is no faster (predicted), and the form with `gathered` spills on sm_100.
engine = tk.Schedule(send=by_engine, fan_out=laid_out, matmul=gemm).changed(matmul={"order": tk.columns_first(4)})
few = push.changed(  # for few rows of an expert
    send={"tile": (16, None)}, fan_out={"tile": (16, None)}, matmul={"tile": (16, 128, 128), "stages": 5}
)
