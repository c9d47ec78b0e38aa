"""Matmul and all-to-all, as in Ulysses: rows are tokens of the rank, columns are heads, and each head goes to its rank.

Every rank multiplies its own tokens by the whole weight. A tile of the result lies in the part of one rank along the
tokens and of another along the heads: the first makes it, the second gets it. (DeepSpeed-Ulysses, arXiv 2309.14509.)
"""

import torch
import triton.language as tl

import tilelink as tk


@tk.tile
def matmul(t, x, weight, inbox):
    """One tile of the product, to the rank of its columns."""
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(x.cols):
        acc = tl.dot(x[t.rows, k].load(), weight[k, t.cols].load(), acc, input_precision="ieee")
    tk.notify(inbox[t].store(acc))


@tk.tile
def take(t, inbox, out):
    """One tile of what all ranks sent to this one."""
    tk.copy(tk.wait(inbox[t]), out[t])


@tk.program
def matmul_all_to_all(x: tk.Sharded("M", "K"), weight: tk.Local("K", "N"), out: tk.Sharded("M", "N", axis=1)):
    """out = the columns of this rank of all_gather(x) @ weight, where every rank has the same weight."""
    inbox = tk.sharded("M", "N", axis=1)
    matmul[tk.tiles(x.rows, inbox.cols)](x, weight, inbox)
    take[tk.tiles(out)](inbox, out)


gemm = tk.SMs(tile=(128, 128, 64), order=tk.next_rank_first)
exchange = tk.Schedule(matmul=gemm, take=tk.SMs(4, tile=(128, 128), order=tk.ring))


def main(world: int = 4) -> None:
    """Runs on CPU ranks with uneven tokens and heads, one rank without tokens; compares with torch in float64."""
    tokens, heads = (40, 0, 33, 7, 21, 16, 1, 50)[:world], (16, 32, 8, 24, 0, 16, 48, 8)[:world]
    x = [torch.randn(n, 70) for n in tokens]
    weight = torch.randn(70, sum(heads))
    outs = tk.CpuWorld(world).run(
        lambda group: matmul_all_to_all(x[group.rank], weight, group=group, parts={"M": tokens, "N": heads})
    )
    want = torch.cat(x).double() @ weight.double()
    error = float((torch.cat(outs, 1) - want).norm() / want.norm())
    assert error < 1e-6, error
    print(f"{world} ranks get the columns {heads} of {tokens} tokens, relative RMS {error:.1e} against float64")


if __name__ == "__main__":
    main()
