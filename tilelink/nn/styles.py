"""Parallel styles for `torch.distributed.tensor.parallel.parallelize_module`: torch's styles, with our operators.

An `nn.Linear` becomes one of ours in place, its parameters spread over a mesh as torch's styles spread them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeGuard, TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel as TorchColwiseParallel
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.parallel import RowwiseParallel as TorchRowwiseParallel

from tilelink.errors import ArgumentError, ShapeError, Site, public_class
from tilelink.nn.dtensor_linear import ColwiseLinear, RowwiseLinear, Siblings
from tilelink.nn.layouts import Layouts, as_dtensor, dim_of, distributed, is_shard, redistributed
from tilelink.nn.linear import check_column_plan, check_row_plan, share
from tilelink.ops.collectives import name_of_group
from tilelink.plans.names import names_program

Ours = TypeVar("Ours", ColwiseLinear, RowwiseLinear)


@public_class
class ColwiseParallel(TorchColwiseParallel):
    """Spreads the output features of an `nn.Linear` over the ranks, with the arguments of torch's ColwiseParallel.
    If its input is spread over tokens (such as `input_layouts=Shard(1)`), the gather and the product are one
    `tilelink.ops.all_gather_linear`, with `plan`. If every rank has the input, its gradient comes by
    `linear_all_reduce`. Everything else behaves as in torch: other modules, features that the ranks can't share evenly,
    a redistribution of the result. Linears that share one input take `SharedColwiseParallel`.

    Raises ScheduleError, ArgumentError, and ShapeError if a plan asks for a program and ranks can't share the features.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        plan: str | None = None,
    ) -> None:
        super().__init__(
            input_layouts=input_layouts, output_layouts=output_layouts, use_local_output=use_local_output
        )
        check_column_plan(plan, is_shard(self.input_layouts[0]))
        self.plan = plan

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        layouts = layouts_of(self, device_mesh)
        if not _can_be_ours(module, "out_features", layouts):
            return super()._apply(module, device_mesh)
        _make_colwise({"": module}, layouts, self.src_data_rank)
        return module


@public_class
class RowwiseParallel(TorchRowwiseParallel):
    """Spreads the input features of an `nn.Linear` over the ranks and sums the products, with the arguments of torch's
    RowwiseParallel. A result that is spread over tokens (such as `output_layouts=Shard(1)`) comes by
    `tilelink.ops.linear_reduce_scatter`, a result on every rank (Replicate(), the default) by `linear_all_reduce`;
    `plan` is a plan of this operator. Everything else behaves as in torch: other modules, features that the ranks
    can't share evenly, a redistribution of the input, a result that is Partial().

    Raises ScheduleError, ArgumentError, and ShapeError if a plan asks for a program and ranks can't share the features.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        plan: str | None = None,
    ) -> None:
        super().__init__(
            input_layouts=input_layouts, output_layouts=output_layouts, use_local_output=use_local_output
        )
        check_row_plan(plan, is_shard(self.output_layouts[0]), self.output_layouts[0].is_partial())
        self.plan = plan

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        layouts = layouts_of(self, device_mesh)
        if layouts.output.is_partial() or not _can_be_ours(module, "in_features", layouts):
            if type(module) is nn.Linear and module.in_features % device_mesh.size():
                module.register_forward_pre_hook(partial(_check_parts, layouts))  # before the hook of torch's style
            return super()._apply(module, device_mesh)
        _make(RowwiseLinear, module, {"weight": Shard(1), "bias": Replicate()}, layouts, self.src_data_rank)
        return module


@public_class
class SharedColwiseParallel(ParallelStyle):
    """A style for a module (attention, a feed-forward layer) that calls several linears with one input: Q, K and V;
    gate and up. It makes them column-parallel, each as `ColwiseParallel` would. Their input is gathered once for all of
    them, and its gradient is summed once.

    `names`: of the linears in the module. `argument`: the parameter of the module's `forward` that holds the input, by
    default the first. If the input is spread over tokens, it is a DTensor inside the module and has the shape of the
    whole there, as after torch's `PrepareModuleInput`, which this style replaces. `input_layouts`: of a plain tensor as
    input; `output_layouts`, `use_local_output`, `plan`: of each linear, as in `ColwiseParallel`.

    Raises ArgumentError, ScheduleError, and ShapeError if a plan asks for a program and ranks can't share the features.
    """

    def __init__(
        self,
        *names: str,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        plan: str | None = None,
        argument: str | None = None,
    ) -> None:
        if not names or not all(isinstance(name, str) for name in names):
            what = "the linears that share their input are named one by one, SharedColwiseParallel('gate', 'up')"
            raise ArgumentError(f"{what}; given: {names}", Site.of_user())
        self.names, self.argument = names, argument
        self.style = ColwiseParallel(
            input_layouts=input_layouts, output_layouts=output_layouts, use_local_output=use_local_output, plan=plan
        )

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        linears, layouts = _children(module, self.names), layouts_of(self.style, device_mesh)
        place, name = _parameter(module, self.argument)
        ours = {n: m for n, m in linears.items() if _can_be_ours(m, "out_features", layouts)}
        if len(ours) == len(linears):
            _make_colwise(ours, layouts, self.src_data_rank)
            module.register_forward_pre_hook(partial(_begin, self.names))
            as_input = _annotated
        else:  # each linear by torch's style; every rank gets their whole input
            style = TorchColwiseParallel(output_layouts=layouts.output, use_local_output=layouts.use_local_output)
            style.src_data_rank = self.src_data_rank
            for linear in linears.values():
                style._apply(linear, device_mesh)
            as_input = _gathered

        def with_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if name in kwargs:
                return args, kwargs | {name: as_input(kwargs[name], layouts)}
            shared = (as_input(x, layouts) for x in args[place : place + 1])
            return (*args[:place], *shared, *args[place + 1 :]), kwargs

        module.register_forward_pre_hook(with_input, with_kwargs=True)
        return module


def layouts_of(style: ColwiseParallel | RowwiseParallel, mesh: DeviceMesh) -> Layouts:
    """Returns the settings of a style on a mesh. Raises ArgumentError if the mesh has more than one dimension."""
    (given,), (wanted,) = style.input_layouts, style.output_layouts
    return Layouts(given, wanted, style.use_local_output, style.plan, name_of_group(mesh), lambda: mesh)


def _can_be_ours(module: nn.Module, features: str, layouts: Layouts) -> TypeGuard[nn.Linear]:
    """Whether a module is a plain `nn.Linear` whose `features`, "in_features" or "out_features", the ranks can share
    evenly. Raises ArgumentError if it is spread already; if a plan asks for a program, also for any other module that
    is not, and ShapeError for features that the ranks can't share."""
    plan, world = layouts.plan, layouts.mesh().size()
    if isinstance(module, ColwiseLinear | RowwiseLinear):
        raise ArgumentError(f"{module} is spread already", Site.of_user())
    if type(module) is not nn.Linear:
        if names_program(plan):
            raise ArgumentError(f"plan is {plan!r} for {module}: only an nn.Linear has plans", Site.of_user())
        return False
    if names_program(plan):
        share(getattr(module, features), world, features)
    return int(getattr(module, features)) % world == 0


