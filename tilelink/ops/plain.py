"""What operators compute, in plain torch and the collectives of `torch.distributed`: the unfused form. On a CPU it is
the reference, and what runs by default: sums are made in float32, travel so, and are rounded once. On other devices it
is what a library has: products of the dtype of x, and partial sums that travel in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilelink.ops import collectives
from tilelink.ops.collectives import Later, Members


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias on this rank: (M, K), (N, K) and (N,) give (M, N)."""
    if not _exact(x):
        return torch.nn.functional.linear(x, weight, bias)
    return _plus(x.float() @ weight.float().T, bias).to(x.dtype)


def all_gather(members: Members, rows: torch.Tensor, lengths: Sequence[int]) -> Later:
    """The rows of all ranks, `lengths` of them."""
    return collectives.all_gather(members, rows, lengths)


def gather_linear(
    members: Members,
    rows: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    lengths: Sequence[int],
    plan: str | None,
    keep: bool,
) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """The rows of all ranks (where `keep` asks for them), and `linear` of them with every weight."""
    full = all_gather(members, rows, lengths)()
    outs = [linear(full, w, b) for w, b in zip(weights, biases, strict=True)]
    return full if keep else None, outs


def linear_scatter(
    members: Members,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    lengths: Sequence[int],
    plan: str | None,
    dtype: torch.dtype,
    mean: bool = False,
) -> Later:
    """This rank's rows, of `lengths`, of the sum (or `mean`) over the ranks of x @ weight.T, + bias once, rounded to
    `dtype`."""
    under_way = collectives.reduce_scatter(members, _partial(x, weight, dtype), lengths)
    return lambda: _plus(under_way().float() * _part(members, mean), bias).to(dtype)


def gather_linear_gradients(
    members: Members,
    grads: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    rows: torch.Tensor,
    lengths: Sequence[int],
    plan: str | None,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Gradients of `gather_linear`: of this rank's rows, and of the weights, which are multiplied while the first one
    is sent; rows are gathered again meanwhile."""
    gathering = all_gather(members, rows, lengths)
    grad, weight = side_by_side(grads, weights)
    scattering = linear_scatter(members, grad, weight.T, None, lengths, None, rows.dtype)
    full = gathering()
    return scattering(), [linear(g.T, full.T) for g in grads]


def linear_scatter_gradients(
    members: Members,
    grad: torch.Tensor,
    weight: torch.Tensor,
    x: torch.Tensor,
    lengths: Sequence[int],
    plan: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of `linear_scatter`, of x and of the weight, from that of this rank's rows, which is gathered once."""
    full = all_gather(members, grad, lengths)()
    return linear(full, weight.T), linear(full.T, x.T)


def side_by_side(
    grads: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients (..., N) and weights (N, K) as one of each, so that one product is the sum of all."""
    if len(grads) == 1:
        return grads[0], weights[0]
    return torch.cat(list(grads), -1), torch.cat(list(weights), 0)


def linear_all_reduce(
    members: Members,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    plan: str | None,
    mean: bool,
) -> torch.Tensor:
    """The sum (or the `mean`) over the ranks of x @ weight.T, + bias once: the same bits on every rank."""
    total = collectives.all_reduce(members, _partial(x, weight, x.dtype))
    return _plus(total.float() * _part(members, mean), bias).to(x.dtype)


def _exact(x: torch.Tensor) -> bool:
    """Whether sums are made in float32 whatever the dtype: on a CPU, where this is the reference."""
    return x.device.type == "cpu"


def _partial(x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """This rank's part of a sum over the ranks of x @ weight.T, in the dtype in which it travels."""
    wide = _exact(x) or dtype == torch.float32
    return x.float() @ weight.float().T if wide else x @ weight.T


def _part(members: Members, mean: bool) -> float:
    """What a rank's product is multiplied by."""
    return 1 / members.world if mean else 1.0


def _plus(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x if bias is None else x + bias.float()
