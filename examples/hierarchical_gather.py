"""AllGather-GEMM on nodes: rows cross to each node once, to one rank of it, and are passed on inside.

Relays are found by arithmetic on ranks, and notifications stand under conditions on ranks: how often each signal
comes is derived all the same.
"""

import torch

import tilelink as tk
from tilelink.kernels.all_gather_matmul import matmul

LOCAL = 2  # ranks on a node


@tk.tile
def across(t, x, full):
    """Bring a tile to the rank on that node that has this one's place."""
    if t.node < tk.world() // LOCAL:
        tk.notify(tk.copy(x[t], full[t].at(t.node * LOCAL + t.home % LOCAL)))


@tk.tile
def inside(t, full):
    """Bring a tile from the rank of this node that has it to the reader."""
    relay = t.reader // LOCAL * LOCAL + t.home % LOCAL
    if relay != t.reader:
        tk.notify(tk.copy(tk.wait(full[t].at(relay)), full[t].at(t.reader)))


@tk.program
def hierarchical_all_gather_matmul(x: tk.Sharded("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N")):
    """out = all_gather(x) @ weight on every rank of a whole number of nodes."""
    full = tk.local("M", "K")
    across[tk.tiles(x, node=tk.ranks)](x, full)
    inside[tk.tiles(full, reader=tk.ranks)](full)
    matmul[tk.tiles(out)](full, weight, out, None)


gemm = tk.SMs(tile=(32, 64, 32))
relayed = tk.Schedule(
    across=tk.SMs(2, tile=(32, 64), at="home"), inside=tk.SMs(2, tile=(32, 64), at="reader"), matmul=gemm
)


def main(world: int = 4) -> None:
    """Runs on CPU ranks on small integers, with a rank that has no rows."""
    parts = (40, 0, 33, 7)[:world]
    x = [torch.randint(-3, 4, (m, 70)).float() for m in parts]
    weight = [torch.randint(-3, 4, (70, 50)).float() for _ in parts]
    outs = tk.CpuWorld(world).run(
        lambda group: hierarchical_all_gather_matmul(
            x[group.rank], weight[group.rank], group=group, parts={"M": parts}
        )
    )
    for out, w in zip(outs, weight, strict=True):
        assert torch.equal(out, torch.cat(x) @ w)
    print(f"{world} ranks on {world // LOCAL} nodes, bit for bit")


if __name__ == "__main__":
    main()
