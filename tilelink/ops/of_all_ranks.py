"""The operators of torch that exchange, before rows travel, where tokens go and their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tilelink.errors import ShapeError
from tilelink.kernels.dispatch import dispatch
from tilelink.ops.experts_call import WithoutSchedules
from tilelink.ops.operator import Operator
from tilelink.ops.plain import Plain
from tilelink.ops.programs import Programs
from tilelink.ops.rows_of_experts import laid_out, met
from tilelink.runtime.agreement import TOKENS


@dataclass
class Route(WithoutSchedules):
    """Computes where the tokens of a rank go. `x`: integers (tokens, top), the experts of this rank's tokens, -1 for
    none, as many tokens on every rank. Returns counts, order and place of `tilelink.ops.moe_routing.Routing`."""

    name = "route"
    results = "(Tensor, Tensor, Tensor)"
    program = dispatch

    x: torch.Tensor
    experts: int
    slices: int
    group_name: str
    plan: str | None

    def check(self) -> None:
        if self.x.dtype not in (torch.int32, torch.int64) or self.x.dim() != 2:
            raise ShapeError(
                f"experts of tokens are {self.x.dtype} {tuple(self.x.shape)}; they must be int32 or int64 (tokens, top)"
            )

    def told(self) -> Mapping[str, Any]:
        tokens, top = self.x.shape
        sizes = {"experts": self.experts, "slices": self.slices, TOKENS: tokens, "top": top}
        return {"operator": "moe_routing", "plan": self.plan, **sizes}

    def on_gpu(self, path: Plain) -> bool:
        """Whether Triton's kernels compute this."""
        return isinstance(path, Programs) and self.x.is_cuda

    def run(self, path: Plain) -> tuple[torch.Tensor, ...]:
        world = self.members.world
        each = self.experts * self.slices // world
        mine, order, place = laid_out(self.x, self.experts, each, self.slices, self.on_gpu(path))
        return path.all_gather(mine[None], [1] * world)().T.contiguous(), order, place


@dataclass
class RouteOnce(Route):
    """Computes where the tokens of all ranks go. `x`: as in `Route`, in int32; `room`: for rows of a rank's experts.
    Returns counts, order and place, and token, at, choice and wanted of `tilelink.ops.moe_routing.Once`."""

    name = "route_once"
    results = "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"

    x: torch.Tensor
    experts: int
    slices: int
    room: int
    group_name: str
    plan: str | None

    def told(self) -> Mapping[str, Any]:
        return {**super().told(), "room": self.room}

    def run(self, path: Plain) -> tuple[torch.Tensor, ...]:
        members, on_gpu = self.members, self.on_gpu(path)
        each = self.experts * self.slices // members.world
        _, order, place = laid_out(self.x, self.experts, each, self.slices, on_gpu)
        ids = path.all_gather(self.x, [len(self.x)] * members.world)()
        counts, *once = met(ids, self.experts, self.slices, members.rank, members.world, self.room, on_gpu)
        return counts, order, place, *once


@dataclass
class GatherWeights(WithoutSchedules):
    """Gathers weights to (tokens of all ranks, top). `x`: (tokens, top) in float32, the weights of this rank."""

    name = "gather_weights"
    results = "Tensor"
    program = dispatch

    x: torch.Tensor
    group_name: str
    plan: str | None

    def check(self) -> None:
        """Any values may travel."""

    def told(self) -> Mapping[str, Any]:
        return {"weights": tuple(self.x.shape)}

    def run(self, path: Plain) -> torch.Tensor:
        return path.all_gather(self.x, [len(self.x)] * path.members.world)()

    def setup(self, ctx: Any, output: torch.Tensor) -> None:
        ctx.call = self.options

    @staticmethod
    def backward(ctx: Any, saved: Any, *grads: Any) -> Mapping[str, Any]:
        return {"x": sum_of_weights(x=grads[0].contiguous(), **ctx.call)}


@dataclass
class SumOfWeights(GatherWeights):
    """Returns the sum over the ranks of x, (tokens of all ranks, top), for the tokens of this rank."""

    name = "sum_of_weights"

    def run(self, path: Plain) -> torch.Tensor:
        world = path.members.world
        return path.members.reduce_scatter(self.x, [len(self.x) // world] * world)()

    @staticmethod
    def backward(ctx: Any, saved: Any, *grads: Any) -> Mapping[str, Any]:
        return {"x": gather_weights(x=grads[0].contiguous(), **ctx.call)}


route, route_once = Operator(Route), Operator(RouteOnce)
gather_weights, sum_of_weights = Operator(GatherWeights), Operator(SumOfWeights)
