"""The operators of torch that exchange, before rows travel, where tokens go and their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tilelink.errors import ShapeError
from tilelink.kernels.dispatch import dispatch
from tilelink.ops import routed
from tilelink.ops.experts_call import OfExperts
from tilelink.ops.operator import Operator
from tilelink.ops.plain import Plain
from tilelink.runtime.agreement import TOKENS


@dataclass
class GatherCounts(OfExperts):
    """Gathers the counts of all ranks to (experts of all ranks, world). `x`: (1, experts of all ranks), the counts of
    this rank; `tokens`: the most that a rank has, each at `top` experts."""

    name = "gather_counts"
    results = "Tensor"
    program = dispatch

    x: torch.Tensor
    tokens: int
    top: int
    group_name: str
    plan: str | None

    def check(self) -> None:
        if self.x.dtype != torch.int32 or self.x.dim() != 2 or len(self.x) != 1 or self.x.shape[1] % self.members.world:
            raise ShapeError(
                f"counts have shape {tuple(self.x.shape)}; "
                f"it must be (1, experts), as many on each of {self.members.world} ranks"
            )

    def told(self) -> Mapping[str, Any]:
        return {"experts": self.x.shape[1], "top": self.top, TOKENS: self.tokens}

    def run(self, path: Plain) -> torch.Tensor:
        return path.all_gather(self.x, [1] * self.members.world)().T.contiguous()


@dataclass
class RouteOnce(OfExperts):
    """Computes where the tokens of all ranks go. `x`: (tokens, top) in int32, the experts of this rank's tokens, -1 for
    none, as many tokens on every rank; `room`: for rows of a rank's experts. Returns counts, (experts of all ranks,
    world), and token, at, choice and wanted of `tilelink.ops.moe_routing.Once`."""

    name = "route_once"
    results = "(Tensor, Tensor, Tensor, Tensor, Tensor)"
    program = dispatch

    x: torch.Tensor
    experts: int
    slices: int
    room: int
    group_name: str
    plan: str | None

    def check(self) -> None:
        if self.x.dtype != torch.int32 or self.x.dim() != 2:
            raise ShapeError(
                f"experts of tokens are {self.x.dtype} {tuple(self.x.shape)}; they must be int32 (tokens, top)"
            )

    def told(self) -> Mapping[str, Any]:
        tokens, top = self.x.shape
        said = {TOKENS: tokens, "top": top, "room": self.room}
        return {"experts": self.experts, "slices": self.slices, **said}

    def run(self, path: Plain) -> tuple[torch.Tensor, ...]:
        members, tokens = path.members, len(self.x)
        ids = path.all_gather(self.x, [tokens] * members.world)().long()
        counts = routed.counted(ids.reshape(members.world, -1), self.experts, self.slices)
        return counts, *routed.met(ids, self.experts, self.slices, members.rank, members.world, self.room)


@dataclass
class GatherWeights(OfExperts):
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
        ctx.call = {"group_name": self.group_name, "plan": self.plan}

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Mapping[str, Any]:
        return {"x": sum_of_weights(x=grads[0].contiguous(), **ctx.call)}


@dataclass
class SumOfWeights(GatherWeights):
    """Returns the sum over the ranks of x, (tokens of all ranks, top), for the tokens of this rank."""

    name = "sum_of_weights"

    def run(self, path: Plain) -> torch.Tensor:
        world = path.members.world
        return path.members.reduce_scatter(self.x, [len(self.x) // world] * world)()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Mapping[str, Any]:
        return {"x": gather_weights(x=grads[0].contiguous(), **ctx.call)}


gather_counts, route_once = Operator(GatherCounts), Operator(RouteOnce)
gather_weights, sum_of_weights = Operator(GatherWeights), Operator(SumOfWeights)
