"""The unfused form of operators, in plain torch and collectives of `torch.distributed`. On a CPU it is the default and
the reference: sums are made in float32, travel in float32, and are rounded once. On other devices it does what a
library does: products have the dtype of x, and partial sums travel in this dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilelink.ops.collectives import Later, Members

Tensors = Sequence[torch.Tensor]
Maybe = Sequence[torch.Tensor | None]


class Plain:
    """The parts of operators, on matrices, in plain torch. `tilelink.ops.programs` computes the same by programs."""

    def __init__(self, members: Members) -> None:
        self.members = members

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Returns x @ weight.T + bias on this rank, without overlap: (M, K), (N, K) and (N,) give (M, N)."""
        if not _exact(x):
            return torch.nn.functional.linear(x, weight, bias)
        return _plus(x.float() @ weight.float().T, bias).to(x.dtype)

    def partial(self, x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Returns this rank's summand x @ weight.T of a sum over the ranks, in the dtype in which it travels."""
        wide = _exact(x) or dtype == torch.float32
        return x.float() @ weight.float().T if wide else x @ weight.T

    def finished(
        self, total: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, mean: bool
    ) -> torch.Tensor:
        """Returns the sum over the ranks, or the `mean`, plus bias, rounded to `dtype`. `total`: the sum."""
        return _plus(total.float() * (1 / self.members.world if mean else 1.0), bias).to(dtype)

    def all_gather(self, rows: torch.Tensor, lengths: Sequence[int]) -> Later:
        """Returns the rows of all ranks; `lengths` has the number of rows of each rank."""
        return self.members.all_gather(rows, lengths)

    def gather_linear(
        self, rows: torch.Tensor, weights: Tensors, biases: Maybe, lengths: Sequence[int], keep: bool = False
    ) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        """Returns the rows of all ranks (None unless `keep`), and `linear` of these rows with every weight."""
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
        """Returns this rank's rows of the sum (or `mean`) over the ranks of x @ weight.T, plus bias, in `dtype`.
        `lengths`: rows of each rank. Partial sums of programs travel in `dtype`, around a ring in float32."""
        under_way = self.members.reduce_scatter(self.partial(x, weight, dtype), lengths)
        return lambda: self.finished(under_way(), bias, dtype, mean)


def side_by_side(grads: Tensors, weights: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Joins gradients (..., N) and weights (N, K) along N, so that one product is the sum of all products."""
    if len(grads) == 1:
        return grads[0], weights[0]
    return torch.cat(list(grads), -1), torch.cat(list(weights), 0)


def _exact(x: torch.Tensor) -> bool:
    """Whether sums are made in float32 for every dtype: on a CPU, where plain torch is the reference."""
    return x.device.type == "cpu"


def _plus(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x if bias is None else x + bias.float()
