"""The same ranks in one process, or in a process each; what a rank does is one function, and its bits are the same.

    python examples/one_process_a_rank.py                              # four ranks in this process, searched for races
    torchrun --nproc-per-node 4 examples/one_process_a_rank.py         # a process a rank, symmetric memory shared
"""

import hashlib
import os

import torch
import torch.distributed as dist

import tilelink as tk
from tilelink.kernels.all_gather_matmul import all_gather_matmul

WORLD, ROWS, N, K = 4, (40, 0, 25, 64), 80, 96


def on_rank(group) -> str:
    """Two calls of a rank, with shards of its own length; a line about what came of them."""
    numbers = torch.Generator().manual_seed(0)
    x = [torch.randn(rows, K, generator=numbers) for rows in ROWS]
    weight = [torch.randn(K, N, generator=numbers) for _ in ROWS]
    mine = x[group.rank], weight[group.rank]
    outs = [all_gather_matmul(*mine, schedule=s, parts={"M": ROWS}, group=group) for s in ("push", "pull")]
    group.synchronize()
    bits = hashlib.sha256(b"".join(y.numpy().tobytes() for y in outs)).hexdigest()
    right = torch.cat(x).double() @ weight[group.rank].double()
    error = max(float((y - right).norm() / right.norm()) for y in outs)
    assert error < 1e-6, error
    return f"rank {group.rank} of {group.world} ranks: relative RMS {error:.1e} against float64, bits {bits[:16]}"


def main() -> None:
    if "RANK" in os.environ:  # torchrun started this process
        dist.init_process_group("gloo")
        group = tk.group()
        print(on_rank(group), flush=True)
        dist.barrier()
        dist.destroy_process_group()
    else:
        print("\n".join(tk.CpuWorld(WORLD).run(on_rank)))


if __name__ == "__main__":
    main()
