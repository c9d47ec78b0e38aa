"""A layer of experts that are spread over the ranks of a group, whole or cut into slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tilelink.errors import ArgumentError, ShapeError, Site, counted, public, public_class
from tilelink.frontend.values import dtype_name
from tilelink.ops.agreement import raised_everywhere
from tilelink.ops.checks import check_experts, check_own_dtype, check_sizes, check_type
from tilelink.ops.collectives import Members, name_of_group, world_of
from tilelink.ops.mixture_of_experts import known_plan, mixture_of_experts
from tilelink.ops.moe_routing import check_numbers, check_slices, expert_places
from tilelink.ops.whole_layer import swiglu
from tilelink.plans.model import WholeLayer
from tilelink.plans.room import heap_bytes, rows_at_most


@public_class
class MoE(nn.Module):
    """A router, experts, and the sum of each token's experts: `tilelink.ops.mixture_of_experts`.

    The input is (..., width), the tokens of this rank. `router` is a module that gives scores (..., experts), by
    default an `nn.Linear` without bias. A token goes to the `top` experts with the largest softmax of its scores in
    float32. The softmax values are the weights, divided by their sum if they are `normalized`. `gate_up` is (experts of
    this rank, 2 * hidden, width), gate first, and `down` (experts of this rank, width, hidden): parameters of this rank
    alone. `shared`: a module of all tokens whose result is added. `activation`: maps rows (n, 2 * hidden) to rows
    (n, hidden). `slices`: how many ranks share an expert, each with a part of its hidden features, as in `moe_routing`:
    1 means whole experts, the world a slice of every expert on every rank. `gate_up` and `down` then have this part.
    `placement`: the expert at each place of all ranks, as in `tilelink.ops.expert_places`, if ranks have different
    numbers of experts or an expert has copies. `gate_up` and `down` then have the experts at this rank's places. Copies
    of an expert start with equal values, and each gets the gradient of its own rows: sum these for training.

    `tokens`, `capacity`, `plan`: as in `mixture_of_experts`. A new layer has the values of `nn.Linear` for each expert:
    seed all ranks alike. Router and shared module are replicated. Their gradients come from this rank's tokens: sum
    them over the group. `group`: of torch.distributed, or a mesh of one dimension; by default all processes.
    Raises ArgumentError, ShapeError, DtypeError, ScheduleError, WorldError.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        top: int,
        *,
        group: dist.ProcessGroup | DeviceMesh | str | None = None,
        router: nn.Module | None = None,
        shared: nn.Module | None = None,
        normalized: bool = True,
        activation: Callable[[torch.Tensor], torch.Tensor] = swiglu,
        tokens: int | None = None,
        capacity: int | None = None,
        slices: int = 1,
        placement: Sequence[int] | None = None,
        plan: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(width=width, hidden=hidden, experts=experts, top=top, slices=slices)
        check_numbers(tokens=tokens, capacity=capacity)
        check_type("placement", placement, "Sequence[int] | None")
        check_own_dtype(dtype)
        self.group_name = name_of_group(group)
        world = world_of(self.group_name)
        at = range(experts) if placement is None else placement
        check_slices(len(at), slices, world)
        if placement is not None and max(at, default=-1) + 1 != experts:
            what = f"a placement of {max(at, default=-1) + 1} experts"
            raise ArgumentError(f"{what}, and the layer has {experts}", Site.of_user())
        if hidden % slices:
            raise ShapeError(f"hidden is {hidden}, which {slices} ranks can't share evenly", Site.of_user())
        if not 1 <= top <= experts:
            raise ArgumentError(f"top={top}; it must be from 1 to {experts}, the number of experts", Site.of_user())
        known_plan(plan)
        self.width, self.hidden, self.experts, self.top = width, hidden, experts, top
        self.normalized, self.activation, self.plan = normalized, activation, plan
        self.tokens, self.capacity, self.slices = tokens, capacity, slices
        self.router = nn.Linear(width, experts, bias=False, device=device, dtype=dtype) if router is None else router
        self.shared = shared
        self.placement = placement
        mine, part = len(at) * slices // world, hidden // slices
        first = Members.named(self.group_name).rank // slices * mine
        self._mine = list(at[first : first + mine])  # the experts at the places of this rank
        self.gate_up = nn.Parameter(torch.empty(mine, 2 * part, width, device=device, dtype=dtype))
        self.down = nn.Parameter(torch.empty(mine, width, part, device=device, dtype=dtype))
        self.reset_parameters()

    @classmethod
    @public
    def of(cls, gate_up: torch.Tensor, down: torch.Tensor, top: int, **options: Any) -> Self:
        """Returns a layer with this rank's part of given weights of all experts: gate_up (experts, 2 * hidden, width)
        and down (experts, width, hidden). `options`: as of the class. Raises ShapeError, and as the class does."""
        check_type("gate_up", gate_up, "torch.Tensor")
        check_type("down", down, "torch.Tensor")
        check_experts(gate_up.shape, down.shape)
        experts, both, width = gate_up.shape
        modules = {name: options.pop(name, None) for name in ("router", "shared")}
        given = {"device": gate_up.device, "dtype": gate_up.dtype, **options}
        layer: Self = nn.utils.skip_init(cls, width, both // 2, experts, top, **given)
        nn.Linear.reset_parameters(layer.router)  # type: ignore[arg-type]  # the default one
        for name, module in modules.items():
            setattr(layer, name, module if module is not None else getattr(layer, name))
        with torch.no_grad():
            for weights, whole, of in ((layer.gate_up, gate_up, (1, 2)), (layer.down, down, (2, 1))):
                for place, expert in zip(weights, layer._mine, strict=True):
                    place.copy_(layer._part(whole[expert], of[0] - 1, of[1])) if expert >= 0 else place.zero_()
        layer._place()
        return layer

    def _place(self) -> None:
        """Keeps the places of experts as a buffer on the device of the weights, outside of checkpoints."""
        self.places: torch.Tensor | None
        made = None if self.placement is None else expert_places(self.placement, self.gate_up.device)
        self.register_buffer("places", made, persistent=False)

    def _part(self, whole: torch.Tensor, dim: int, groups: int) -> torch.Tensor:
        """Returns this rank's slice of the hidden features along `dim`, of each of `groups` groups (gate and up)."""
        number = Members.named(self.group_name).rank % self.slices
        return torch.cat([group.chunk(self.slices, dim)[number] for group in whole.chunk(groups, dim)], dim)

    def reset_parameters(self) -> None:
        """Sets new values of the experts: each gets the values that an `nn.Linear` would have."""
        self._place()
        with torch.no_grad():
            self.gate_up.zero_()
            self.down.zero_()
        for e in range(self.experts):  # each rank draws all experts, so that ranks with one seed make one layer
            for weights, shape, of in (
                (self.gate_up, (self.width, 2 * self.hidden), (0, 2)), (self.down, (self.hidden, self.width), (1, 1)),
            ):  # fmt: skip
                made = nn.Linear(*shape, False, weights.device, weights.dtype)
                with torch.no_grad():
                    for place in (p for p, at in zip(weights, self._mine, strict=True) if at == e):
                        place.copy_(self._part(made.weight, *of))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns (..., width) for the tokens (..., width) of this rank."""
        scores = raised_everywhere(self.group_name, lambda: self._scores(x), "the router", x)
        shared = raised_everywhere(self.group_name, lambda: self._shared(x), "the shared module", x)
        scores = torch.softmax(scores, -1, dtype=torch.float32)
        weights, chosen = torch.topk(scores, self.top)
        if self.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        out = mixture_of_experts(
            x, chosen, weights, self.gate_up, self.down, group=self.group_name, activation=self.activation,
            tokens=self.tokens, capacity=self.capacity, slices=self.slices, places=self.places, plan=self.plan,
        )  # fmt: skip
        return out if shared is None else out + shared

    def _scores(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the scores of the router. Raises ArgumentError, ShapeError."""
        if x.dim() < 1 or x.shape[-1] != self.width:
            raise ShapeError(f"x has shape {tuple(x.shape)}; it must be (..., {self.width})", Site.of_user())
        scores: torch.Tensor = self.router(x)
        _check_returned("router", scores, "of scores", (*x.shape[:-1], self.experts))
        return scores

    def _shared(self, x: torch.Tensor) -> torch.Tensor | None:
        """Returns the result of the shared module, if there is one. Raises ArgumentError, ShapeError."""
        if self.shared is None:
            return None
        made: torch.Tensor = self.shared(x)
        _check_returned("shared module", made, "to add to the result", x.shape)
        return made

    def rows(self, tokens: int) -> int:
        """Returns how many rows a rank has room for, if no rank has more than `tokens` tokens."""
        most = rows_at_most(world_of(self.group_name), tokens, self.top, len(self.down))
        return most if self.capacity is None else self.capacity

    def heap_bytes(self, tokens: int) -> int:
        """Returns how many bytes a forward takes of a slot of the symmetric heap; a backward takes as many. A lane has
        two slots. With "auto": the bytes of the plan that needs most. With "torch": 0."""
        (places, width, hidden), spread = self.down.shape, world_of(self.group_name) // self.slices
        layer = WholeLayer.of(places * spread, self.top, width, hidden, spread, self.slices)
        dtype = dtype_name(self.gate_up.dtype)
        return heap_bytes(layer, self.plan, dtype, tokens, self.rows(tokens))

    def extra_repr(self) -> str:
        told: dict[str, Any] = {"width": self.width, "hidden": self.hidden, "experts": self.experts, "top": self.top}
        said = ", ".join(f"{k}={v}" for k, v in told.items()) + f", {counted(len(self.down), 'expert')} of this rank"
        said += f", each shared by {self.slices} ranks" if self.slices > 1 else ""
        if self.tokens is not None:
            heap = f"{self.heap_bytes(self.tokens) / 2**10:,.0f} KiB of the symmetric heap"
            room = counted(self.rows(self.tokens), "row")
            said += f", {counted(self.tokens, 'token')} a rank: room for {room}, {heap} for a call"
        return said


def _check_returned(module: str, made: Any, use: str, shape: Sequence[int]) -> None:
    """Checks that a module of the layer returned one tensor of this shape. Raises ArgumentError, ShapeError."""
    must = f"it must return one tensor {use}, {tuple(shape)}"
    if not isinstance(made, torch.Tensor):
        raise ArgumentError(f"the {module} returned a {type(made).__name__}; {must}", Site.of_user())
    if tuple(made.shape) != tuple(shape):
        raise ShapeError(f"the {module} returned shape {tuple(made.shape)}; {must}", Site.of_user())
