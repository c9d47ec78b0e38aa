"""GEMM-AllReduce in one shot: every rank gets the partial sums of all ranks, and adds them up itself. For few rows.

Partial tiles cross once, and no rank waits for sums of other ranks. Each rank receives as many bytes from each peer as
the whole sum has. All ranks add up in rank order, so all have the same bits. Tiles travel in the dtype of `out`.
"""

import tilelink as tk
from tilelink.kernels.matmul_reduce_scatter import matmul, reduce


@tk.tile
def send(t, partial, inbox):
    """Bring one tile of this rank's partial sum to all ranks."""
    tk.notify(tk.copy(tk.wait(partial[t]), inbox[tk.rank(), t].at(tk.ranks)))


@tk.program
def matmul_one_shot_all_reduce(
    x: tk.Local("M", "K"),
    weight: tk.Local("K", "N", contiguous="K"),
    out: tk.Local("M", "N"),
    bias: tk.Local("N") = None,
    epilogue: tk.Function = None,
):
    """out = epilogue(sum over ranks of x @ weight + bias) on every rank."""
    partial = tk.local("M", "N", dtype=out)
    inbox = tk.local(tk.ranks, "M", "N", dtype=out)  # one place for every source
    matmul[tk.tiles(partial)](x, weight, partial)
    send[tk.tiles(partial)](partial, inbox)
    reduce[tk.tiles(out)](inbox, out, bias, epilogue)


gemm = tk.SMs(tile=(64, 64, 128), stages=3, warps=8)
add = tk.SMs(tile=(16, 256))
fused = tk.Schedule(matmul=gemm, send=tk.Epilogue("matmul"), reduce=add)
push = tk.Schedule(matmul=gemm, send=tk.SMs(16, tile=(64, 64)), reduce=add)
multicast = push.changed(send={"via": "multicast"})
operator, plan = "linear_all_reduce", "one_shot"
