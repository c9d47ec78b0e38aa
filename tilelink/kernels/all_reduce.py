"""AllReduce alone, in two shots: it sums the tensors of all ranks. After `matmul`, it is the unfused GEMM-AllReduce."""

import tilelink as tk
from tilelink.kernels.matmul_all_reduce import share, take
from tilelink.kernels.reduce_scatter import fetch


@tk.program
def all_reduce(x: tk.Local("M", "N"), out: tk.Local("M", "N")):
    """out = the sum of x over ranks, in rank order and in float32, on every rank. Both have one dtype: float32, float16
    or bfloat16. Raises ArgumentError, DtypeError and others: see `tilelink.kernels`."""
    inbox = tk.sharded(tk.ranks, "M", "N", axis=1)  # spreads M: each rank adds up the rows of its part
    summed = tk.local("M", "N")
    fetch[tk.tiles(inbox, source=tk.ranks)](x, inbox)
    share[tk.tiles(inbox)](inbox, summed)
    take[tk.tiles(out)](summed, out)


pull = tk.Schedule(
    fetch=tk.SMs(12, tile=(128, 512), order=tk.next_rank_first, at="home", stages=6, via="tma"),
    share=tk.SMs(16, tile=(64, 256)),
    take=tk.SMs(tile=(64, 256)),
)
