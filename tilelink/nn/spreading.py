"""How an `nn.Linear` becomes one of ours: in place, its parameters spread over a mesh as torch's styles spread them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from tilelink.errors import ArgumentError, Site
from tilelink.nn.dtensor_linear import ColwiseLinear, RowwiseLinear, Siblings
from tilelink.nn.layouts import Layouts
from tilelink.nn.linear import ANYWHERE
from tilelink.nn.shards import share
from tilelink.ops.collectives import name_of_group


def layouts_of(style: ColwiseParallel | RowwiseParallel, mesh: DeviceMesh, plan: str | None) -> Layouts:
    """What a style says, on a mesh. Raises ArgumentError where that has more than one dimension."""
    (given,), (wanted,) = style.input_layouts, style.output_layouts
    return Layouts(given, wanted, style.use_local_output, plan, name_of_group(mesh), lambda: mesh)


def can_be_ours(module: nn.Module, features: str, mesh: DeviceMesh, plan: str | None) -> TypeGuard[nn.Linear]:
    """Whether a module is a plain `nn.Linear` whose `features`, "in_features" or "out_features", the ranks can share
    evenly. Raises ArgumentError or ShapeError where it is not, and a plan asks for a program."""
    if isinstance(module, ColwiseLinear | RowwiseLinear):
        raise ArgumentError(f"{module} is spread already", Site.of_user())
    if type(module) is not nn.Linear:
        if plan not in ANYWHERE:
            raise ArgumentError(f"plan is {plan!r} for {module}: only an nn.Linear has plans", Site.of_user())
        return False
    if plan not in ANYWHERE:
        share(getattr(module, features), mesh.size(), features)
    return int(getattr(module, features)) % mesh.size() == 0


def make_colwise(layers: Mapping[str, nn.Linear], mesh: DeviceMesh, layouts: Layouts, source: int | None) -> None:
    """Makes layers, which share their input, column-parallel; their whole values are those of rank `source`, or of each
    rank (None)."""
    made: dict[str, ColwiseLinear] = {}
    for name, layer in layers.items():
        _distribute(layer, mesh, {"weight": Shard(0), "bias": Shard(0)}, source)
        layer.__class__ = ColwiseLinear
        assert isinstance(layer, ColwiseLinear)
        layer.layouts, layer.name = layouts, name
        made[name] = layer
    siblings = Siblings(made)
    for one in made.values():
        one.siblings = siblings


def make_rowwise(layer: nn.Linear, mesh: DeviceMesh, layouts: Layouts, source: int | None) -> None:
    """Makes a layer row-parallel, as `make_colwise`."""
    _distribute(layer, mesh, {"weight": Shard(1), "bias": Replicate()}, source)
    layer.__class__ = RowwiseLinear
    assert isinstance(layer, RowwiseLinear)
    layer.layouts = layouts


def _distribute(layer: nn.Linear, mesh: DeviceMesh, placements: Mapping[str, Placement], source: int | None) -> None:
    for name, whole in list(layer.named_parameters(recurse=False)):
        spread = distribute_tensor(whole, mesh, [placements[name]], src_data_rank=source)
        layer.register_parameter(name, nn.Parameter(spread, requires_grad=whole.requires_grad))
