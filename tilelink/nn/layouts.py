"""Converts between DTensors and the tensors of operators: a rank's own part, and where the other parts are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard, TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from tilelink.errors import ShapeError, Site
from tilelink.frontend.sizes import even_parts

T = TypeVar("T", torch.Tensor, torch.Tensor | None)


@dataclass(frozen=True)
class Layouts:
    """The settings of a parallel style for a layer: its arguments, the name of the mesh's group, and the mesh. `mesh`
    is a function, so that copying a layer does not copy the mesh."""

    input: Placement
    output: Placement
    use_local_output: bool
    plan: str | None
    group_name: str
    mesh: Callable[[], DeviceMesh]

    def __str__(self) -> str:
        plan = "" if self.plan is None else f", plan={self.plan!r}"
        return f"input={self.input}, output={self.output}{plan}"


class Spread(NamedTuple):
    """The rank's part of a tensor. `dim`: the dimension along which ranks have parts, or None if each rank has the
    whole; `lengths`: of the parts, if they differ. `partial`: whether the gradient may be this rank's summand only: the
    DTensor adds these up later, once for all users of the tensor."""

    local: torch.Tensor
    dim: int | None
    lengths: list[int] | None
    partial: bool = False


def local(x: T) -> T:
    """Returns the rank's part of a DTensor, and anything else unchanged."""
    return x.to_local() if isinstance(x, DTensor) else x


def is_shard(placement: Placement) -> TypeGuard[Shard]:
    """Whether parts lie along a dimension in the order of ranks. Subclasses of Shard have other orders."""
    return type(placement) is Shard


def dim_of(placement: Placement, x: torch.Tensor) -> int | None:
    """Returns the dimension along which ranks have parts, counted from 0, or None if they have no parts. Raises
    ShapeError if x has no such dimension."""
    if not isinstance(placement, Shard):
        return None
    if not -x.dim() <= placement.dim < x.dim():
        raise ShapeError(f"the layout is {placement}; the tensor has shape {tuple(x.shape)}", Site.of_user())
    return placement.dim % x.dim()


def as_dtensor(x: torch.Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    """Returns x if it is a DTensor, else the DTensor with this placement whose part on this rank is x."""
    return x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [placement], run_check=False)


def redistributed(x: DTensor, placement: Placement) -> DTensor:
    """Returns x with this placement. If x has it, returns x itself: a redistribution would act on gradients, too."""
    return x if x.placements == (placement,) else x.redistribute(placements=[placement])


def spread(x: torch.Tensor, mesh: DeviceMesh, placement: Placement) -> Spread:
    """Returns the rank's part of x if x is spread along a dimension, else the whole x. `placement`: of a plain x."""
    if not isinstance(x, DTensor) and (is_shard(placement) or placement.is_replicate()):
        return Spread(x, dim_of(placement, x), None)
    whole = as_dtensor(x, mesh, placement)
    (placement,) = whole.placements
    if is_shard(placement):
        dim = placement.dim % x.dim()
        return Spread(whole.to_local(), dim, uneven_lengths(whole.shape[dim], mesh.size()))
    whole = redistributed(whole, Replicate())
    return Spread(whole.to_local(grad_placements=[Partial()]), None, None, partial=True)


def distributed(
    module: nn.Module, placements: Mapping[str, Sequence[Placement]], mesh: DeviceMesh, source: int | None
) -> None:
    """Makes the module's own parameters DTensors. Their values come from rank `source`; with None, each rank uses its
    own values."""
    for name, whole in list(module.named_parameters(recurse=False)):
        parts = distribute_tensor(whole, mesh, placements[name], src_data_rank=source)
        module.register_parameter(name, nn.Parameter(parts, requires_grad=whole.requires_grad))


def uneven_lengths(total: int, world: int) -> list[int] | None:
    """Returns how many of `total` tokens each rank has in a DTensor, or None if all have as many. Parts are cut as by
    `torch.chunk`; missing parts are empty."""
    return None if total % world == 0 else list(even_parts(total, world))


def features_of(x: torch.Tensor, mesh: DeviceMesh, placement: Placement) -> torch.Tensor:
    """Returns the rank's features of x, for all tokens. `placement`: of a plain x."""
    last = x.dim() - 1
    if not isinstance(x, DTensor) and is_shard(placement) and dim_of(placement, x) == last:
        return x
    return redistributed(as_dtensor(x, mesh, placement), Shard(last)).to_local()


def laid_out(
    y: torch.Tensor, mesh: DeviceMesh, made: Placement, layouts: Layouts, shape: Sequence[int] | None = None
) -> torch.Tensor:
    """Returns a layer's result in the layout `layouts.output`. `y`: the rank's part of it in the layout `made`;
    `shape`: of the whole result, if parts are uneven."""
    as_wanted = made == layouts.output or (is_shard(made) and dim_of(made, y) == dim_of(layouts.output, y))
    if as_wanted and layouts.use_local_output:
        return y
    size, stride = (None, None) if shape is None else (torch.Size(shape), _strides(shape))
    whole = DTensor.from_local(y, mesh, [made], run_check=False, shape=size, stride=stride)
    if not as_wanted:
        whole = whole.redistribute(placements=[layouts.output])
    return whole.to_local() if layouts.use_local_output else whole


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a contiguous tensor."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
