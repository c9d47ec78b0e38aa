"""What every rank has alike, and uses for its own part of the work: the gradient is the sum over the ranks.

This is one half of Megatron's conjugate pair (Shoeybi et al. 2019, section 3: f is the identity in the forward and an
all-reduce in the backward); the other half is `tilelink.ops.linear_all_reduce`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tilelink.errors import Site, TileLinkError
from tilelink.ops import collectives, linear_all_reduce
from tilelink.ops.autocast import cast_for, no_autocast
from tilelink.ops.checks import check_dim, check_weights
from tilelink.ops.collectives import Members
from tilelink.ops.plain import side_by_side


def with_summed_gradient(x: torch.Tensor, group_name: str) -> torch.Tensor:
    """x; its gradient is the sum of the gradients that the ranks of the group have."""
    summed: torch.Tensor = _WithSummedGradient.apply(x, group_name)
    return summed


def linear_of_replicated(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    group_name: str,
    plan: str | None = None,
) -> list[torch.Tensor]:
    """x @ weight.T + bias for each weight (N, K) of this rank, of an x (..., K) that all ranks have alike. Sends
    nothing; the gradient of x is the product with all weights, summed by one `linear_all_reduce` with `plan`.

    Raises what `linear_all_reduce` raises, before anything is computed.
    """
    cast = cast_for(x)
    x, weights, biases = cast(x), [cast(w) for w in weights], [cast(b) for b in biases]
    try:
        check_dim(x, 0, "dimension")
        check_weights(x, x.shape[-1], weights, biases)
    except TileLinkError as e:
        raise type(e)(e.message, Site.of_user()) from None
    with no_autocast(x):
        return list(_LinearOfReplicated.apply(x, group_name, plan, len(weights), *weights, *biases))


class _WithSummedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group_name: str) -> torch.Tensor:
        ctx.group_name = group_name
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return _sum_over_ranks(grad, ctx.group_name), None


class _LinearOfReplicated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, group_name: str, plan: str | None, number: int, *given: Any
    ) -> tuple[torch.Tensor, ...]:
        weights, biases = given[:number], given[number:]
        ctx.group_name, ctx.plan = group_name, plan
        ctx.save_for_backward(x, *weights)
        return tuple(F.linear(x, w, b) for w, b in zip(weights, biases, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        x, *weights = ctx.saved_tensors
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
    return collectives.all_reduce(Members.named(group_name), x)


_sum_over_ranks.register_fake(lambda x, group_name: torch.empty_like(x))
