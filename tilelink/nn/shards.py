"""A rank's part of parameters and tokens."""

from __future__ import annotations

from typing import Any

import torch

from tilelink.errors import ShapeError, Site
from tilelink.ops.collectives import Members


def share(features: int, world: int, what: str) -> int:
    """How many features are a rank's. Raises ShapeError."""
    if features % world:
        raise ShapeError(f"{what} is {features}, which {world} ranks can't share evenly", Site.of_user())
    return features // world


def copy_part(whole: torch.Tensor, mine: torch.Tensor, dim: int | None, group_name: str) -> None:
    """Copies this rank's part along `dim` of a tensor, or all of it (None)."""
    members = Members.named(group_name)
    part = whole.detach() if dim is None else whole.detach().chunk(members.world, dim)[members.rank]
    mine.copy_(part)


def uneven_lengths(total: int, world: int) -> list[int] | None:
    """How many of `total` tokens each rank has where a DTensor spreads them unevenly (as `torch.chunk` cuts, parts that
    are missing being empty), or None."""
    if total % world == 0:
        return None
    longest = -(-total // world)
    return [min(longest, max(0, total - rank * longest)) for rank in range(world)]


def shown(layer: Any, **dim: int | None) -> str:
    """What the layer of Megatron's kind prints of itself; `dim`: along which tokens are spread, by its name."""
    told = {"in_features": layer.in_features, "out_features": layer.out_features, "bias": layer.bias is not None}
    if any(d is not None for d in dim.values()):
        told |= {"sequence_parallel": True, **dim}
    if layer.plan is not None:
        told["plan"] = repr(layer.plan)
    return ", ".join(f"{k}={v}" for k, v in told.items()) + f", a rank has {tuple(layer.weight.shape)}"
