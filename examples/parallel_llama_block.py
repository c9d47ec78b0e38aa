"""A block of Llama, parallelized by TileLink's styles and by torch's own: the same numbers, from one plan or the other.

    torchrun --nproc-per-node 4 examples/parallel_llama_block.py
    TILELINK_BACKEND=interpret torchrun --nproc-per-node 2 examples/parallel_llama_block.py   # our kernels, interpreted

Tokens are spread over the ranks between layers (sequence parallelism), heads and hidden features inside them. Small,
with random weights; forward, backward, and a step of AdamW, beside the block that is whole on every rank.
"""

import copy
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import parallel as torch_styles
from torch.distributed.tensor.parallel import PrepareModuleInput, SequenceParallel, parallelize_module

from tilelink import nn as tnn

BATCH, TOKENS, WIDTH, HEADS, HIDDEN = 2, 24, 48, 24, 96
TOKEN = Shard(1)  # x is (batch, tokens, width)


class Attention(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias) for _ in range(3))
        self.k = nn.Linear(WIDTH, WIDTH, bias=False)  # softmax leaves out what all scores share

    def forward(self, x):
        batch, tokens, _ = x.shape
        heads = (layer(x).view(batch, tokens, -1, WIDTH // HEADS).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, tokens, -1))


class FeedForward(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.norm, self.attention = nn.RMSNorm(WIDTH), Attention(bias)
        self.second_norm, self.feed_forward = nn.RMSNorm(WIDTH), FeedForward(bias)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.feed_forward(self.second_norm(x))


NORMS = {"norm": SequenceParallel(), "second_norm": SequenceParallel()}
OURS = NORMS | {
    "attention": tnn.SharedColwiseParallel("q", "k", "v", input_layouts=TOKEN),
    "attention.o": tnn.RowwiseParallel(output_layouts=TOKEN),
    "feed_forward": tnn.SharedColwiseParallel("gate", "up", input_layouts=TOKEN),
    "feed_forward.down": tnn.RowwiseParallel(output_layouts=TOKEN),
}
TORCHS = NORMS | {
    "attention": PrepareModuleInput(input_layouts=TOKEN, desired_input_layouts=Replicate()),
    "attention.[qkv]": torch_styles.ColwiseParallel(),
    "attention.o": torch_styles.RowwiseParallel(output_layouts=TOKEN),
    "feed_forward": PrepareModuleInput(input_layouts=TOKEN, desired_input_layouts=Replicate()),
    "feed_forward.gate": torch_styles.ColwiseParallel(),
    "feed_forward.up": torch_styles.ColwiseParallel(),
    "feed_forward.down": torch_styles.RowwiseParallel(output_layouts=TOKEN),
}


def step(block: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The result, gradients, and parameters after a step of AdamW."""
    x = x.detach().clone().requires_grad_()
    y = block(x)
    y.square().sum().backward()
    found = {"result": y.detach(), "gradient of x": x.grad}
    found |= {f"gradient of {name}": p.grad for name, p in block.named_parameters()}
    torch.optim.AdamW(block.parameters(), lr=0.01).step()
    return found | {f"{name}, after a step": p.detach() for name, p in block.named_parameters()}


def on_rank(rank: int, world: int, mesh) -> str:
    torch.manual_seed(0)  # the same numbers on every rank
    block, x = Block(), torch.randn(BATCH, TOKENS, WIDTH)
    mine = x.chunk(world, 1)[rank]
    found = [step(parallelize_module(copy.deepcopy(block), mesh, plan), mine) for plan in (OURS, TORCHS)]
    whole = step(block, x)

    error = 0.0
    for name, right in whole.items():
        for parallel in found:
            part = parallel[name]
            if isinstance(part, DTensor):
                part, wanted = part.full_tensor(), right
            else:  # of tokens
                wanted = right.chunk(world, 1)[rank]
            error = max(error, float((part - wanted).norm() / wanted.norm()))
    assert error < 1e-4, error
    return f"rank {rank} of {world} ranks: {len(whole)} tensors by both plans within {error:.1e} of the whole block's"


def main() -> None:
    alone = "RANK" not in os.environ  # without torchrun, a world of one rank
    dist.init_process_group("gloo", **({"store": dist.HashStore(), "rank": 0, "world_size": 1} if alone else {}))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    print(on_rank(dist.get_rank(), dist.get_world_size(), mesh), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
