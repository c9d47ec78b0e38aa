"""AllGather-GEMM for few rows and few columns: several workers share the sum of a tile, and its parts are added up in
a fixed order.

A small product has fewer tiles than the GPU has SMs. The dimension of the sum is therefore cut into `splits` pieces of
`depth` elements, and each tile of the product covers one piece (split-K). The tile waits only for its piece of the
rows. The parts of a sum are float32, and one tile adds them up, so every run gives the same bits. `in_pieces` views
ordinary matrices as pieces, without a copy.
"""

from typing import TYPE_CHECKING

import triton.language as tl

import tilelink as tk
from tilelink.errors import ShapeError
from tilelink.kernels.all_gather_matmul import gather
from tilelink.kernels.tiles import finished, product

if TYPE_CHECKING:
    import torch

SPLITS = 4


@tk.tile
def matmul(t, full, weight, sums):
    """One tile of the product of one piece."""
    split, rows = t.splits.start, tk.wait(full[t.splits, t.M])
    acc = product(rows[split], weight[split, :, t.N], full.depth, (t.shape[1], t.shape[2]))
    tk.notify(sums[t].store(acc[None, :, :]))


@tk.tile
def add(t, sums, out, bias=None, epilogue=None):
    """The sum of the parts of one tile."""
    acc = tl.sum(tk.wait(sums[:, t.M, t.N]).load(), 0)
    out[t].store(finished(acc, t.cols, bias, epilogue))


@tk.program
def all_gather_split_matmul(
    x: tk.Sharded("splits", "M", "depth", axis=1),
    weight: tk.Each(tk.Local("splits", "depth", "N", contiguous="depth")),
    out: tk.Each(tk.Local("M", "N")),
    bias: tk.Each(tk.Local("N")) = None,
    epilogue: tk.Function = None,
):
    """out = epilogue(all_gather(x) @ weight + bias) on every rank, for one weight or each weight of a list. x and
    weight are given in pieces."""
    full = tk.local("splits", "M", "depth")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    for w, o, b in tk.each(weight, out, bias):
        sums = tk.local("splits", "M", "N", dtype=tl.float32)
        matmul[tk.tiles(sums)](full, w, sums)
        add[tk.tiles(o)](sums, o, b, epilogue)


split = tk.Schedule(
    gather=tk.SMs(32, tile=(1, 128, 256), order=tk.ring, at="home"),
    matmul=tk.SMs(tile=(1, 128, 64, 64), order=tk.across_parts, stages=6),
    add=tk.SMs(tile=(16, 64), order=tk.across_parts, whole={"splits": SPLITS}),
)


def in_pieces(matrix: "torch.Tensor") -> "torch.Tensor":
    """Returns a matrix (..., K) as pieces (splits, ..., depth), without a copy."""
    return matrix.unflatten(-1, (SPLITS, -1)).movedim(-2, 0)


def pieces_of(K: int) -> dict[str, int]:
    """Returns the sizes of pieces. Raises ShapeError if K can't be cut into pieces of one length."""
    if K % SPLITS:
        raise ShapeError(f"K is {K}: a sum in {SPLITS} pieces needs a multiple of {SPLITS}")
    return {"splits": SPLITS, "depth": K // SPLITS}


operator, plan, sizes, given = "all_gather_linear", "split", pieces_of, in_pieces
