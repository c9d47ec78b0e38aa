"""AllGather-GEMM for few rows: several workers share the sum of a tile, and the parts are added in a fixed order.

With few rows and few columns there are fewer tiles than SMs. The dimension of the sum is therefore taken as `splits`
pieces of `depth` elements, and each tile of the product is of one piece. It waits for its piece of the rows alone. The
parts of a sum are float32, and are added in the order of the pieces, so every run gives the same bits. `pieces` makes
such views of ordinary matrices, without a copy.
"""

import torch
import triton.language as tl

import tilelink as tk


@tk.tile
def gather(t, x, full):
    """Bring one tile of one piece of the rows to one reader."""
    tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def multiply(t, full, weight, sums):
    """One tile of the product of one piece."""
    split, rows = t.splits.start, tk.wait(full[t.splits, t.M])
    acc = tl.zeros((t.shape[1], t.shape[2]), tl.float32)
    for k in tk.steps(full.depth):
        acc = tl.dot(rows[split, :, k].load(), weight[split, k, t.N].load(), acc, input_precision="ieee")
    tk.notify(sums[t].store(acc[None, :, :]))


@tk.tile
def add(t, sums, out):
    """The sum of the parts, from the first piece to the last."""
    parts = tk.wait(sums[:, t.M, t.N])
    acc = tl.zeros(t.shape, tl.float32)
    for split in range(sums.splits.size):
        acc += parts[split, :, :].load()
    out[t].store(acc)


@tk.program
def split_all_gather_matmul(
    x: tk.Sharded("splits", "M", "depth", axis=1),
    weight: tk.Local("splits", "depth", "N", contiguous="depth"),
    out: tk.Local("M", "N"),
):
    """out = all_gather(x) @ weight on every rank, of pieces of both."""
    full = tk.local("splits", "M", "depth")
    sums = tk.local("splits", "M", "N", dtype=tl.float32)
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    multiply[tk.tiles(sums)](full, weight, sums)
    add[tk.tiles(out)](sums, out)


few = tk.Schedule(
    gather=tk.SMs(32, tile=(1, 128, 256), order=tk.ring, at="home"),
    multiply=tk.SMs(tile=(1, 128, 64, 64), order=tk.across_parts, stages=6),
    add=tk.SMs(tile=(16, 64), order=tk.across_parts),
)


def pieces(x: torch.Tensor, weight: torch.Tensor, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (M, K) and a weight of nn.Linear (N, K), as the program takes them. `splits` divides K."""
    x, weight = x.unflatten(1, (splits, -1)), weight.unflatten(1, (splits, -1))
    return x.permute(1, 0, 2), weight.permute(1, 2, 0)


def main(splits: int = 4, K: int = 192, N: int = 80) -> None:
    """Runs on CPU ranks with uneven shards, twice, and compares with torch in float64."""
    parts = (5, 0, 9, 2)
    x, weight = torch.randn(sum(parts), K), torch.randn(len(parts), N, K)

    def on_rank(group):
        mine = pieces(x.split(parts)[group.rank], weight[group.rank], splits)
        outs = [torch.full((sum(parts), N), float("nan")) for _ in range(2)]
        for out in outs:
            split_all_gather_matmul(*mine, out, group=group, parts={"M": parts})
        assert torch.equal(*outs), "two runs give the same bits"
        return outs[0]

    outs = tk.CpuWorld(len(parts)).run(on_rank)
    want = [x.double() @ w.double().T for w in weight]
    error = max(float((out - w).norm() / w.norm()) for out, w in zip(outs, want, strict=True))
    assert error < 1e-6, error
    print(f"{len(parts)} ranks, {splits} workers for each sum, relative RMS {error:.1e} against float64")


if __name__ == "__main__":
    main()
