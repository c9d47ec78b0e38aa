"""The two halves of tensor parallelism, whichever layout their tokens have; on the tensors of a rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilelink.errors import ArgumentError, Site
from tilelink.nn.replicated import linear_of_replicated, with_summed_gradient
from tilelink.ops import all_gather_linear, linear_all_reduce, linear_reduce_scatter
from tilelink.plans import AUTO, TORCH
from tilelink.plans.names import check_plan

ANYWHERE = (None, AUTO, TORCH)
"""Plans that ask for no program, so that every layer can have them."""


def column_linear(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    gather_dim: int | None,
    lengths: Sequence[int] | None,
    group_name: str,
    plan: str | None,
) -> list[torch.Tensor]:
    """Column-parallel layers of one input: `all_gather_linear` of x, whose parts the ranks have along `gather_dim`; or
    linear layers of x, which every rank has (None; `plan` is that of the sum in the backward then)."""
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
    """A row-parallel layer: `linear_reduce_scatter` along `scatter_dim`, or `linear_all_reduce` (None). The gradient of
    the bias is that of all tokens, the same on every rank."""
    if scatter_dim is None:
        _no_lengths(lengths)
        return linear_all_reduce(x, weight, bias, group=group_name, plan=plan)
    bias = None if bias is None else with_summed_gradient(bias, group_name)
    return linear_reduce_scatter(
        x, weight, bias, scatter_dim=scatter_dim, lengths=lengths, group=group_name, plan=plan
    )


def check_column_plan(plan: str | None, gathered: bool) -> None:
    """Raises ScheduleError for what is no plan, ArgumentError for one where nothing is gathered."""
    if plan not in ANYWHERE and not gathered:
        what = "nothing is gathered where every rank has all of the input"
        raise ArgumentError(f"plan is {plan!r}: {what}", Site.of_user())
    check_plan("all_gather_linear", plan)


def check_row_plan(plan: str | None, scattered: bool, partial: bool = False) -> None:
    """Raises ScheduleError for what is no plan of the operator, ArgumentError for one where nothing is summed."""
    if plan not in ANYWHERE and partial:
        raise ArgumentError(f"plan is {plan!r}: nothing is summed where the result is Partial()", Site.of_user())
    check_plan("linear_reduce_scatter" if scattered else "linear_all_reduce", plan)


def _no_lengths(lengths: Sequence[int] | None) -> None:
    """Raises ArgumentError where every rank has all tokens."""
    if lengths is not None:
        raise ArgumentError(f"lengths are {tuple(lengths)}: every rank has all tokens here", Site.of_user())
