"""GEMM-AllReduce in two shots: each rank adds up a part of the rows, in rank order, and shares the sums with all ranks.

Every rank has a part of K and wants the whole sum. Partial tiles go to the rank that adds up their rows
(reduce-scatter); the sums go to all ranks (all-gather), by one store where the target's fabric multicasts and the
schedule asks for it. A sum is made once, so all ranks have the same bits. Partial sums travel in the dtype of `out`.
"""

import tilelink as tk
from tilelink.kernels.matmul_reduce_scatter import as_they_are_made, matmul, send
from tilelink.kernels.tiles import added_up, finished


@tk.tile
def share(t, inbox, summed, bias=None, epilogue=None):
    """Add up what all ranks have sent of one tile of this rank's rows, and share the sum with all ranks."""
    acc = added_up(t, inbox)
    acc = finished(acc, t.cols, bias, epilogue)
    tk.notify(summed[t].at(tk.ranks).store(acc))


@tk.tile
def take(t, summed, out):
    """One tile of the sum that has come."""
    tk.copy(tk.wait(summed[t]), out[t])


@tk.program
def matmul_all_reduce(
    x: tk.Local("M", "K"),
    weight: tk.Local("K", "N", contiguous="K"),
    out: tk.Local("M", "N"),
    bias: tk.Local("N") = None,
    epilogue: tk.Function = None,
):
    """out = epilogue(sum over ranks of x @ weight + bias) on every rank.
    x and weight have one dtype, float32, float16 or bfloat16. Raises ArgumentError, DtypeError and others: see
    `tilelink.kernels`."""
    partial = tk.local("M", "N", dtype=out)
    inbox = tk.sharded(tk.ranks, "M", "N", axis=1, dtype=out)  # spreads M: each rank adds up the rows of its part
    summed = tk.local("M", "N", dtype=out)
    matmul[tk.tiles(partial)](x, weight, partial)
    send[tk.tiles(inbox, source=tk.ranks)](partial, inbox)
    share[tk.tiles(inbox)](inbox, summed, bias, epilogue)
    take[tk.tiles(out)](summed, out)


gemm = tk.SMs(tile=(128, 256, 64), order=tk.grouped(8, tk.next_rank_first), stages=3, warps=8)
sums = tk.SMs(16, tile=(64, 256))
own = tk.SMs(tile=(64, 256), order=tk.next_rank_first)
late = {"signals": "late", "via": "tma"}
fused = tk.Schedule(matmul=gemm, send=tk.Epilogue("matmul"), share=sums, take=own).changed(matmul=late)
sent = tk.SMs(12, tile=(128, 512), order=tk.next_rank_first, at="source", stages=6, via="tma", own="stored")
push = tk.Schedule(matmul=gemm, send=sent, share=sums, take=own)
pull = push.changed(send={"order": as_they_are_made, "at": "home"})
multicast = fused.changed(share={"via": "multicast"})
operator = "linear_all_reduce"
