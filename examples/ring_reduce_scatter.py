"""GEMM-ReduceScatter around a ring: each sum starts at the neighbour of its home and is passed on until it is home.

The ring's tile may be larger than the GEMM's: the wait for a partial sum covers as many of its tiles as it takes.
"""

import torch
import triton.language as tl
from matmul_reduce_scatter import matmul

import tilelink as tk


@tk.tile
def ring(t, partial, passed, out):
    """Add this rank's part to the sum that comes round; the first starts it, the home of the rows ends it."""
    step = (t.home - tk.rank() - 1) % tk.world()
    acc = tk.wait(partial[t]).load()
    if step > 0:
        acc = acc + tk.wait(passed[t]).load()
    if step == tk.world() - 1:
        out[t].store(acc)
    else:
        left = (tk.rank() - 1) % tk.world()
        tk.notify(passed[t].at(left).store(acc))


@tk.program
def ring_reduce_scatter(x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Sharded("M", "N")):
    """out = the rows of this rank of the sum over ranks of x @ weight."""
    partial, passed = tk.local("M", "N", dtype=tl.float32), tk.local("M", "N", dtype=tl.float32)
    matmul[tk.tiles(partial)](x, weight, partial)
    ring[tk.tiles(passed)](partial, passed, out)


first_sent_first = tk.order(lambda step, rank, world: (rank + step + 1) % world)
ringed = tk.Schedule(
    matmul=tk.SMs(tile=(16, 32, 32), order=first_sent_first), ring=tk.SMs(2, tile=(32, 64), order=first_sent_first)
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
