"""The operators of torch that send a token once to a rank, and add up its rows there before they go back. Each is the
gradient of the other. The operators in `tilelink.ops.experts` send a row for each choice of a token instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tilelink.errors import ScheduleError, ShapeError
from tilelink.kernels.all_gather_grouped_matmul import all_gather_grouped_matmul
from tilelink.kernels.grouped_matmul_reduce_scatter import grouped_matmul_reduce_scatter
from tilelink.ops import routed
from tilelink.ops.experts_backward import expert_gradients
from tilelink.ops.experts_call import OfExperts
from tilelink.ops.operator import Operator
from tilelink.ops.plain import Plain
from tilelink.ops.programs import Programs
from tilelink.plans.layer_plans import OF_TOKENS
from tilelink.plans.names import names_program
from tilelink.programs.fitting import takes


class OfTokens(OfExperts):
    """A call that sends tokens once to a rank, or brings their sums back. `token`, `at` and `wanted`: as in
    `tilelink.ops.moe_routing.Once`; `sent`: room for rows that a rank sends."""

    pair = OF_TOKENS
    token: torch.Tensor
    at: torch.Tensor
    wanted: torch.Tensor | None
    sent: int

    def check_plan(self) -> None:
        super().check_plan()
        if self.wanted is None or not names_program(self.plan):
            return
        if not takes(self.program, self.plan_of_path().schedule.name, frozenset(["wanted"])):
            raise ScheduleError(
                f"plan is {self.plan!r}, which sends all tokens to all ranks: it is for a slice of every expert on "
                f"every rank, slices={self.members.world}"
            )

    def check(self) -> None:
        super().check()
        world = self.members.world
        if self.wanted is not None and tuple(self.wanted.shape) != (len(self.at) // world, world):
            shapes = f"wanted has shape {tuple(self.wanted.shape)}, at {tuple(self.at.shape)}"
            raise ShapeError(f"{shapes}; they must be (tokens, {world}) and (tokens of all ranks, top)")

    @property
    def tokens(self) -> int:
        """The number of tokens of each rank."""
        return len(self.at) // self.members.world

    def parts_of_call(self) -> dict[str, Any]:
        return self.parts(tokens=self.tokens, sent=self.sent, routed=len(self.token))

    def keep_for_gradients(self, ctx: Any, *more: torch.Tensor) -> None:
        ctx.call, ctx.sent = self.options, self.sent
        ctx.save_for_backward(self.weight, self.counts, self.token, self.at, self.wanted, *more)


def where_rows_are(ctx: Any, saved: Any) -> dict[str, Any]:
    """Returns the arguments that a gradient's call takes from the call of the forward."""
    _, counts, token, at, wanted, *_ = saved
    return {"counts": counts, "token": token, "at": at, "wanted": wanted, "sent": ctx.sent, **ctx.call}


@dataclass
class DispatchLinearOnce(OfTokens):
    """Sends tokens once to each rank that has experts of theirs; each expert multiplies its rows. Returns (room, N),
    padding behind the rows; and the rows themselves, (room, K), if `keep`, else an empty tensor."""

    name = "dispatch_linear_once"
    results = "(Tensor, Tensor)"
    program = all_gather_grouped_matmul

    x: torch.Tensor
    weight: torch.Tensor
    counts: torch.Tensor
    token: torch.Tensor
    at: torch.Tensor
    wanted: torch.Tensor | None
    sent: int
    keep: bool
    group_name: str
    plan: str | None

    def run(self, path: Plain) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight, room = self.x, self.weight, len(self.token)
        if not isinstance(path, Programs):
            rows = routed.fanned_out(path, x, self.token, self.counts, self.sent)
            return routed.multiplied(path, rows, weight, self.counts), self.or_nothing(rows if self.keep else None)
        out = path.empty(x, (room, weight.shape[1]))
        gathered = path.empty(x, (room, x.shape[1])) if self.keep else None
        given = {"wanted": self.wanted, "gathered": gathered, "parts": self.parts_of_call()}
        path.call(x, weight.mT, self.counts, self.token, out=out, **given)
        return out, self.or_nothing(gathered)

    def setup(self, ctx: Any, output: tuple[torch.Tensor, torch.Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        self.keep_for_gradients(ctx, output[1])

    @staticmethod
    def backward(ctx: Any, saved: Any, *grads: Any) -> Mapping[str, Any]:
        (weight, counts, *_, rows), grad, found = saved, grads[0].contiguous(), {}
        if ctx.needs_input_grad[0]:
            found["x"] = linear_combine_once(x=grad, weight=weight.mT, weights=None, **where_rows_are(ctx, saved))
        if ctx.needs_input_grad[1]:
            found["weight"] = expert_gradients(dout=grad, x=rows, counts=counts, **ctx.call)
        return found


@dataclass
class LinearCombineOnce(OfTokens):
    """Each expert multiplies its rows. Each rank adds up its products for a token, times their weights, and the token's
    rank adds up these sums: (tokens, N). `weights`: (tokens of all ranks, top), in the order of `at`."""

    name = "linear_combine_once"
    results = "Tensor"
    program = grouped_matmul_reduce_scatter

    x: torch.Tensor
    weight: torch.Tensor
    counts: torch.Tensor
    token: torch.Tensor
    at: torch.Tensor
    wanted: torch.Tensor | None
    weights: torch.Tensor | None
    sent: int
    group_name: str
    plan: str | None

    def run(self, path: Plain) -> torch.Tensor:
        x, weight, tokens = self.x, self.weight, self.tokens
        if not isinstance(path, Programs):
            routed.check_room(path, self.counts, self.sent, len(x))
            made = routed.multiplied(path, x, weight, self.counts)
            here = routed.added(made, self.at, self.weights)
            return path.members.reduce_scatter(here, [tokens] * path.members.world)().to(x.dtype)
        out = path.empty(x, (tokens, weight.shape[1]))
        given = {"wanted": self.wanted, "weights": self.weights, "parts": self.parts_of_call()}
        path.call(x, weight.mT, self.counts, self.at, out=out, **given)
        return out

    def setup(self, ctx: Any, output: torch.Tensor) -> None:
        self.keep_for_gradients(ctx, self.x, self.or_nothing(self.weights))

    @staticmethod
    def backward(ctx: Any, saved: Any, *grads: Any) -> Mapping[str, Any]:
        """Returns the gradients. The gradient of a row's weight is the row's x times `back`, the token's gradient after
        the product: both are on this rank, so no row has to come back."""
        (weight, counts, _, at, _, x, weights), keep = saved, bool(ctx.needs_input_grad[1])
        back, rows = dispatch_linear_once(
            x=grads[0].contiguous(), weight=weight.mT, keep=keep, **where_rows_are(ctx, saved)
        )  # fmt: skip
        of_choices = weights if weights.numel() else torch.ones_like(at, dtype=torch.float32)
        scale = routed.at_rows(of_choices, at, len(x), 0)
        found: dict[str, Any] = {"x": routed.scaled(back, scale)}
        if keep:
            found["weight"] = expert_gradients(dout=routed.scaled(rows, scale), x=x, counts=counts, **ctx.call)
        if ctx.needs_input_grad[6]:
            each = (back.float() * x.float()).sum(1)
            found["weights"] = routed.taken(each[:, None], at.flatten()).view(at.shape)
        return found


dispatch_linear_once, linear_combine_once = Operator(DispatchLinearOnce), Operator(LinearCombineOnce)
