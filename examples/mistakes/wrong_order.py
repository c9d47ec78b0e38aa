"""AllGather-GEMM with its roles in an order that can't be. There is a mistake in it: see README.md."""

import tilelink as tk
from tilelink.kernels.all_gather_matmul import gather, matmul


@tk.program
def wrong_order(x: tk.Sharded("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N")):
    full = tk.local("M", "K")  # every rank's copy of all rows
    matmul[tk.tiles(out)](full, weight, out)
    gather[tk.tiles(x, reader=tk.ranks)](x, full)


shared = tk.Schedule(matmul=tk.SMs(tile=(32, 32, 32)), gather=tk.SMs(tile=(32, 64), at="home"))
