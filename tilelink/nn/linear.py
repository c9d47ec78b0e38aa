"""The two halves of tensor parallelism, as functions of a rank's tensors, for each layout of tokens.

If all ranks have the same tensor and use it for different work, its gradient is a sum over the ranks. This is one half
of Megatron's conjugate pair (Shoeybi et al. 2019, section 3: f is the identity in the forward and an all-reduce in the
backward). The other half is `tilelink.ops.linear_all_reduce`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from tilelink.errors import ArgumentError, ShapeError, Site, TileLinkError
from tilelink.ops import all_gather_linear, linear_all_reduce, linear_reduce_scatter
from tilelink.ops.agreement import raise_everywhere
from tilelink.ops.checks import cast_for, check_dim, check_weights, no_autocast
from tilelink.ops.collectives import Members
from tilelink.ops.eager import check_func_grad
from tilelink.ops.operator import once
from tilelink.ops.plain import Maybe, Tensors, side_by_side
from tilelink.plans.names import ANYWHERE, check_plan, names_program


def column_linear(
    x: torch.Tensor,
    weights: Tensors,
    biases: Maybe,
    gather_dim: int | None,
    lengths: Sequence[int] | None,
    group_name: str,
    plan: str | None,
) -> list[torch.Tensor]:
    """Computes column-parallel layers of one input: by `all_gather_linear` if the ranks have parts of x along
    `gather_dim`. With None, every rank has the whole x, and `plan` is for the sum in the backward."""
    if gather_dim is None:
        _no_lengths(lengths)
        return linear_of_replicated(x, weights, biases, group_name, plan)
    outs: list[torch.Tensor] = all_gather_linear(
        x, weights, biases, gather_dim=gather_dim, lengths=lengths, group=group_name, plan=plan
    )
    return outs


def row_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scatter_dim: int | None,
    lengths: Sequence[int] | None,
    group_name: str,
    plan: str | None,
) -> torch.Tensor:
    """Computes a row-parallel layer: `linear_reduce_scatter` along `scatter_dim`, or with None `linear_all_reduce`. The
    gradient of the bias covers all tokens, and is the same on every rank."""
    if scatter_dim is None:
        _no_lengths(lengths)
        return linear_all_reduce(x, weight, bias, group=group_name, plan=plan)
    bias = None if bias is None else with_summed_gradient(bias, group_name)
    return linear_reduce_scatter(
        x, weight, bias, scatter_dim=scatter_dim, lengths=lengths, group=group_name, plan=plan
    )


def check_column_plan(plan: str | None, gathered: bool) -> None:
    """Raises ScheduleError for an unknown plan, and ArgumentError for a program's plan if nothing is gathered."""
    if names_program(plan) and not gathered:
        what = "nothing is gathered where every rank has all of the input"
        allowed = " or ".join(map(repr, ANYWHERE))
        raise ArgumentError(f"plan is {plan!r}: {what}, so it can be {allowed}", Site.of_user())
    check_plan("all_gather_linear", plan)


def check_row_plan(plan: str | None, scattered: bool, partial: bool = False) -> None:
    """Raises ScheduleError for an unknown plan, and ArgumentError for a program's plan if nothing is summed."""
    if names_program(plan) and partial:
        raise ArgumentError(f"plan is {plan!r}: nothing is summed where the result is Partial()", Site.of_user())
    check_plan("linear_reduce_scatter" if scattered else "linear_all_reduce", plan)


def _no_lengths(lengths: Sequence[int] | None) -> None:
    """Raises ArgumentError for lengths: every rank has all tokens."""
    if lengths is not None:
        what = "lengths= needs sequence_parallel=True; without it, every rank has all tokens"
        raise ArgumentError(what, Site.of_user())


def share(features: int, world: int, what: str) -> int:
    """Returns how many features each rank has. Raises ShapeError if the ranks can't share them evenly."""
    if features % world:
        raise ShapeError(f"{what} is {features}, which {world} ranks can't share evenly", Site.of_user())
    return features // world


def with_summed_gradient(x: torch.Tensor, group_name: str) -> torch.Tensor:
    """Returns x. In the backward, the gradients of x are summed over the ranks of the group."""
    _check_func_grad("a gradient that is summed over the ranks", [x])
    summed: torch.Tensor = _WithSummedGradient.apply(x, group_name)
    return summed


def linear_of_replicated(
    x: torch.Tensor, weights: Tensors, biases: Maybe, group_name: str, plan: str | None
) -> list[torch.Tensor]:
    """Returns x @ weight.T + bias for each weight (N, K) of this rank; all ranks have the same x (..., K). The forward
    sends nothing. One `linear_all_reduce` with `plan` makes the gradient of x, from all weights.

    Raises what `linear_all_reduce` raises, before anything is computed; the other ranks then raise RankFailedError in
    their next call.
    """
    _check_func_grad("a column-parallel linear", [x, *weights])
    cast = cast_for(x)
    x, weights, biases = cast(x), [cast(w) for w in weights], [cast(b) for b in biases]
    try:
        check_dim(x, 0, "dimension")
        check_weights(x, x.shape[-1], weights, biases)
    except TileLinkError as e:  # the others would wait for this rank in the row-parallel layer
        raise_everywhere(group_name, e.placed(), x)
    with no_autocast(x):
        return list(_LinearOfReplicated.apply(x, group_name, plan, len(weights), *weights, *biases))


def _check_func_grad(name: str, tensors: Tensors) -> None:
    if not torch.compiler.is_compiling():
        check_func_grad(name, tensors)


class _WithSummedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group_name: str) -> torch.Tensor:
        ctx.group_name = group_name
        return x.view_as(x)

    @staticmethod
    @partial(once, "a gradient that is summed over the ranks")
    def backward(ctx: Any, _: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return _sum_over_ranks(grad, ctx.group_name), None


class _LinearOfReplicated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, group_name: str, plan: str | None, number: int, *given: Any
    ) -> tuple[torch.Tensor, ...]:
        weights, biases = given[:number], given[number:]
        ctx.group_name, ctx.plan = group_name, plan
        ctx.save_for_backward(x, *weights)
        made = (F.linear(x, w, b) for w, b in zip(weights, biases, strict=True))
        return tuple(t.data for t in made)  # no views: torch forbids to change these in place

    @staticmethod
    @partial(once, "a column-parallel linear")
    def backward(ctx: Any, saved: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        x, *weights = saved
        need_x, _, _, _, *needs = ctx.needs_input_grad
        need_weights, need_biases = needs[: len(weights)], needs[len(weights) :]
        of_x = None
        if need_x:
            grad, weight = side_by_side(grads, weights)
            with no_autocast(grad):
                of_x = linear_all_reduce(grad, weight.T, group=ctx.group_name, plan=ctx.plan)
        tokens = list(range(x.dim() - 1))
        of_weights = [
            torch.tensordot(g, x, dims=(tokens, tokens)) if need else None
            for g, need in zip(grads, need_weights, strict=True)
        ]
        of_biases = [g.sum(tokens) if need else None for g, need in zip(grads, need_biases, strict=True)]
        return of_x, None, None, None, *of_weights, *of_biases


@torch.library.custom_op(
    "tilelink::sum_over_ranks", mutates_args=(), schema="(Tensor x, str group_name) -> Tensor",
    tags=[torch.Tag.needs_fixed_stride_order],
)  # fmt: skip
def _sum_over_ranks(x: torch.Tensor, group_name: str) -> torch.Tensor:
    return Members.named(group_name).all_reduce(x)


_sum_over_ranks.register_fake(lambda x, group_name: torch.empty_like(x))