def _check_parts(layouts: Layouts, module: nn.Linear, args: tuple[Any, ...]) -> None:
    """Raises ShapeError for a plain tensor with a part of features that the ranks can't share evenly: torch takes all
    parts to have one length."""
    layout = layouts.input
    for x in args[:1]:
        if not isinstance(x, DTensor) and is_shard(layout) and dim_of(layout, x) == x.dim() - 1:
            what = f"in_features is {module.in_features}, which {layouts.mesh().size()} ranks can't share evenly"
            how = "give the style of the layer before it use_local_output=False"
            raise ShapeError(f"{what}, and the input is no DTensor: {how}", Site.of_user())


def _make_colwise(layers: Mapping[str, nn.Linear], layouts: Layouts, source: int | None) -> None:
    """Makes layers that share their input column-parallel; see `_make`."""
    siblings = Siblings({})
    for name, layer in layers.items():
        made = _make(ColwiseLinear, layer, {"weight": Shard(0), "bias": Shard(0)}, layouts, source)
        made.name, made.siblings, siblings.layers[name] = name, siblings, made


def _make(
    kind: type[Ours], layer: nn.Linear, placements: Mapping[str, Placement], layouts: Layouts, source: int | None
) -> Ours:
    """Changes the class of a layer to `kind`, and makes its parameters DTensors by `distributed`."""
    distributed(layer, {name: [placement] for name, placement in placements.items()}, layouts.mesh(), source)
    layer.__class__ = kind
    assert isinstance(layer, kind)
    layer.layouts = layouts
    return layer


def _begin(names: Sequence[str], module: nn.Module, _: Any) -> None:
    """Drops results that are left from a forward that did not end or called only some of the linears. Raises
    ArgumentError if a linear was replaced by a module with its own parameters."""
    for name in names:
        linear = found = module.get_submodule(name)
        if not isinstance(found, ColwiseLinear):  # wrapped, maybe
            linear = next((m for m in found.modules() if isinstance(m, ColwiseLinear)), found)
            spread = {id(p) for p in linear.parameters()}
            if linear is found or any(id(p) not in spread for p in found.parameters()):
                what = f"{name} of {type(module).__name__} is a {type(found).__name__} now, and was spread as a Linear"
                last = f"replace linears before parallelize_module, and name a linear inside of a wrapper, {name}.base"
                raise ArgumentError(f"{what}: {last}", Site.of_user())
        assert isinstance(linear, ColwiseLinear)
        linear.siblings.forget()


def _children(module: nn.Module, names: Sequence[str]) -> dict[str, nn.Linear]:
    """Returns the linears of a module with these names. Raises ArgumentError."""
    known = {n: m for n, m in module.named_modules() if n and isinstance(m, nn.Linear)}
    for name in names:
        if name not in known:
            what = f"{name!r} is no linear of {type(module).__name__}, which has {', '.join(known) or 'none'}"
            raise ArgumentError(what, Site.of_user())
    return {name: known[name] for name in names}


def _parameter(module: nn.Module, name: str | None) -> tuple[int, str]:
    """Returns index and name of a parameter of the module's `forward`, by default the first. Raises ArgumentError."""
    known = list(inspect.signature(module.forward).parameters)
    if not known or name not in (None, *known):
        what = f"forward of {type(module).__name__} takes ({', '.join(known)})"
        raise ArgumentError(f"{what}: there is no {name or 'input'}", Site.of_user())
    return (0, known[0]) if name is None else (known.index(name), name)


def _annotated(x: torch.Tensor, layouts: Layouts) -> torch.Tensor:
    """Returns an input with the shape of the whole: x if every rank has all of it, else a DTensor."""
    return x if layouts.input.is_replicate() else as_dtensor(x, layouts.mesh(), layouts.input)


def _gathered(x: torch.Tensor, layouts: Layouts) -> DTensor:
    return redistributed(as_dtensor(x, layouts.mesh(), layouts.input), Replicate())
