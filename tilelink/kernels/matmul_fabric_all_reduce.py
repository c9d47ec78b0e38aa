"""GEMM-AllReduce in two shots. Partial sums stay where they are made: each rank reads its rows of all ranks at once,
and the fabric adds them up (NVLink SHARP; PTX's multimem.ld_reduce). The rank shares the sums by one store.

A tile then crosses the link of the rank that adds it up once, not once a rank, and no rank keeps an inbox. The fabric
adds in float32 and rounds each sum to the dtype of `out`. NVIDIA does not document the order in which it adds, so two
runs may differ in the last bit. A sum is made once, so all ranks have the same bits. If the fabric can't add, the
reader loads one rank's tile after the other, in rank order.
"""

import triton.language as tl

import tilelink as tk
from tilelink.kernels.matmul_all_reduce import take
from tilelink.kernels.matmul_reduce_scatter import matmul
from tilelink.kernels.tiles import finished


@tk.tile
def share(t, partial, summed, bias=None, epilogue=None):
    """Add up one tile of this rank's rows from the memory of all ranks, and share the sum with them."""
    acc = tl.zeros(t.shape, tl.float32)
    for source in tk.ranks():
        acc += tk.wait(partial[t].at(source)).load()
    acc = finished(acc, t.cols, bias, epilogue)
    tk.notify(summed[t].at(tk.ranks).store(acc))


@tk.program
def matmul_fabric_all_reduce(
    x: tk.Local("M", "K"),
    weight: tk.Local("K", "N", contiguous="K"),
    out: tk.Local("M", "N"),
    bias: tk.Local("N") = None,
    epilogue: tk.Function = None,
):
    """out = epilogue(sum over ranks of x @ weight + bias) on every rank."""
    partial, summed = tk.local("M", "N", dtype=out), tk.local("M", "N", dtype=out)
    rows = tk.sharded("M", "N", dtype=out)  # spreads M: each rank adds up the rows of its part
    matmul[tk.tiles(partial)](x, weight, partial)
    share[tk.tiles(rows)](partial, summed, bias, epilogue)
    take[tk.tiles(out)](summed, out)


@tk.order
def together(step, rank, world):
    """All ranks make the rows of rank 0 first, then those of rank 1: a sum needs the tile of every rank."""
    return step


gemm = tk.SMs(tile=(128, 256, 64), order=tk.grouped(8, together), stages=3, warps=8)
sums = tk.SMs(16, tile=(128, 256), via="multicast")
own = tk.SMs(tile=(64, 256), order=together)
multicast = tk.Schedule(matmul=gemm, share=sums, take=own)
operator, plan = "linear_all_reduce", "fabric"
