"""AllGather-GEMM: the rows of x are spread over the ranks, and every rank multiplies all rows by its own weight."""

import tilelink as tk
from tilelink.kernels.tiles import finished, product


@tk.tile
def gather(t, x, full):
    """Bring one tile of x from its home to one reader."""
    tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def matmul(t, full, weight, out, bias=None, epilogue=None, gathered=None):
    """One tile of out, as soon as its rows are here; the first of a row block keeps them, too."""
    rows = tk.wait(full[t.rows])
    acc = product(rows, weight[:, t.cols], full.cols, t.shape)
    acc = finished(acc, t.cols, bias, epilogue)
    out[t].store(acc)
    if gathered is not None and t.cols.start == 0:
        for k in tk.steps(full.cols):
            tk.copy(rows[:, k], gathered[t.rows, k])


@tk.program
def all_gather_matmul(
    x: tk.Sharded("M", "K"),
    weight: tk.Each(tk.Local("K", "N", contiguous="K")),
    out: tk.Each(tk.Local("M", "N")),
    bias: tk.Each(tk.Local("N")) = None,
    epilogue: tk.Function = None,
    gathered: tk.Local("M", "K") = None,
):
    """out = epilogue(all_gather(x) @ weight + bias) on every rank, for one weight or each weight of a list.
    gathered: optional, all_gather(x), in its dtype. x and weight have one dtype, float32, float16 or bfloat16. Raises
    ArgumentError, DtypeError and others: see `tilelink.kernels`."""
    full = tk.local("M", "K")  # every rank's copy of all rows
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    for w, o, b in tk.each(weight, out, bias):
        matmul[tk.tiles(o)](full, w, o, b, epilogue, gathered)
        gathered = None  # only the tiles of the first weight keep the rows


gemm = tk.SMs(tile=(128, 256, 64), order=tk.grouped(4, tk.own_rank_first), stages=3, warps=8)
in_bulk = tk.SMs(12, tile=(128, 2048), order=tk.ring, at="home", stages=6, via="tma", own="read")
push = tk.Schedule(gather=in_bulk, matmul=gemm)
pull = push.changed(gather={"order": tk.own_rank_first, "at": "reader"})
multicast = tk.Schedule(gather=tk.SMs(8, tile=(128, 256), at="home", via="multicast"), matmul=gemm)
by_engine = tk.CopyEngine(tile=(512, None), order=tk.ring, at="home", streams="one", own="read")
engine = tk.Schedule(gather=by_engine, matmul=gemm)
pieces = push.changed(gather={"tile": (128, 1024)}, matmul={"waits": "pieces", "order": tk.own_rank_first})
across = {"tile": (128, 64, 64), "order": tk.across_parts, "stages": 6}
few = push.changed(
    gather={"count": 32, "tile": (128, 256), "via": "load-store", "own": "copied"}, matmul=across
)
operator = "all_gather_linear"  # of tilelink.ops: these schedules are its plans
