"""GEMM-ReduceScatter around a ring (TileLink, MLSys 2025): a sum starts at one neighbour of its home, and comes home
from the other.

Every rank adds its part to the sum that comes from the right, and passes it to the left. A tile of the ring may be
larger than a tile of the GEMM: a wait then covers several. Each rank on the way rounds the sum, so sums travel in
float32. Additions have the order of the ring, so every run gives the same bits.
"""

import triton.language as tl

import tilelink as tk
from tilelink.kernels.matmul_reduce_scatter import matmul
from tilelink.kernels.tiles import finished


@tk.tile
def ring(t, partial, passed, out, bias, epilogue):
    """Add this rank's part to the sum of a tile: the rank left of its home is first, the home is last."""
    before = (t.home - 1 - tk.rank()) % tk.world()  # how many ranks have added theirs
    left = (tk.rank() - 1) % tk.world()
    mine = tk.wait(partial[t])
    for m in tk.steps(t.rows):  # a few rows at a time, or the tile would not fit into registers
        acc = mine[m, :].load()
        if before > 0:
            acc += tk.wait(passed[m, t.cols]).load()
        if tk.rank() == t.home:
            acc = finished(acc, t.cols, bias, epilogue)
            out[m, t.cols].store(acc)
        else:
            tk.notify(passed[m, t.cols].at(left).store(acc))


@tk.program
def matmul_ring_reduce_scatter(
    x: tk.Local("M", "K"),
    weight: tk.Local("K", "N", contiguous="K"),
    out: tk.Sharded("M", "N"),
    bias: tk.Local("N") = None,
    epilogue: tk.Function = None,
):
    """out = the rows of this rank of epilogue(sum over ranks of x @ weight + bias)."""
    partial, passed = tk.local("M", "N", dtype=tl.float32), tk.local("M", "N", dtype=tl.float32)
    matmul[tk.tiles(partial)](x, weight, partial)
    ring[tk.tiles(partial)](partial, passed, out, bias, epilogue)


# The sums that this rank starts, for its right neighbour, come first; the sums of its own rows come last.
ringed = tk.Schedule(
    matmul=tk.SMs(tile=(128, 128, 64), order=tk.grouped(8, tk.next_rank_first), stages=3, warps=8),
    ring=tk.SMs(16, tile=(256, 256, 32), order=tk.next_rank_first),
)
operator, plan = "linear_reduce_scatter", "ring"
