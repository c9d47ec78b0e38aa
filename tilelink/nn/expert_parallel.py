"""A parallel style for modules that hold all experts in 3-D parameters, and one call that applies it to a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.placement_types import _StridedShard

from tilelink.errors import ArgumentError, ShapeError, Site, counted, listed, public, public_class
from tilelink.frontend.kept import kept
from tilelink.nn.layouts import Layouts, as_dtensor, distributed, laid_out, redistributed
from tilelink.ops.agreement import raised_everywhere
from tilelink.ops.checks import check_activation, check_experts
from tilelink.ops.collectives import Members, name_of_group
from tilelink.ops.mixture_of_experts import known_plan, mixture_of_experts
from tilelink.ops.whole_layer import swiglu

Activation = Callable[[torch.Tensor], torch.Tensor]
CUTS = ("experts", "hidden")
GATE_UP, DOWN = "gate_up_proj", "down_proj"
"""The names that transformers gives the weights of experts."""
DEFAULT_GATE = "_default_apply_gate"
"""The name of transformers' default activation: act_fn of the gate, times up."""


@public_class
class ExpertParallel(ParallelStyle):
    """A style for a module that holds the weights of all experts in two 3-D parameters, as the experts of transformers
    do. It spreads whole experts over the ranks of a one-dimensional mesh, and makes the module compute by
    `tilelink.ops.mixture_of_experts`.

    `cut="hidden"` instead gives every rank a slice of every expert: a part of its hidden features. A two-dimensional
    mesh, which `replace_moe` also takes, cuts both ways: experts along the first dimension, hidden along the second.

    The module is called with (x, topk_idx, topk_weights), like the operator: (tokens, width), (tokens, top) and
    (tokens, top). It becomes a subclass of its class in place. Its parameters keep their names and become DTensors.

    `gate_up`, `down`: names of the parameters (experts, 2 * hidden, width), gate first, and (experts, width, hidden).
    `activation`: maps rows (n, 2 * hidden) to rows (n, hidden); by default it is the module's `_apply_gate`, else its
    `act_fn` of the gate, times up. `input_layouts`: Shard(0) if each rank gives its own tokens, Replicate() if all
    ranks give the same tokens. Each rank then computes a part of them, and the results are gathered. The result has the
    layout of the input. `tokens`, `capacity`, `plan`: as in `mixture_of_experts`.

    Raises ArgumentError, ScheduleError; and ShapeError if the ranks can't share the experts evenly.
    """

    def __init__(
        self,
        *,
        cut: str = "experts",
        gate_up: str = GATE_UP,
        down: str = DOWN,
        activation: Activation | None = None,
        input_layouts: Placement | None = None,
        tokens: int | None = None,
        capacity: int | None = None,
        plan: str | None = None,
    ) -> None:
        super().__init__()
        layout = Shard(0) if input_layouts is None else input_layouts
        if layout not in (Shard(0), Replicate()):
            what = f"input_layouts={layout!r}: Shard(0), each rank has its own tokens, or Replicate()"
            raise ArgumentError(what, Site.of_user())
        if cut not in CUTS:
            raise ArgumentError(f"cut={cut!r}; there are {listed(CUTS, str(cut))}", Site.of_user())
        if layout == Replicate() and tokens is not None:
            raise ArgumentError(
                f"tokens={tokens} with a whole input: each rank computes its part of the tokens, which all ranks have",
                Site.of_user(),
            )
        if activation is not None:
            check_activation(activation)
        known_plan(plan)
        self.cut, self.gate_up, self.down = cut, gate_up, down
        self.activation, self.layout = activation, layout
        self.options: dict[str, Any] = {"tokens": tokens, "capacity": capacity, "plan": plan}

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        self.check(module, device_mesh)
        ranks = device_mesh if device_mesh.ndim == 1 else device_mesh._flatten()
        whole: list[Placement] = [Shard(0)]
        gate_up: list[Placement] = [_StridedShard(1, split_factor=2)]  # the same part of the gates and of the ups
        down: list[Placement] = [Shard(2)]
        if device_mesh.ndim == 2:
            gate_up, down = whole + gate_up, whole + down
        elif self.cut == "experts":
            gate_up = down = whole
        distributed(module, {self.gate_up: gate_up, self.down: down}, device_mesh, self.src_data_rank)
        module.__class__ = _class_of(type(module))
        experts = cast(SpreadExperts, module)
        name = name_of_group(ranks)
        layouts = Layouts(self.layout, self.layout, True, self.options["plan"], name, lambda: ranks)
        options = self.options | {"slices": self.slices(device_mesh)}
        experts.how = HowSpread(self.gate_up, self.down, self.activation, layouts, device_mesh.ndim, options)
        return module

    def slices(self, mesh: DeviceMesh) -> int:
        """Returns how many ranks share an expert. Raises ArgumentError for a mesh of more than two dimensions, and for
        two dimensions without names: torch finds the group of both by their names."""
        if mesh.ndim == 2 and mesh.mesh_dim_names is None:
            raise ArgumentError("the mesh has two dimensions without names: give mesh_dim_names=", Site.of_user())
        if mesh.ndim == 2:
            return mesh.size(1)
        name_of_group(mesh)
        return mesh.size() if self.cut == "hidden" else 1

    def check(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Raises ArgumentError or ShapeError for a module that this style can't spread over the mesh."""
        kind = type(module).__name__
        if isinstance(module, SpreadExperts):
            raise ArgumentError(f"the experts of {kind} are spread already", Site.of_user())
        own = dict(module.named_parameters(recurse=False))
        if missing := {self.gate_up, self.down} - own.keys():
            what = f"{kind} has no parameter {' and '.join(sorted(missing))}; it has {', '.join(own) or 'none'}"
            raise ArgumentError(f"{what}: tell the names, gate_up= and down=", Site.of_user())
        if odd := _odd(module, own.keys() - {self.gate_up, self.down}):
            raise ArgumentError(f"{kind} has {odd}, which no program of ours computes", Site.of_user())
        gate_up, down = own[self.gate_up].shape, own[self.down].shape
        check_experts(gate_up, down, (f"{self.gate_up} of {kind}", self.down))
        slices = self.slices(mesh)
        shared = ("experts", gate_up[0], mesh.size() // slices), ("hidden features", down[2], slices)
        for what, number, ranks in shared:
            if number % ranks:
                said = f"{kind} has {number} {what}, which {ranks} ranks can't share evenly"
                raise ShapeError(said, Site.of_user())
        if self.activation is None and not callable(gate_of(module)):
            raise ArgumentError(f"{kind} has no act_fn: give activation=", Site.of_user())


@public
def replace_moe(
    model: nn.Module, mesh: DeviceMesh | dist.ProcessGroup | str | None = None, **options: Any
) -> nn.Module:
    """Spreads the experts of a model over the ranks of a group, and returns the model itself. It applies
    `ExpertParallel` to each module with 3-D parameters `gate_up_proj` and `down_proj`, as transformers has in Mixtral,
    Qwen3-MoE and DeepSeek-V3. Routers and shared experts stay unchanged, on every rank.

    `mesh`: of one dimension, or of two, which cuts both ways; or a group of torch.distributed; by default all
    processes. `options`: of `ExpertParallel`. Raises ArgumentError if the model has no such module, and the errors of
    the style; the model is then unchanged.
    """
    style = ExpertParallel(**options)
    found = [m for m in model.modules() if _holds_experts(m, style)]
    if not found:
        what = f"no module of {type(model).__name__} has 3-D parameters {style.gate_up} and {style.down}"
        raise ArgumentError(f"{what}: tell other names, gate_up= and down=", Site.of_user())
    if not isinstance(mesh, DeviceMesh):
        members = Members.named(name_of_group(mesh))
        mesh = DeviceMesh.from_group(members.group, next(found[0].parameters()).device.type)
    for module in found:
        style.check(module, mesh)
    for module in found:
        style._apply(module, mesh)
    return model


@dataclass(frozen=True)
class HowSpread:
    """The settings of a module whose experts are spread. `dims`: how many dimensions the mesh of its weights has;
    `options`: of `mixture_of_experts`."""

    gate_up: str
    down: str
    activation: Activation | None
    layouts: Layouts
    dims: int
    options: dict[str, Any]


@public_class
class SpreadExperts(nn.Module):
    """The first base class of modules whose experts are spread; the second is the module's own class."""

    how: HowSpread

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Calls `mixture_of_experts` with the weights of this module. transformers chose the names of arguments."""
        how, given = self.how, (hidden_states, top_k_index, top_k_weights)
        name = how.layouts.group_name
        gate_up, down = raised_everywhere(
            name, lambda: (self._local(how.gate_up), self._local(how.down)), "weights", *given
        )
        return computed(given, gate_up, down, how.activation or gate_of(self), how.layouts, how.options)

    def _local(self, name: str) -> torch.Tensor:
        """Returns a weight of the experts of this rank. Raises ArgumentError if FSDP manages the weight."""
        weight = self.get_parameter(name)
        if not isinstance(weight, DTensor) or weight.device_mesh.ndim != self.how.dims:
            what = f"{name} is a {type(weight).__name__} of shape {tuple(weight.shape)} now"
            last = "it has to stay the DTensor of ExpertParallel; give fully_shard a module around the experts"
            raise ArgumentError(f"{what}: {last}", Site.of_user())
        return weight.to_local()

    def extra_repr(self) -> str:
        how = self.how
        told = {"input": how.layouts.input} | {k: v for k, v in how.options.items() if v is not None}
        experts = len(cast(DTensor, self.get_parameter(how.down)).to_local())
        return ", ".join([f"{counted(experts, 'expert')} of this rank", *(f"{k}={v}" for k, v in told.items())])


@kept()
def _class_of(kind: type[nn.Module]) -> type[nn.Module]:
    """Returns the subclass of `kind` for modules whose experts are spread."""
    return type(f"Spread{kind.__name__}", (SpreadExperts, kind), {})


def _holds_experts(module: nn.Module, style: ExpertParallel) -> bool:
    own = dict(module.named_parameters(recurse=False))
    return all(name in own and own[name].dim() == 3 for name in (style.gate_up, style.down))


def _odd(module: nn.Module, others: set[str]) -> str:
    """Returns a description of what a module has besides two weights and an activation, or ""."""
    if others:
        return f"parameters {', '.join(sorted(others))}, too"
    known = {"is_transposed": False, "is_concatenated": True, "has_gate": True, "has_post_expert_norm": False}
    return ", ".join(f"{k}={getattr(module, k)}" for k, v in known.items() if getattr(module, k, v) != v)


def gate_of(module: nn.Module) -> Activation:
    """Returns the module's own activation of rows of gate and up: `swiglu` itself if it is SwiGLU."""
    own = getattr(module, "_apply_gate", None)
    if own is not None and getattr(own, "__name__", "") != DEFAULT_GATE:
        return cast(Activation, own)
    act = getattr(module, "act_fn", None)
    if type(act) is nn.SiLU:
        return swiglu

    def gated(rows: torch.Tensor) -> torch.Tensor:
        gate, up = rows.chunk(2, -1)
        return act(gate) * up  # type: ignore[misc]

    return gated if callable(act) else cast(Activation, None)


def computed(
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activation: Activation,
    layouts: Layouts,
    options: Mapping[str, Any],
) -> torch.Tensor:
    """Returns `mixture_of_experts` of `given`: (x, topk_idx, topk_weights), laid out as `layouts` says. If all ranks of
    the mesh have the same tokens, each computes a part, and results are gathered. gate_up, down: this rank's."""
    tokens, replicated, mesh = given[0].shape[0], layouts.input.is_replicate(), layouts.mesh()
    x, chosen, weights = (_own(t, layouts) for t in given)
    if replicated and options.get("tokens") is None:
        options = {**options, "tokens": -(-tokens // mesh.size())}
    out = mixture_of_experts(
        x, chosen, weights, gate_up, down, group=layouts.group_name, activation=activation, **options
    )
    return laid_out(out, mesh, Shard(0), layouts, (tokens, out.shape[1])) if replicated else out


def _own(x: torch.Tensor, layouts: Layouts) -> torch.Tensor:
    """Returns the tokens of x that this rank computes."""
    if not isinstance(x, DTensor) and layouts.input == Shard(0):
        return x
    return redistributed(as_dtensor(x, layouts.mesh(), layouts.input), Shard(0)).to_local()
