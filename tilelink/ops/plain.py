"""What operators compute, in plain torch and the collectives of `torch.distributed`: the unfused form. On a CPU it is
the reference, and what runs by default: sums are made in float32, travel so, and are rounded once. On other devices it
is what a library has: products of the dtype of x, and partial sums that travel in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilelink.ops import collectives
from tilelink.ops.collectives import Later, Members
from tilelink.plans.names import Plan

Tensors = Sequence[torch.Tensor]
Maybe = Sequence[torch.Tensor | None]


class Plain:
    """What operators are made of, on matrices; `tilelink.ops.programs` computes the same by the program of a plan."""

    def __init__(self, members: Members, plan: Plan | None = None) -> None:
        self.members, self.plan = members, plan

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x @ weight.T + bias on this rank, where there is nothing to overlap: (M, K), (N, K) and (N,) give (M, N)."""
        if not _exact(x):
            return torch.nn.functional.linear(x, weight, bias)
        return _plus(x.float() @ weight.float().T, bias).to(x.dtype)

    def all_gather(self, rows: torch.Tensor, lengths: Sequence[int]) -> Later:
        """The rows of all ranks, `lengths` of them."""
        return collectives.all_gather(self.members, rows, lengths)

    def gather_linear(
        self, rows: torch.Tensor, weights: Tensors, biases: Maybe, lengths: Sequence[int], keep: bool = False
    ) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        """The rows of all ranks (where `keep` asks for them), and `linear` of them with every weight."""
        full = self.all_gather(rows, lengths)()
        outs = [self.linear(full, w, b) for w, b in zip(weights, biases, strict=True)]
        return full if keep else None, outs

    def linear_scatter(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        lengths: Sequence[int],
        dtype: torch.dtype,
        mean: bool = False,
    ) -> Later:
        """This rank's rows, of `lengths`, of the sum (or `mean`) over the ranks of x @ weight.T, + bias once, rounded
        to `dtype`, in which partial sums of programs travel (around a ring in float32)."""
        under_way = collectives.reduce_scatter(self.members, _partial(x, weight, dtype), lengths)
        return lambda: _plus(under_way().float() * self._part(mean), bias).to(dtype)

    def gather_linear_gradients(
        self, grads: Tensors, weights: Tensors, rows: torch.Tensor, lengths: Sequence[int]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Gradients of `gather_linear`: of this rank's rows, and of the weights, which are multiplied while the first
        one is sent; rows are gathered again meanwhile."""
        gathering = self.all_gather(rows, lengths)
        grad, weight = side_by_side(grads, weights)
        scattering = self.linear_scatter(grad, weight.T, None, lengths, rows.dtype)
        full = gathering()
        return scattering(), [self.linear(g.T, full.T) for g in grads]

    def linear_scatter_gradients(
        self, grad: torch.Tensor, weight: torch.Tensor, x: torch.Tensor, lengths: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of `linear_scatter`, of x and of the weight, from that of this rank's rows, which is gathered
        once."""
        full = self.all_gather(grad, lengths)()
        return self.linear(full, weight.T), self.linear(full.T, x.T)

    def linear_all_reduce(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, mean: bool
    ) -> torch.Tensor:
        """The sum (or the `mean`) over the ranks of x @ weight.T, + bias once: the same bits on every rank. Partial
        sums of programs travel in the dtype of x."""
        total = collectives.all_reduce(self.members, _partial(x, weight, x.dtype))
        return _plus(total.float() * self._part(mean), bias).to(x.dtype)

    def _part(self, mean: bool) -> float:
        """What a rank's product is multiplied by."""
        return 1 / self.members.world if mean else 1.0


def side_by_side(grads: Tensors, weights: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients (..., N) and weights (N, K) as one of each, so that one product is the sum of all."""
    if len(grads) == 1:
        return grads[0], weights[0]
    return torch.cat(list(grads), -1), torch.cat(list(weights), 0)


def _exact(x: torch.Tensor) -> bool:
    """Whether sums are made in float32 whatever the dtype: on a CPU, where this is the reference."""
    return x.device.type == "cpu"


def _partial(x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """This rank's part of a sum over the ranks of x @ weight.T, in the dtype in which it travels."""
    wide = _exact(x) or dtype == torch.float32
    return x.float() @ weight.float().T if wide else x @ weight.T


def _plus(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x if bias is None else x + bias.float()
