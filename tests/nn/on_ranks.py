"""What the processes of a pool do in tests of styles and layers; the functions here run on every rank."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import parallel as torch_styles
from torch.distributed.tensor.parallel import ParallelStyle, SequenceParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

from examples.parallel_llama_block import BATCH, HIDDEN, OURS, TOKENS, TORCHS, WIDTH, Block, FeedForward
from tests.ops.on_ranks import computed_by
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
PLANS = {"ours": OURS, "torch's": TORCHS, "each": EACH, "replicated": REPLICATED, "swapped": SWAPPED}


def mesh_of(group: dist.ProcessGroup) -> DeviceMesh:
    return DeviceMesh.from_group(group, "cpu", mesh_dim_names=("tp",))


def whole(t: torch.Tensor) -> torch.Tensor:
    return t.full_tensor() if isinstance(t, DTensor) else t


def far(found: torch.Tensor, right: torch.Tensor) -> float:
    """Relative RMS of the difference."""
    if found.shape != right.shape:
        return float("inf")
    return float((found.detach().double() - right.detach().double()).norm() / right.detach().double().norm())


def step(model: nn.Module, x: torch.Tensor, autocast: bool = False) -> Found:
    """The result, gradients, and parameters after a step."""
    x = x.detach().clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        y = model(x)
    (whole(y).float() ** 2).mul(torch.arange(1, y.shape[-1] + 1)).sum().backward()
    assert x.grad is not None
    found = {"result": y.detach(), "gradient of x": x.grad}
    found |= {f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    return found | {f"new {n}": p.detach() for n, p in model.named_parameters()}


def errors(found: Found, right: Found, shard: Callable[[torch.Tensor], torch.Tensor], limit: float = LIMIT) -> list[str]:
    """What is wrong of a parallel step. `shard`: what a rank has of x and of the result."""
    assert found.keys() == right.keys()
    wrong = []
    for name, t in found.items():
        wanted = shard(right[name]) if name in ("result", "gradient of x") else right[name]
        if not far(whole(t), wanted) < limit:
            wrong.append(f"{name}: {far(whole(t), wanted):.1e}")
    return wrong


def block_wrong(group: dist.ProcessGroup, plan: str, backend: str, bias: bool = True) -> list[str]:
    """What is wrong of two steps in a row of a block that is parallelized by a plan."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    torch.manual_seed(1)
    block = Block(bias)
    tokens = TOKENS if plan != "replicated" else 5
    parallel = parallelize_module(copy.deepcopy(block), mesh_of(group), PLANS[plan])
    wrong = []
    with computed_by(backend, group):
        for _ in range(2):
            x = torch.randn(BATCH, tokens, WIDTH)
            parallel.zero_grad()
            block.zero_grad()
            part = nothing if plan == "replicated" else lambda t: t.chunk(world, 1)[rank]
            wrong += errors(step(parallel, part(x)), step(block, x), part)
    return wrong


def nothing(t: torch.Tensor) -> torch.Tensor:
    return t


# ---- one linear layer, in all layouts

COLWISE: list[dict[str, Any]] = [
    {"input_layouts": i, "output_layouts": o}
    for i in (None, Shard(0), Shard(1), Shard(-1), Partial())
    for o in (None, Shard(2), Replicate())
]
ROWWISE: list[dict[str, Any]] = [
    {"input_layouts": i, "output_layouts": o}
    for i in (None, Replicate())
    for o in (None, Shard(0), Shard(1), Shard(-1), Partial())
]


def layouts_wrong(group: dist.ProcessGroup, bias: bool) -> list[str]:
    """Where a layer by our styles differs from one by torch's: in results, gradients, and how they are laid out."""
    wrong = []
    for name, cases in (("ColwiseParallel", COLWISE), ("RowwiseParallel", ROWWISE)):
        for case in cases:
            for local in (True, False):
                styles = [getattr(m, name)(use_local_output=local, **case) for m in (tnn, torch_styles)]
                ours, torchs = (_one_linear(group, style, bias) for style in styles)
                wrong += [f"{styles[0]}, local={local}: {e}" for e in differences(ours, torchs)]
    return wrong


def _one_linear(group: dist.ProcessGroup, style: ParallelStyle, bias: bool, sizes: Sequence[int] = ()) -> Found:
    world, mesh = dist.get_world_size(group), mesh_of(group)
    torch.manual_seed(2)
    sizes = sizes or (2 * world, 3 * world, 4 * world, 5 * world)
    layer = parallelize_module(nn.Linear(sizes[-2], sizes[-1], bias), mesh, style)
    (layout,) = style.input_layouts  # type: ignore[attr-defined]
    found: Found = {}
    for given in {type(layout).__name__: layout, "Replicate": Replicate(), "Shard": Shard(1)}.values():
        x = torch.randn(sizes[:-1])
        spread = DTensor.from_local(x / world, mesh, [Partial()]) if given.is_partial() else None
        spread = (distribute_tensor(x, mesh, [given]) if spread is None else spread).detach()
        for leaf in [spread] + ([spread.to_local().clone()] if given is layout else []):
            leaf.requires_grad_()
            y = layer(leaf)
            layer.zero_grad()
            mine = y.to_local() if isinstance(y, DTensor) else y
            (mine**2).sum().backward()
            called = f"{'' if given is layout else 'another, '}{given} {type(leaf).__name__}"
            found |= {f"{called}, result": y.detach(), f"{called}, gradient of x": leaf.grad}  # type: ignore[dict-item]
            found |= {f"{called}, gradient of {n}": p.grad for n, p in layer.named_parameters()}  # type: ignore[misc]
    return found


def differences(ours: Found, torchs: Found) -> list[str]:
    """In values; and in layouts, but for gradients where x has another layout than the style says: there torch leaves
    sums to be made, or makes what nobody needs."""
    wrong = []
    for name, a in ours.items():
        b = torchs[name]
        laid_out = [(t.placements, t.shape) if isinstance(t, DTensor) else t.shape for t in (a, b)]
        if laid_out[0] != laid_out[1] and not (name.startswith("another") and "gradient" in name):
            wrong.append(f"{name} is {laid_out[0]}, by torch's {laid_out[1]}")
        a, b = whole(a), whole(b)
        if b.numel() and not far(a, b) < LIMIT:
            wrong.append(f"{name}: {far(a, b):.1e}")
    return wrong
