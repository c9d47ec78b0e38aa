"""What the processes of a pool do in tests of styles and layers; the functions here run on every rank."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

from examples.parallel_llama_block import BATCH, OURS, TOKENS, TORCHS, WIDTH, Block
from tests.ops.on_ranks import computed_by, new_counter
from tilelink import nn as tnn

LIMIT = 1e-5
"""Relative RMS in float32."""
Found = dict[str, torch.Tensor]

REPLICATED = {
    "attention": tnn.SharedColwiseParallel("q", "k", "v"),
    "attention.o": tnn.RowwiseParallel(),
    "feed_forward": tnn.SharedColwiseParallel("gate", "up"),
    "feed_forward.down": tnn.RowwiseParallel(),
}
"""Tensor parallelism where every rank has all tokens."""
EACH = {
    "norm": SequenceParallel(),
    "second_norm": SequenceParallel(),
    "attention.[qkv]": tnn.ColwiseParallel(input_layouts=Shard(1)),
    "attention.o": tnn.RowwiseParallel(output_layouts=Shard(1)),
    "feed_forward.[gu]*": tnn.ColwiseParallel(input_layouts=Shard(1)),
    "feed_forward.down": tnn.RowwiseParallel(output_layouts=Shard(1)),
}
"""As OURS, with a gather for each layer."""
SWAPPED = TORCHS | {
    "attention.[qkv]": tnn.ColwiseParallel(),
    "attention.o": tnn.RowwiseParallel(output_layouts=Shard(1)),
    "feed_forward.gate": tnn.ColwiseParallel(),
    "feed_forward.up": tnn.ColwiseParallel(),
    "feed_forward.down": tnn.RowwiseParallel(output_layouts=Shard(1)),
}
"""Torch's plan with our classes in it: torch gathers, once."""
PLANS = {"ours": OURS, "each": EACH, "replicated": REPLICATED, "swapped": SWAPPED}


def mesh_of(group: dist.ProcessGroup) -> DeviceMesh:
    return DeviceMesh.from_group(group, "cpu", mesh_dim_names=("tp",))


def whole(t: torch.Tensor) -> torch.Tensor:
    return t.full_tensor() if isinstance(t, DTensor) else t


def far(found: torch.Tensor, right: torch.Tensor) -> float:
    """Relative RMS of the difference."""
    if found.shape != right.shape:
        return float("inf")
    if not right.numel():
        return 0.0
    return float((found.detach().double() - right.detach().double()).norm() / right.detach().double().norm())


def step(model: nn.Module, x: torch.Tensor, autocast: bool = False) -> Found:
    """The result, gradients, and parameters after a step."""
    x = x.detach().clone().requires_grad_()
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        y = model(x)
    (whole(y).float() ** 2).mul(torch.arange(1, y.shape[-1] + 1)).sum().backward()
    assert x.grad is not None
    found = {"result": y.detach(), "gradient of x": x.grad}
    parameters = {n.removeprefix("_orig_mod."): p for n, p in model.named_parameters()}
    found |= {f"gradient of {n}": p.grad for n, p in parameters.items() if p.grad is not None}
    torch.optim.SGD(parameters.values(), lr=0.01).step()
    return found | {f"new {n}": p.detach().clone() for n, p in parameters.items()}


Part = Callable[[torch.Tensor], torch.Tensor]
"""What a rank has of x, and of results."""


def errors(found: Found, right: Found, shard: Part, limit: float = LIMIT) -> list[str]:
    """What is wrong of a parallel step."""
    assert found.keys() == right.keys()
    wrong = []
    for name, t in found.items():
        wanted = shard(right[name]) if name in ("result", "gradient of x") else right[name]
        if not far(whole(t), wanted) < limit:
            wrong.append(f"{name}: {far(whole(t), wanted):.1e}")
    return wrong


def block_wrong(group: dist.ProcessGroup, plan: str, backend: str, bias: bool = True) -> list[str]:
    """What is wrong of two steps in a row of a block that is parallelized by a plan."""
    torch.manual_seed(1)
    block = Block(bias)
    tokens = TOKENS if plan != "replicated" else 5
    parallel = parallelize_module(copy.deepcopy(block), mesh_of(group), PLANS[plan])
    wrong = []
    with computed_by(backend, group):
        part = nothing if plan == "replicated" else own_tokens(group)
        for _ in range(2):
            x = torch.randn(BATCH, tokens, WIDTH)
            wrong += errors(step(parallel, part(x)), step(block, x), part)
    return wrong


def own_tokens(group: dist.ProcessGroup) -> Part:
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    return lambda t: t.chunk(world, 1)[rank]


def nothing(t: torch.Tensor) -> torch.Tensor:
    return t


class Sent(TorchDispatchMode):
    """Notes the operators of ours and the collectives of torch that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("tilelink", "_c10d_functional", "c10d") and func._opname != "wait_tensor":
            self.names.append(func._opname)
        return func(*args, **(kwargs or {}))


def sent(group: dist.ProcessGroup, plan: str) -> tuple[list[str], list[str]]:
    """What the forward of a block sends, and its backward (without norms, whose gradients nobody adds up here)."""
    block = parallelize_module(Block(), mesh_of(group), PLANS[plan])
    x = torch.randn(BATCH, TOKENS, WIDTH, requires_grad=True)
    with Sent() as forward:
        y = block(x)
    with Sent() as backward:
        y.sum().backward()
    return forward.names, backward.names


def compiled_block(group: dist.ProcessGroup, plan: str, backend: str) -> tuple[int, list[str]]:
    """How often a block is compiled for two numbers of tokens, without a break; and what is wrong of it."""
    counter = new_counter(backend)
    torch.manual_seed(1)
    block = Block(True)
    parallel = parallelize_module(copy.deepcopy(block), mesh_of(group), PLANS[plan])
    fast = torch.compile(parallel, backend=counter, fullgraph=True, dynamic=True)
    part = nothing if plan == "replicated" else own_tokens(group)
    wrong = []
    for tokens in (TOKENS, 2 * TOKENS):
        x = torch.randn(BATCH, tokens, WIDTH)
        wrong += errors(step(fast, part(x)), step(block, x), part)
    return counter.frame_count, wrong
