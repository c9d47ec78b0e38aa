"""What operators compute, in plain torch and the collectives of `torch.distributed`: the unfused form. On a CPU it is
the reference, and what runs by default: sums are made in float32, travel so, and are rounded once. On other devices it
is what a library has: products of the dtype of x, and partial sums that travel in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilelink.ops.collectives import Later, Members

Tensors = Sequence[torch.Tensor]
Maybe = Sequence[torch.Tensor | None]


class Plain:
    """What operators are made of, on matrices; `tilelink.ops.programs` computes the same by the program of a plan."""

    def __init__(self, members: Members) -> None:
        self.members = members

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x @ weight.T + bias on this rank, where there is nothing to overlap: (M, K), (N, K) and (N,) give (M, N)."""
        if not _exact(x):
            return torch.nn.functional.linear(x, weight, bias)
        return _plus(x.float() @ weight.float().T, bias).to(x.dtype)

    def partial(self, x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """This rank's part of a sum over the ranks of x @ weight.T, in the dtype in which it travels."""
        wide = _exact(x) or dtype == torch.float32
        return x.float() @ weight.float().T if wide else x @ weight.T

    def finished(
        self, total: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, mean: bool
    ) -> torch.Tensor:
        """A sum over the ranks, or the `mean`, + bias once, rounded to `dtype`."""
        return _plus(total.float() * (1 / self.members.world if mean else 1.0), bias).to(dtype)

    def all_gather(self, rows: torch.Tensor, lengths: Sequence[int]) -> Later:
        """The rows of all ranks, `lengths` of them."""
        return self.members.all_gather(rows, lengths)

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
        under_way = self.members.reduce_scatter(self.partial(x, weight, dtype), lengths)
        return lambda: self.finished(under_way(), bias, dtype, mean)


def side_by_side(grads: Tensors, weights: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients (..., N) and weights (N, K) as one of each, so that one product is the sum of all."""
    if len(grads) == 1:
        return grads[0], weights[0]
    return torch.cat(list(grads), -1), torch.cat(list(weights), 0)


def _exact(x: torch.Tensor) -> bool:
    """Whether sums are made in float32 whatever the dtype: on a CPU, where this is the reference."""
    return x.device.type == "cpu"


def _plus(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x if bias is None else x + bias.float()
