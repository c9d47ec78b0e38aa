"""One linear layer by our styles and by torch's, in all layouts; the functions here run on every rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import parallel as torch_styles
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from tests.nn.on_ranks import LIMIT, Found, far, mesh_of, whole
from tilelink import nn as tnn

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


CANT_FLATTEN = "Attempted to flatten multiple dimensions"
"""What DTensor of torch 2.11 says of an input that is sharded along dimension 1: there is nothing to compare with."""


def layouts_wrong(group: dist.ProcessGroup, bias: bool, every: int = 1) -> list[str]:
    """Where a layer by our styles differs from one by torch's: in results, gradients, and how they are laid out."""
    wrong = []
    for name, cases in (("ColwiseParallel", COLWISE), ("RowwiseParallel", ROWWISE)):
        for case in cases[::every]:
            for local in (True, False):
                styles = [getattr(m, name)(use_local_output=local, **case) for m in (tnn, torch_styles)]
                try:
                    torchs = _one_linear(group, styles[1], bias)
                except RuntimeError as e:
                    if CANT_FLATTEN in str(e):
                        continue
                    raise
                ours = _one_linear(group, styles[0], bias)
                wrong += [f"{styles[0]}, local={local}: {e}" for e in differences(ours, torchs)]
    return wrong


def _one_linear(group: dist.ProcessGroup, style: ParallelStyle, bias: bool) -> Found:
    world, mesh = dist.get_world_size(group), mesh_of(group)
    torch.manual_seed(2)
    sizes = (2 * world, 3 * world, 4 * world, 5 * world)
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
        if not far(a, b) < LIMIT:
            wrong.append(f"{name}: {far(a, b):.1e}")
    return wrong
