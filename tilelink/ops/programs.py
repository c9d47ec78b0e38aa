"""What operators compute, by our programs: on CUDA devices, or on a CPU in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tilelink.kernels.all_gather import all_gather as all_gather_program
from tilelink.ops.collectives import Later, Members
from tilelink.ops.lanes import lane
from tilelink.ops.mean import mean_over
from tilelink.ops.plain import Maybe, Plain, Tensors
from tilelink.plans.names import Plan
from tilelink.programs.program import Program

_preparing = False


@contextmanager
def preparing() -> Iterator[None]:
    """Inside, programs are prepared and not launched; results hold nothing."""
    global _preparing
    before, _preparing = _preparing, True
    try:
        yield
    finally:
        _preparing = before


class Programs(Plain):
    """As `Plain`, by the program and the schedule of a plan; what is empty is left to plain torch."""

    plan: Plan

    def __init__(self, members: Members, plan: Plan | None = None) -> None:
        super().__init__(members, plan)
        self.plain = Plain(members)

    def all_gather(self, rows: torch.Tensor, lengths: Sequence[int]) -> Later:
        shape = sum(lengths), rows.shape[1]
        if not all(shape):
            return self.plain.all_gather(rows, lengths)
        full = self.empty(rows, shape)
        _run(all_gather_program, self.members, rows, out=full, parts={"M": lengths})
        return lambda: full

    def gather_linear(
        self, rows: torch.Tensor, weights: Tensors, biases: Maybe, lengths: Sequence[int], keep: bool = False
    ) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        M, K = sum(lengths), rows.shape[1]
        if not M * K * min(len(w) for w in weights):
            return self.plain.gather_linear(rows, weights, biases, lengths, keep)
        outs = [self.empty(rows, (M, len(w))) for w in weights]
        bias = list(biases) if any(b is not None for b in biases) else None
        full = self.empty(rows, (M, K)) if keep else None
        self.call(rows, [w.T for w in weights], out=outs, bias=bias, gathered=full, parts={"M": lengths})
        return full, outs

    def linear_scatter(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        lengths: Sequence[int],
        dtype: torch.dtype,
        mean: bool = False,
    ) -> Later:
        if not x.numel() * len(weight):
            return self.plain.linear_scatter(x, weight, bias, lengths, dtype, mean)
        out = self.empty(x, (lengths[self.members.rank], len(weight)), dtype)
        self.call(x, weight.T, out=out, parts={"M": lengths}, **self._ending(bias, mean))
        return lambda: out

    def gather_linear_gradients(
        self, grads: Tensors, weights: Tensors, rows: torch.Tensor, lengths: Sequence[int]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        if not sum(lengths) * rows.shape[1] * min(len(w) for w in weights):
            return self.plain.gather_linear_gradients(grads, weights, rows, lengths)
        dx, dweights = self.empty(rows, rows.shape), [self.empty(rows, w.shape) for w in weights]
        turned, wanted = [w.T for w in weights], [w.T for w in dweights]
        self.call(list(grads), turned, rows, dx=dx, dweight=wanted, parts={"M": lengths})
        return dx, dweights

    def linear_scatter_gradients(
        self, grad: torch.Tensor, weight: torch.Tensor, x: torch.Tensor, lengths: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not x.numel() * len(weight):
            return self.plain.linear_scatter_gradients(grad, weight, x, lengths)
        dx, dweight = self.empty(x, x.shape), self.empty(x, weight.shape)
        self.call(grad, weight.T, x, dx=dx, dweight=dweight.T, parts={"M": lengths})
        return dx, dweight

    def linear_all_reduce(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, mean: bool
    ) -> torch.Tensor:
        if not x.numel() * len(weight):
            return self.plain.linear_all_reduce(x, weight, bias, mean)
        out = self.empty(x, (len(x), len(weight)))
        self.call(x, weight.T, out=out, **self._ending(bias, mean))
        return out

    def _ending(self, bias: torch.Tensor | None, mean: bool) -> dict[str, Any]:
        """What a program does to a sum before it is rounded. It adds the bias first, so that of a mean is as many times
        as much."""
        world = self.members.world
        if not mean:
            return {"bias": bias}
        return {"bias": None if bias is None else bias.float() * world, "epilogue": mean_over(world)}

    def empty(self, like: torch.Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
        """Memory for a result, of the dtype of a tensor by default."""
        return lane(self.members.group, device=like.device.type).allocate(tuple(shape), dtype or like.dtype)

    def call(self, *tensors: Any, **options: Any) -> None:
        """Calls the program of the plan, or prepares the call; its outputs are given."""
        _run(self.plan.program, self.members, *tensors, schedule=self.plan.schedule, **options)


def _run(program: Program, members: Members, *tensors: Any, **options: Any) -> None:
    """Calls a program, or prepares the call."""
    first = tensors[0][0] if isinstance(tensors[0], list) else tensors[0]
    do = program.prepare if _preparing else program
    do(*tensors, group=lane(members.group, device=first.device.type), **options)
