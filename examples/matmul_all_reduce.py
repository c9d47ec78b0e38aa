"""GEMM-AllReduce in two shots: each rank sums a part of the rows, in rank order, and shares the sums with all ranks.

Every rank has a part of K and wants the whole sum. Partial tiles go to the rank that sums their rows (reduce-scatter);
the sums go to all ranks (all-gather). Since a sum is made once, all ranks get the same bits.
"""

import torch
import triton.language as tl
from matmul_reduce_scatter import matmul, send

import tilelink as tk


@tk.tile
def reduce(t, inbox, summed):
    """Sum one tile of the rows of this rank, and share it with all ranks."""
    acc = tl.zeros(t.shape, tl.float32)
    for source in tk.ranks():
        acc += tk.wait(inbox[source, t]).load()
    tk.notify(summed[t].at(tk.ranks).store(acc))


@tk.tile
def take(t, summed, out):
    tk.copy(tk.wait(summed[t]), out[t])


@tk.program
def matmul_all_reduce(x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N")):
    """out = the sum over ranks of x @ weight, on every rank."""
    partial = tk.local("M", "N", dtype=tl.float32)
    inbox = tk.sharded(tk.ranks, "M", "N", axis=1, dtype=tl.float32)  # spreads M over the ranks: who sums which rows
    summed = tk.local("M", "N")
    matmul[tk.tiles(partial)](x, weight, partial)
    send[tk.tiles(inbox, source=tk.ranks)](partial, inbox)
    reduce[tk.tiles(inbox)](inbox, summed)
    take[tk.tiles(out)](summed, out)


gemm = tk.SMs(tile=(128, 128, 64), order=tk.next_rank_first)
share = tk.SMs(8, tile=(64, 128), via="multicast")
take_own = tk.SMs(4, tile=(64, 128))
sent = tk.Schedule(matmul=gemm, send=tk.SMs(8, tile=(128, 128), at="source"), reduce=share, take=take_own)
fused = tk.Schedule(matmul=gemm, send=tk.Epilogue("matmul"), reduce=share, take=take_own)


def main(world: int = 4) -> None:
    """Runs on CPU ranks on small integers, where every sum is exact."""
    x = [torch.randint(-3, 4, (90, 70)).float() for _ in range(world)]
    weight = [torch.randint(-3, 4, (70, 50)).float() for _ in range(world)]
    want = sum(a @ b for a, b in zip(x, weight, strict=True))
    for name in ("sent", "fused"):
        outs = tk.CpuWorld(world).run(
            lambda g, name=name: matmul_all_reduce(x[g.rank], weight[g.rank], schedule=name, group=g)
        )
        assert all(torch.equal(out, want) for out in outs)
        print(f"{name}: {world} ranks have the whole sum, bit for bit")


if __name__ == "__main__":
    main()
