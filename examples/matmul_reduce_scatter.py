"""GEMM-ReduceScatter: every rank has a part of K; the rows of the sum are spread over the ranks.

Three tile functions: multiply into a partial sum, bring each tile of it to the home of its rows, add up in rank order
(so that every run gives the same bits). Whether ranks push, owners pull or the epilogue of the GEMM stores each tile
where its owner wants it (FLUX, arXiv 2406.06858) is a matter of the schedule.
"""

import torch
import triton.language as tl

import tilelink as tk


@tk.tile
def matmul(t, x, weight, partial):
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(x.cols):
        acc = tl.dot(x[t.rows, k].load(), weight[k, t.cols].load(), acc, input_precision="ieee")
    tk.notify(partial[t].store(acc))


@tk.tile
def send(t, partial, inbox):
    """Bring one tile of one rank's partial sum to the home of its rows."""
    mine = tk.wait(partial[t].at(t.source))
    tk.notify(tk.copy(mine, inbox[t.source, t]))


@tk.tile
def reduce(t, inbox, out):
    acc = tl.zeros(t.shape, tl.float32)
    for source in tk.ranks():
        acc += tk.wait(inbox[source, t]).load()
    out[t].store(acc)


@tk.program
def matmul_reduce_scatter(x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Sharded("M", "N")):
    """out = the rows of this rank of the sum over ranks of x @ weight."""
    partial = tk.local("M", "N", dtype=tl.float32)
    inbox = tk.sharded(tk.ranks, "M", "N", axis=1, dtype=tl.float32)  # one place for every source
    matmul[tk.tiles(partial)](x, weight, partial)
    send[tk.tiles(out, source=tk.ranks)](partial, inbox)
    reduce[tk.tiles(out)](inbox, out)


gemm = tk.SMs(tile=(32, 64, 32), order=tk.next_rank_first)
push = tk.Schedule(matmul=gemm, send=tk.SMs(4, tile=(32, 64), at="source"), reduce=tk.SMs(tile=(16, 64)))
pull = tk.Schedule(matmul=gemm, send=tk.SMs(4, tile=(32, 64), at="home"), reduce=tk.SMs(tile=(16, 64)))
fused = tk.Schedule(matmul=gemm, send=tk.Epilogue("matmul"), reduce=tk.SMs(tile=(16, 64)))


def main(world: int = 4) -> None:
    """Runs the schedules on CPU ranks on small integers, where every sum is exact."""
    x = [torch.randint(-3, 4, (90, 70)).float() for _ in range(world)]
    weight = [torch.randint(-3, 4, (70, 50)).float() for _ in range(world)]
    want = sum(a @ b for a, b in zip(x, weight, strict=True))
    for name in ("push", "pull", "fused"):
        outs = tk.CpuWorld(world).run(
            lambda g, name=name: matmul_reduce_scatter(x[g.rank], weight[g.rank], schedule=name, group=g)
        )
        assert torch.equal(torch.cat(outs), want)
        print(f"{name}: {world} ranks own {[len(out) for out in outs]} rows of the sum, bit for bit")


if __name__ == "__main__":
    main()
