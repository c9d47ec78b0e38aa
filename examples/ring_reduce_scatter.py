"""GEMM-ReduceScatter around a ring: a sum starts at one neighbour of its home, and comes home from the other.

Each rank adds its part to the sum that comes from the right, and passes it to the left. A rank waits for the signals
of two tensors: its own partial tiles, and what its neighbour has passed. The ring's tile may be larger than the
GEMM's; then one wait covers several tiles of the GEMM.
"""

import torch
import triton.language as tl
from matmul_reduce_scatter import matmul

import tilelink as tk


@tk.tile
def ring(t, partial, passed, out):
    """Add this rank's part to the sum of a tile: the rank left of its home is first, the home is last."""
    before = (t.home - 1 - tk.rank()) % tk.world()  # how many ranks have added theirs
    acc = tk.wait(partial[t]).load()
    if before > 0:
        acc += tk.wait(passed[t]).load()
    if tk.rank() == t.home:
        out[t].store(acc)
    else:
        left = (tk.rank() - 1) % tk.world()
        tk.notify(passed[t].at(left).store(acc))


@tk.program
def ring_reduce_scatter(x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Sharded("M", "N")):
    """out = the rows of this rank of the sum over ranks of x @ weight."""
    partial, passed = tk.local("M", "N", dtype=tl.float32), tk.local("M", "N", dtype=tl.float32)
    matmul[tk.tiles(partial)](x, weight, partial)
    ring[tk.tiles(partial)](partial, passed, out)


# What this rank starts, the sums of its right neighbour, comes first; its own come last.
ringed = tk.Schedule(
    matmul=tk.SMs(tile=(64, 128, 64), order=tk.next_rank_first),
    ring=tk.SMs(8, tile=(128, 128), order=tk.next_rank_first),
)


def main(world: int = 4) -> None:
    """Runs on CPU ranks on small integers, where every sum is exact."""
    x = [torch.randint(-3, 4, (90, 70)).float() for _ in range(world)]
    weight = [torch.randint(-3, 4, (70, 50)).float() for _ in range(world)]
    want = sum(a @ b for a, b in zip(x, weight, strict=True))
    outs = tk.CpuWorld(world).run(lambda group: ring_reduce_scatter(x[group.rank], weight[group.rank], group=group))
    assert torch.equal(torch.cat(outs), want)
    print(f"{world} ranks own {[len(out) for out in outs]} rows of the sum, bit for bit")


if __name__ == "__main__":
    main()
