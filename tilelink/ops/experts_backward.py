"""Operators that make the gradients of experts' weights: alone, or in one program with the gradients of their rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tilelink.errors import ShapeError
from tilelink.kernels.dispatch_matmul_backward import dispatch_matmul_backward
from tilelink.kernels.expert_weight_gradient import expert_weight_gradient
from tilelink.kernels.matmul_combine_backward import matmul_combine_backward
from tilelink.ops import routed
from tilelink.ops.experts_call import OfExperts, WithoutSchedules
from tilelink.ops.operator import Operator
from tilelink.ops.plain import Plain
from tilelink.ops.programs import Programs


@dataclass
class ExpertGradients(WithoutSchedules):
    """Returns the gradients of weights, (experts, N, K): dout^T @ x over the rows of each expert of this rank."""

    name = "expert_gradients"
    results = "Tensor"
    program = expert_weight_gradient

    dout: torch.Tensor
    x: torch.Tensor
    counts: torch.Tensor
    group_name: str
    plan: str | None

    def run(self, path: Plain) -> torch.Tensor:
        if not isinstance(path, Programs):
            return routed.weight_gradients(path, self.dout, self.x, self.counts)
        experts = len(self.counts) // self.members.world
        made = path.empty(self.x, (experts, self.dout.shape[1], self.x.shape[1]))
        parts = self.parts(sent=self.members.world * len(self.x), routed=len(self.x))
        path.call(self.dout, self.x, self.counts, dweight=made, parts=parts)
        return made


class OfWeights(OfExperts):
    """A call that makes the gradients of rows and of `weight` from `dout`. `x`: (room, K), the rows of the experts of
    this rank."""

    dout: torch.Tensor

    def check(self) -> None:
        super().check()
        if self.dout.dim() != 2 or self.dout.shape[1] != self.weight.shape[1]:
            raise ShapeError(f"dout has shape {tuple(self.dout.shape)}; it must have rows of {self.weight.shape[1]}")


@dataclass
class DispatchLinearBackward(OfWeights):
    """Returns the gradients of tokens, (tokens, K), and of weights. `dout`: (room, N), gradients of experts' rows."""

    name = "dispatch_linear, backward"
    results = "(Tensor, Tensor)"
    program = dispatch_matmul_backward

    x: torch.Tensor
    weight: torch.Tensor
    dout: torch.Tensor
    counts: torch.Tensor
    place: torch.Tensor
    sent: int
    group_name: str
    plan: str | None

    def run(self, path: Plain) -> tuple[torch.Tensor, torch.Tensor]:
        x, dout, counts = self.x, self.dout, self.counts
        if not isinstance(path, Programs):
            made = routed.multiplied(path, dout, self.weight.mT, counts)
            dx = routed.summed(routed.combined(path, made, counts, self.sent), self.place, None)
            return dx, routed.weight_gradients(path, dout, x, counts)
        dx, dweight = path.empty(x, (len(self.place), x.shape[1])), path.empty(x, self.weight.shape)
        parts = self.parts(tokens=len(self.place), sent=self.sent, routed=len(x))
        path.call(dout, self.weight, counts, self.place, x, dx=dx, dweight=dweight, parts=parts)
        return dx, dweight


@dataclass
class LinearCombineBackward(OfWeights):
    """Returns the gradients of experts' rows, (room, K), and of weights. `dout`: (tokens, N), gradients of tokens.
    `order`: (sent,), the token of each row that this rank sent; `scale`: (sent,), the weight of each row, or None."""

    name = "linear_combine, backward"
    results = "(Tensor, Tensor)"
    program = matmul_combine_backward

    x: torch.Tensor
    weight: torch.Tensor
    dout: torch.Tensor
    counts: torch.Tensor
    order: torch.Tensor
    scale: torch.Tensor | None
    group_name: str
    plan: str | None

    def run(self, path: Plain) -> tuple[torch.Tensor, torch.Tensor]:
        x, counts = self.x, self.counts
        if not isinstance(path, Programs):
            sent = routed.scaled(routed.taken(self.dout, self.order), self.scale)
            grads = routed.dispatched(path, sent, counts, len(x))
            drows = routed.multiplied(path, grads, self.weight.mT, counts)
            return drows, routed.weight_gradients(path, grads, x, counts)
        drows, dweight = path.empty(x, x.shape), path.empty(x, self.weight.shape)
        parts = self.parts(tokens=len(self.dout), sent=len(self.order), routed=len(x))
        given = (self.dout, self.weight, counts, self.order, x)
        path.call(*given, drows=drows, dweight=dweight, scale=self.scale, parts=parts)
        return drows, dweight


expert_gradients = Operator(ExpertGradients)
dispatch_linear_gradients = Operator(DispatchLinearBackward)
linear_combine_gradients = Operator(LinearCombineBackward)
