"""ReduceScatter alone: each rank gets its rows of a sum. After `matmul`, it is the unfused GEMM-ReduceScatter."""

import tilelink as tk
from tilelink.kernels.matmul_reduce_scatter import reduce


@tk.tile
def fetch(t, x, inbox):
    """Bring one tile of what one rank has to the home of its rows."""
    tk.notify(tk.copy(x[t].at(t.source), inbox[t.source, t]))


@tk.program
def reduce_scatter(x: tk.Local("M", "N"), out: tk.Sharded("M", "N")):
    """out = the rows of this rank of the sum of x over ranks, in rank order and in float32. x and out are float32,
    float16 or bfloat16. Raises ArgumentError, DtypeError and others: see `tilelink.kernels`."""
    inbox = tk.sharded(tk.ranks, "M", "N", axis=1)
    fetch[tk.tiles(out, source=tk.ranks)](x, inbox)
    reduce[tk.tiles(out)](inbox, out)


pull = tk.Schedule(
    fetch=tk.SMs(12, tile=(128, 512), order=tk.next_rank_first, at="home", stages=6, via="tma"),
    reduce=tk.SMs(tile=(64, 256)),
)
