"""Linear layers whose parameters are DTensors. The parallel styles make them from an `nn.Linear`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from tilelink.errors import ArgumentError, ShapeError, Site, public_class
from tilelink.nn.layouts import (
    Layouts,
    as_dtensor,
    dim_of,
    features_of,
    laid_out,
    local,
    redistributed,
    spread,
    uneven_lengths,
)
from tilelink.nn.linear import column_linear, row_linear
from tilelink.ops.checks import DTYPES, check_tensor, in_autocast
from tilelink.plans.names import names_program


@public_class
class ColwiseLinear(nn.Linear):
    """An `nn.Linear` that `ColwiseParallel` has spread: `weight` and `bias` are DTensors, Shard(0)."""

    weight: DTensor
    layouts: Layouts
    siblings: Siblings
    name: str  # among the siblings

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not is_ours(self) or is_a_row(self, input):
            return as_in_torch(self, input, Replicate())
        mine = self.siblings.result(self.name, input)
        return laid_out(mine, self.weight.device_mesh, Shard(-1), self.layouts)

    def extra_repr(self) -> str:
        others = [name for name in self.siblings.layers if name != self.name]
        shared = f", one gather with {', '.join(others)}" if others else ""
        return f"{super().extra_repr()}, {self.layouts}{shared}"


@public_class
class RowwiseLinear(nn.Linear):
    """An `nn.Linear` that `RowwiseParallel` has spread: `weight` is a DTensor, Shard(1), `bias` a replicated one."""

    weight: DTensor
    layouts: Layouts

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not is_ours(self) or is_a_row(self, input):
            return as_in_torch(self, input, Shard(-1))
        mesh, layouts = self.weight.device_mesh, self.layouts
        x, weight = features_of(input, mesh, layouts.input), self.weight.to_local()
        dim, whole = dim_of(layouts.output, x), [*x.shape[:-1], weight.shape[0]]
        lengths = None if dim is None else uneven_lengths(whole[dim], mesh.size())
        y = row_linear(x, weight, local(self.bias), dim, lengths, layouts.group_name, layouts.plan)
        return laid_out(y, mesh, layouts.output, layouts, None if lengths is None else whole)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.layouts}"


class Siblings:
    """Column-parallel layers that are called with the same input. The first call computes the results of all of them,
    with one gather; the other layers take their results. They do so only where they would compute the same: with the
    same weights, under the same `_circumstances`. Otherwise all results are computed again. A layer that shares no
    input is its only sibling."""

    def __init__(self, layers: dict[str, ColwiseLinear]) -> None:
        self.layers = layers
        self.forget()

    def forget(self) -> None:
        """Drops results that nobody has taken."""
        self._input: torch.Tensor | None = None
        self._version = 0
        self._made_for: Any = None
        self._waiting: dict[str, torch.Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        """For copies of a model, which have no results yet."""
        return {"layers": self.layers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.layers = state["layers"]
        self.forget()

    def result(self, name: str, input: torch.Tensor) -> torch.Tensor:
        """Returns the rank's part of a layer's result. Raises ArgumentError if its siblings had another input."""
        now = _circumstances(input), self._weights()
        if name in self._waiting and self._made_for == now:
            self._check_same(name, input)
        else:
            self._input, self._version, self._made_for = input, _version(input), now
            self._waiting = self._computed(input)
        result = self._waiting.pop(name)
        if not self._waiting:
            self.forget()
        return result

    def _weights(self) -> Any:
        """Which weights the layers have, and how often these were changed. (In a compiled graph they do not change.)"""
        if torch.compiler.is_compiling():
            return None
        given = (t for layer in self.layers.values() for t in (layer.weight, layer.bias) if t is not None)
        return [(id(t), _version(t)) for t in given]

    def _check_same(self, name: str, input: torch.Tensor) -> None:
        """Raises ArgumentError unless this is the input of the waiting results, unchanged."""
        first, hook = next(n for n in self.layers if n not in self._waiting), ""
        if self._input is not input:
            other = "another tensor than"
            hook = f" (a backward hook on {first} or {name} also makes another tensor: put the hook on the module)"
        elif torch.compiler.is_compiling():  # a version is then a symbol: torch checks it when it compiles the graph
            # Dynamo of torch 2.11 takes no message that refers to a variable.
            torch._check(self._version == _version(input), lambda: "the input was changed since another linear had it")
            return
        elif self._version != _version(input):
            other = "a tensor that was changed since it was given to"
        else:
            return
        own = "they do not share one input, so give each its own style, ColwiseParallel"
        raise ArgumentError(f"{name} is called with {other} {first}: {own}{hook}", Site.of_user())

    def _computed(self, input: torch.Tensor) -> dict[str, torch.Tensor]:
        named = {name: layer for name, layer in self.layers.items() if is_ours(layer)}
        layers = list(named.values())
        for name, layer in named.items():
            if layer.weight.device_mesh.ndim != 1:  # FSDP has not gathered it
                what = f"the weight of {name} is spread over {layer.weight.device_mesh}, too"
                raise ArgumentError(f"{what}: give fully_shard the module that shares its input", Site.of_user())
        layouts = layers[0].layouts
        x, dim, lengths, partial = spread(input, layers[0].weight.device_mesh, layouts.input)
        features = x.shape[-1] * layers[0].weight.device_mesh.size()
        if dim == x.dim() - 1 and lengths is None and features != layers[0].in_features:
            what = f"an input of shape {tuple(input.shape)} has its features there, {features} on all ranks"
            takes = f"{next(iter(named)) or 'the layer'} takes {layers[0].in_features}"
            raise ShapeError(f"input_layouts is {layouts.input}: {what}; {takes}", Site.of_user())
        weights, biases = [layer.weight.to_local() for layer in layers], [local(layer.bias) for layer in layers]
        if partial:
            outs = [F.linear(x, w, b) for w, b in zip(weights, biases, strict=True)]
        else:
            outs = column_linear(x, weights, biases, dim, lengths, layouts.group_name, layouts.plan)
        return dict(zip(named, outs, strict=True))


def _circumstances(input: torch.Tensor) -> Any:
    """What decides, besides the tensors, what a layer computes and what torch records for gradients: whether it
    records, autocast, who keeps tensors for the backward (a checkpointed region drops them), and whether a backward
    computes the layer again. In a compiled graph only the first can change."""
    records = torch.is_grad_enabled()
    if torch.compiler.is_compiling():
        return records
    keepers = torch._C._autograd._top_saved_tensors_default_hooks(True)
    again = torch._C._current_graph_task_id()
    dtype = torch.get_autocast_dtype(input.device.type) if in_autocast(input) else None
    return records, dtype, keepers, again


def _version(input: torch.Tensor) -> int:
    """The number of changes of a tensor; 0 for one of `torch.inference_mode`, which does not count them. (Dynamo can't
    ask for that mode.)"""
    return 0 if not torch.compiler.is_compiling() and input.is_inference() else input._version


def is_ours(layer: ColwiseLinear | RowwiseLinear) -> bool:
    """Whether operators can use the weight of a layer: it is still a DTensor, of a dtype that operators take."""
    return isinstance(layer.weight, DTensor) and layer.weight.dtype in DTYPES


def is_a_row(layer: ColwiseLinear | RowwiseLinear, input: torch.Tensor) -> bool:
    """Whether the input is one row (features,), which operators do not take. They say so if a plan names a program.
    Raises ArgumentError if the input is no tensor."""
    check_tensor("input", input)
    return input.dim() == 1 and not names_program(layer.layouts.plan)


def as_in_torch(layer: ColwiseLinear | RowwiseLinear, input: torch.Tensor, wanted: Placement) -> torch.Tensor:
    """Returns the result of a layer as torch's styles compute it, from an input with the placement `wanted`. This
    serves quantized weights, which torchao puts in the place of DTensors, and dtypes that operators do not take.
    Raises ArgumentError if a plan names a program."""
    layouts, weight = layer.layouts, layer.weight
    if names_program(layouts.plan):
        what = f"a {type(weight).__name__} of {weight.dtype}"
        raise ArgumentError(f"plan is {layouts.plan!r}: no program multiplies {what}; give no plan", Site.of_user())
    x = redistributed(as_dtensor(input, layouts.mesh(), layouts.input), wanted)
    y = redistributed(as_dtensor(nn.Linear.forward(layer, x), layouts.mesh(), layouts.output), layouts.output)
    return y.to_local() if layouts.use_local_output else y
