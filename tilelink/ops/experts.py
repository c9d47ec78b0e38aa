"""The operators of torch that make up layers of experts: rows go to experts or come back, with or without a product.
Each operator is the gradient of another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tilelink.errors import ArgumentError
from tilelink.kernels.combine import combine
from tilelink.kernels.dispatch import dispatch
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.kernels.matmul_combine import matmul_combine
from tilelink.ops import routed
from tilelink.ops.experts_backward import dispatch_linear_gradients, expert_gradients, linear_combine_gradients
from tilelink.ops.experts_call import OfExperts
from tilelink.ops.operator import Operator
from tilelink.ops.plain import Plain
from tilelink.ops.programs import Programs


class Sums(OfExperts):
    """A call that adds up the rows of each token, each row times its entry of `weights`, (tokens, top). `sent`: room
    for rows that come back; `keep`: whether to return these rows, too. The gradient of `weights` needs them."""

    place: torch.Tensor
    weights: torch.Tensor | None
    sent: int
    keep: bool

    def results_of(self, path: Programs, columns: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns memory for the sums and, if they are kept, for the rows that come back."""
        sums = path.empty(self.x, (len(self.place), columns))
        return sums, path.empty(self.x, (self.sent, columns)) if self.keep else None

    def summed(self, back: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the results in plain torch. `back`: the rows that came back."""
        return routed.summed(back, self.place, self.weights), back if self.keep else back.new_empty(0)

    def keep_for_gradients(self, ctx: Any, back: torch.Tensor, *more: torch.Tensor) -> None:
        if self.weights is not None and self.weights.requires_grad and not self.keep:
            raise ArgumentError("weights get their gradient from the rows that come back: pass keep=True")
        ctx.call = {"counts": self.counts, **self.options}
        ctx.sent, ctx.room = self.sent, len(self.x)
        ctx.mark_non_differentiable(back)
        ctx.save_for_backward(self.place, self.weights, back, *more)


def as_dispatched(ctx: Any, saved: Any, grad: torch.Tensor) -> dict[str, Any]:
    """Returns the arguments of a dispatch of gradients: each row gets the gradient of its token. If rows have weights,
    the scaled gradients are laid out first, one for each row, as if each row were a token."""
    place, weights, *_ = saved
    order, scale = routed.sources(place, weights, ctx.sent)
    if scale is not None:
        grad = routed.scaled(routed.taken(grad, order), scale)
        order = torch.arange(ctx.sent, dtype=torch.int32, device=grad.device)
        place = order[:, None]
    return {"x": grad.contiguous(), "order": order, "place": place, "room": ctx.room, **ctx.call}


@dataclass
class DispatchLinear(OfExperts):
    """Sends tokens to their experts, and each expert multiplies its rows. Returns (room, N), padding behind the rows;
    and the rows themselves, (room, K), if `keep`, else an empty tensor."""

    name = "dispatch_linear"
    results = "(Tensor, Tensor)"
    program = dispatch_matmul

    x: torch.Tensor
    weight: torch.Tensor
    counts: torch.Tensor
    order: torch.Tensor
    place: torch.Tensor
    room: int
    keep: bool
    group_name: str
    plan: str | None

    def run(self, path: Plain) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = self.x, self.weight
        if not isinstance(path, Programs):
            rows = routed.dispatched(path, routed.taken(x, self.order), self.counts, self.room)
            return routed.multiplied(path, rows, weight, self.counts), self.or_nothing(rows if self.keep else None)
        out = path.empty(x, (self.room, weight.shape[1]))
        kept = path.empty(x, (self.room, x.shape[1])) if self.keep else None
        parts = self.parts(tokens=len(x), sent=len(self.order), routed=self.room)
        path.call(x, weight.mT, self.counts, self.order, out=out, gathered=kept, parts=parts)
        return out, self.or_nothing(kept)

    def setup(self, ctx: Any, output: tuple[torch.Tensor, torch.Tensor]) -> None:
        if self.weight.requires_grad and not self.keep:
            raise ArgumentError("a weight gets its gradient from the rows of its expert: pass keep=True")
        ctx.call, ctx.sent = self.options, len(self.order)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(self.weight, self.counts, self.place, output[1])

    @staticmethod
    def backward(ctx: Any, saved: Any, *grads: Any) -> Mapping[str, Any]:
        (weight, counts, place, rows), dout = saved, grads[0].contiguous()
        call = {"counts": counts, **ctx.call}
        if not ctx.needs_input_grad[0]:
            return {"weight": expert_gradients(dout=dout, x=rows, **call)}
        back = {"place": place, "sent": ctx.sent}
        if not ctx.needs_input_grad[1]:
            return {"x": linear_combine(x=dout, weight=weight.mT, weights=None, keep=False, **back, **call)[0]}
        dx, dweight = dispatch_linear_gradients(x=rows, weight=weight, dout=dout, **back, **call)
        return {"x": dx, "weight": dweight}


@dataclass
class LinearCombine(Sums):
    """Each expert multiplies its rows, the products go back, and each token adds up its own. Returns (tokens, N); and
    the rows that came back, (sent, N), in the order of experts, if `keep`, else an empty tensor."""

    name = "linear_combine"
    results = "(Tensor, Tensor)"
    program = matmul_combine

    x: torch.Tensor
    weight: torch.Tensor
    counts: torch.Tensor
    place: torch.Tensor
    weights: torch.Tensor | None
    sent: int
    keep: bool
    group_name: str
    plan: str | None

    def run(self, path: Plain) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = self.x, self.weight
        if not isinstance(path, Programs):
            routed.check_room(path, self.counts, self.sent, len(x))
            made = routed.multiplied(path, x, weight, self.counts)
            return self.summed(routed.combined(path, made, self.counts, self.sent))
        out, kept = self.results_of(path, weight.shape[1])
        parts = self.parts(tokens=len(self.place), sent=self.sent, routed=len(x))
        path.call(x, weight.mT, self.counts, self.place, out=out, weights=self.weights, kept=kept, parts=parts)
        return out, self.or_nothing(kept)

    def setup(self, ctx: Any, output: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.keep_for_gradients(ctx, output[1], self.x, self.weight)

    @staticmethod
    def backward(ctx: Any, saved: Any, *grads: Any) -> Mapping[str, Any]:
        (place, weights, back, x, weight), grad = saved, grads[0]
        found = {"weights": routed.weights_of(grad, place, back)} if ctx.needs_input_grad[4] else {}
        match tuple(ctx.needs_input_grad[:2]):
            case (True, True):
                order, scale = routed.sources(place, weights, ctx.sent)
                given = {"x": x, "weight": weight, "dout": grad.contiguous(), "order": order, "scale": scale}
                found["x"], found["weight"] = linear_combine_gradients(**given, **ctx.call)
            case (True, False):
                found["x"], _ = dispatch_linear(weight=weight.mT, keep=False, **as_dispatched(ctx, saved, grad))
            case (False, True):
                grads_of_rows = moe_dispatch(**as_dispatched(ctx, saved, grad))
                found["weight"] = expert_gradients(dout=grads_of_rows, x=x, **ctx.call)
        return found


@dataclass
class Dispatch(OfExperts):
    """Sends tokens to their experts. Returns (room, K): rows by expert and source rank, then padding."""

    name = "moe_dispatch"
    results = "Tensor"
    program = dispatch

    x: torch.Tensor
    counts: torch.Tensor
    order: torch.Tensor
    place: torch.Tensor
    room: int
    group_name: str
    plan: str | None

    def run(self, path: Plain) -> torch.Tensor:
        if not isinstance(path, Programs):
            return routed.dispatched(path, routed.taken(self.x, self.order), self.counts, self.room)
        out = path.empty(self.x, (self.room, self.x.shape[1]))
        parts = self.parts(tokens=len(self.x), sent=len(self.order), routed=self.room)
        path.call(self.x, self.counts, self.order, out=out, parts=parts)
        return out

    def setup(self, ctx: Any, output: torch.Tensor) -> None:
        ctx.call, ctx.sent = self.options, len(self.order)
        ctx.save_for_backward(self.counts, self.place)

    @staticmethod
    def backward(ctx: Any, saved: Any, *grads: Any) -> Mapping[str, Any]:
        counts, place = saved
        back = {"counts": counts, "place": place, "weights": None, "sent": ctx.sent, "keep": False}
        return {"x": moe_combine(x=grads[0].contiguous(), **back, **ctx.call)[0]}


@dataclass
class Combine(Sums):
    """Sends rows back from their experts, and each token adds up its own. Returns (tokens, K); and the rows that came
    back, (sent, K), in the order of all experts, if `keep`, else an empty tensor."""

    name = "moe_combine"
    results = "(Tensor, Tensor)"
    program = combine

    x: torch.Tensor
    counts: torch.Tensor
    place: torch.Tensor
    weights: torch.Tensor | None
    sent: int
    keep: bool
    group_name: str
    plan: str | None

    def run(self, path: Plain) -> tuple[torch.Tensor, torch.Tensor]:
        if not isinstance(path, Programs):
            return self.summed(routed.combined(path, self.x, self.counts, self.sent))
        out, kept = self.results_of(path, self.x.shape[1])
        parts = self.parts(tokens=len(self.place), sent=self.sent, routed=len(self.x))
        path.call(self.x, self.counts, self.place, out=out, weights=self.weights, kept=kept, parts=parts)
        return out, self.or_nothing(kept)

    def setup(self, ctx: Any, output: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.keep_for_gradients(ctx, output[1])

    @staticmethod
    def backward(ctx: Any, saved: Any, *grads: Any) -> Mapping[str, Any]:
        (place, _, back), grad = saved, grads[0]
        found = {"weights": routed.weights_of(grad, place, back)} if ctx.needs_input_grad[3] else {}
        return found | ({"x": moe_dispatch(**as_dispatched(ctx, saved, grad))} if ctx.needs_input_grad[0] else {})


dispatch_linear, linear_combine = Operator(DispatchLinear), Operator(LinearCombine)
moe_dispatch, moe_combine = Operator(Dispatch), Operator(Combine)
