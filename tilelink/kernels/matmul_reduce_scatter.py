"""GEMM-ReduceScatter: every rank has a part of K, and gets a part of the rows of the sum over the ranks.

Partial sums travel in the dtype of `out`, as in FLUX (arXiv 2406.06858, section 3.1). The home adds them up in float32,
in rank order, so every run gives the same bits. With float32 for `out` they travel in float32.
"""

import tilelink as tk
from tilelink.kernels.tiles import added_up, finished, product


@tk.tile
def matmul(t, x, weight, partial):
    """One tile of this rank's partial sum."""
    acc = product(x[t.rows, :], weight[:, t.cols], x.cols, t.shape)
    tk.notify(partial[t].store(acc))


@tk.tile
def send(t, partial, inbox):
    """Bring one tile of one rank's partial sum to the home of its rows."""
    mine = tk.wait(partial[t].at(t.source))
    tk.notify(tk.copy(mine, inbox[t.source, t]))


@tk.tile
def reduce(t, inbox, out, bias=None, epilogue=None):
    """Add up what all ranks have sent of one tile."""
    acc = added_up(t, inbox)
    acc = finished(acc, t.cols, bias, epilogue)
    out[t].store(acc)


@tk.program
def matmul_reduce_scatter(
    x: tk.Local("M", "K"),
    weight: tk.Local("K", "N", contiguous="K"),
    out: tk.Sharded("M", "N"),
    bias: tk.Local("N") = None,
    epilogue: tk.Function = None,
):
    """out = the rows of this rank of epilogue(sum over ranks of x @ weight + bias).
    x and weight have one dtype, float32, float16 or bfloat16. Raises ArgumentError, DtypeError and others: see
    `tilelink.kernels`."""
    partial = tk.local("M", "N", dtype=out)
    inbox = tk.sharded(tk.ranks, "M", "N", axis=1, dtype=out)  # one place for every source
    matmul[tk.tiles(partial)](x, weight, partial)
    send[tk.tiles(out, source=tk.ranks)](partial, inbox)
    reduce[tk.tiles(out)](inbox, out, bias, epilogue)


@tk.order
def as_they_are_made(step, rank, world):
    """For a home that fetches: the source that begins with this rank's rows first, the rank itself last."""
    return (rank - 1 - step) % world


gemm = tk.SMs(tile=(128, 256, 64), order=tk.grouped(8, tk.next_rank_first), stages=3, warps=8)
add = tk.SMs(tile=(64, 256))
late = {"signals": "late", "via": "tma"}
fused = tk.Schedule(matmul=gemm, send=tk.Epilogue("matmul"), reduce=add).changed(matmul=late)
in_bulk = tk.SMs(12, tile=(128, 512), order=tk.next_rank_first, at="source", stages=6, via="tma", own="stored")
push = tk.Schedule(matmul=gemm, send=in_bulk, reduce=add)
pull = push.changed(send={"order": as_they_are_made, "at": "home"})
by_rows = tk.CopyEngine(tile=(512, None), order=tk.next_rank_first, at="source", own="stored")
engine = tk.Schedule(matmul=gemm, send=by_rows, reduce=add)
few = push.changed(
    matmul={"tile": (128, 64, 64), "order": tk.across_parts, "stages": 6},
    send={"count": 32, "tile": (128, 128), "via": "load-store", "own": "copied"},
)
operator = "linear_reduce_scatter"
