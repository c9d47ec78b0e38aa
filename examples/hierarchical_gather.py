"""AllGather-GEMM on nodes: rows cross to each node once, to one rank of it, and are passed on inside.

Only the first step goes over the links between nodes. Who relays what is arithmetic on ranks; how often each signal
comes is derived all the same.
"""

import torch

import tilelink as tk
from tilelink.kernels.all_gather_matmul import matmul


@tk.tile
def across(t, x, full):
    """Bring a tile to the rank on that node that has the place of its home."""
    tk.notify(tk.copy(x[t], full[t].at(tk.rank_at(t.node, tk.place(t.home)))))


@tk.tile
def inside(t, full):
    """Bring a tile from the rank of this node that has it to the rank at another place."""
    relay = tk.rank_at(tk.node(), tk.place(t.home))
    reader = tk.rank_at(tk.node(), t.place)
    if relay != reader:
        tk.notify(tk.copy(tk.wait(full[t].at(relay)), full[t].at(reader)))


@tk.program
def hierarchical_all_gather_matmul(x: tk.Sharded("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N")):
    """out = all_gather(x) @ weight on every rank of all nodes."""
    full = tk.local("M", "K")
    across[tk.tiles(x, node=tk.nodes)](x, full)
    inside[tk.tiles(full, place=tk.locals)](full)
    matmul[tk.tiles(out)](full, weight, out, None)


relayed = tk.Schedule(
    across=tk.SMs(4, tile=(128, 256), at="home", order=tk.own_rank_first),
    inside=tk.SMs(8, tile=(128, 256), at="place"),
    matmul=tk.SMs(tile=(128, 128, 64), order=tk.own_rank_first),
)


def main(world: int = 4, per_node: int = 2) -> None:
    """Runs on CPU ranks on small integers, where every sum is exact; one rank has no rows."""
    parts = (40, 0, 33, 7, 21, 16, 1, 50)[:world]
    x = [torch.randint(-3, 4, (m, 70)).float() for m in parts]
    weight = [torch.randint(-3, 4, (70, 50)).float() for _ in parts]
    outs = tk.CpuWorld(world, per_node=per_node).run(
        lambda group: hierarchical_all_gather_matmul(
            x[group.rank], weight[group.rank], group=group, parts={"M": parts}
        )
    )
    for out, w in zip(outs, weight, strict=True):
        assert torch.equal(out, torch.cat(x) @ w)
    print(f"{world} ranks on {world // per_node} nodes, bit for bit")


if __name__ == "__main__":
    main()
