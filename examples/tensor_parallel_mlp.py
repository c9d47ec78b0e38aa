"""A feed-forward layer under tensor and sequence parallelism, forward and backward, beside the same layer unsharded.

    torchrun --nproc-per-node 4 examples/tensor_parallel_mlp.py
    TILELINK_BACKEND=interpret torchrun --nproc-per-node 2 examples/tensor_parallel_mlp.py   # our kernels, interpreted

Tokens are spread over the ranks, and so are the hidden features: gate and up are column-parallel and share one gather
of the tokens, down is row-parallel and scatters them again.
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F

from tilelink import ops

BATCH, TOKENS, WIDTH, HIDDEN = 2, 24, 32, 96


def sharded(x, gate, up, down):
    """`x`: this rank's tokens, (BATCH, TOKENS / ranks, WIDTH). The weights: its part of the hidden features."""
    a, b = ops.all_gather_linear(x, [gate, up], gather_dim=1)
    return ops.linear_reduce_scatter(F.silu(a) * b, down, scatter_dim=1)


def unsharded(x, gate, up, down):
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def on_rank(rank: int, world: int) -> str:
    numbers = torch.Generator().manual_seed(0)  # the same numbers on every rank
    x = torch.randn(BATCH, TOKENS, WIDTH, generator=numbers)
    gate, up = (torch.randn(HIDDEN, WIDTH, generator=numbers) / WIDTH**0.5 for _ in range(2))
    down = torch.randn(WIDTH, HIDDEN, generator=numbers) / HIDDEN**0.5
    whole = [t.requires_grad_() for t in (x, gate, up, down)]
    cut = (1, 0, 0, 1)  # the dimension of each that is spread
    mine = [t.detach().chunk(world, d)[rank].clone().requires_grad_() for t, d in zip(whole, cut, strict=True)]

    wanted = unsharded(*whole)
    wanted.square().sum().backward()
    y = sharded(*mine)
    y.square().sum().backward()

    pairs = [(y, wanted.chunk(world, 1)[rank])]
    pairs += [(m.grad, w.grad.chunk(world, d)[rank]) for m, w, d in zip(mine, whole, cut, strict=True)]
    error = max(float((a.detach() - b.detach()).norm() / b.detach().norm()) for a, b in pairs)
    assert error < 1e-5, error
    return f"rank {rank} of {world} ranks: output and four gradients within {error:.1e} of the unsharded layer's"


def main() -> None:
    alone = "RANK" not in os.environ  # without torchrun, a world of one rank
    dist.init_process_group("gloo", **({"store": dist.HashStore(), "rank": 0, "world_size": 1} if alone else {}))
    print(on_rank(dist.get_rank(), dist.get_world_size()), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
