"""SharedColwiseParallel: several linears of a module that share one input, and one gather of it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel as TorchColwiseParallel
from torch.distributed.tensor.parallel import ParallelStyle

from tilelink.errors import ArgumentError, Site
from tilelink.nn.dtensor_linear import ColwiseLinear
from tilelink.nn.layouts import Layouts, as_dtensor, redistributed
from tilelink.nn.spreading import can_be_ours, layouts_of, make_colwise
from tilelink.nn.styles import ColwiseParallel


class SharedColwiseParallel(ParallelStyle):
    """A style of a module (attention, a feed-forward layer) of which several linears are called with one input: Q, K
    and V; gate and up. It makes them column-parallel, each as `ColwiseParallel` would, and their input is gathered once
    for all of them; so is its gradient summed.

    `names`: of the linears in the module. `argument`: the parameter of the module's `forward` that holds the input, by
    default the first. Where that is spread over tokens it is a DTensor inside the module, so that its shape there is
    that of the whole, as after torch's `PrepareModuleInput`, whose place this takes. `input_layouts`: of that argument,
    where it is a plain tensor; `output_layouts`, `use_local_output`, `plan`: of each linear, as in `ColwiseParallel`.

    Raises ArgumentError, ScheduleError, and ShapeError where a plan asks for a program and features can't be shared.
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
        style, linears = self.style, _children(module, self.names)
        layouts = layouts_of(style, device_mesh, style.plan)
        place, name = _parameter(module, self.argument)
        ours = {n: m for n, m in linears.items() if can_be_ours(m, "out_features", device_mesh, style.plan)}
        if len(ours) == len(linears):
            make_colwise(ours, device_mesh, layouts, self.src_data_rank)
            module.register_forward_pre_hook(partial(_begin, self.names))
            as_input = _annotated
        else:
            _as_in_torch(linears, device_mesh, layouts, self.src_data_rank)
            as_input = _gathered

        def with_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if name in kwargs:
                return args, kwargs | {name: as_input(kwargs[name], device_mesh, layouts.input)}
            shared = (as_input(x, device_mesh, layouts.input) for x in args[place : place + 1])
            return (*args[:place], *shared, *args[place + 1 :]), kwargs

        module.register_forward_pre_hook(with_input, with_kwargs=True)
        return module


def _begin(names: Sequence[str], module: nn.Module, _: Any) -> None:
    """Drops what a forward that did not end, or called only some of the linears, has left behind. Raises ArgumentError
    where a linear was replaced by what computes with parameters of its own."""
    for name in names:
        linear = found = module.get_submodule(name)
        if not isinstance(found, ColwiseLinear):  # wrapped, maybe
            linear = next((m for m in found.modules() if isinstance(m, ColwiseLinear)), found)
            spread = {id(p) for p in linear.parameters()}
            if linear is found or any(id(p) not in spread for p in found.parameters()):
                what = f"{name} of {type(module).__name__} is a {type(found).__name__} now, and was spread as a Linear"
                last = "replace linears before parallelize_module, and leave those that are none out of its plan"
                raise ArgumentError(f"{what}: {last}", Site.of_user())
        assert isinstance(linear, ColwiseLinear)
        linear.siblings.forget()


def _children(module: nn.Module, names: Sequence[str]) -> dict[str, nn.Linear]:
    """The linears of a module with these names. Raises ArgumentError."""
    known = {n: m for n, m in module.named_modules() if n and isinstance(m, nn.Linear)}
    for name in names:
        if name not in known:
            what = f"{name!r} is no linear of {type(module).__name__}, which has {', '.join(known) or 'none'}"
            raise ArgumentError(what, Site.of_user())
    return {name: known[name] for name in names}


def _parameter(module: nn.Module, name: str | None) -> tuple[int, str]:
    """The place and the name of a parameter of the module's `forward`, by default the first. Raises ArgumentError."""
    known = list(inspect.signature(module.forward).parameters)
    if not known or name not in (None, *known):
        what = f"forward of {type(module).__name__} takes ({', '.join(known)})"
        raise ArgumentError(f"{what}: there is no {name or 'input'}", Site.of_user())
    return (0, known[0]) if name is None else (known.index(name), name)


def _as_in_torch(linears: Mapping[str, nn.Linear], mesh: DeviceMesh, layouts: Layouts, source: int | None) -> None:
    """Makes linears column-parallel that can't be ours; every rank has their input."""
    style = TorchColwiseParallel(output_layouts=layouts.output, use_local_output=layouts.use_local_output)
    style.src_data_rank = source
    for linear in linears.values():
        style._apply(linear, mesh)


def _annotated(x: torch.Tensor, mesh: DeviceMesh, placement: Placement) -> torch.Tensor:
    """A DTensor, whose shape is that of the whole; or x, whose shape is, where every rank has all of it."""
    return x if placement.is_replicate() else as_dtensor(x, mesh, placement)


def _gathered(x: torch.Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    return redistributed(as_dtensor(x, mesh, placement), Replicate())
