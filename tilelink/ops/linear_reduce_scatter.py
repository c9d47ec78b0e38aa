"""linear_reduce_scatter: the second half of tensor parallelism with sequence parallelism (row-parallel layers)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from tilelink.errors import public
from tilelink.ops.checks import check_dim, check_reduce_op, check_weights, parts_of
from tilelink.ops.collectives import Members
from tilelink.ops.linear_operator import LinearOperator
from tilelink.ops.matrices import as_rows, of_rows, resized, times
from tilelink.ops.operator import Asked, Call, Operator
from tilelink.ops.plain import Plain
from tilelink.ops.programs import Programs
from tilelink.plans.names import AUTO, check_plan


@dataclass
class LinearReduceScatter(Call):
    """A call of `linear_reduce_scatter`. `parts`: the lengths of the parts of the result along `dim`."""

    name = "linear_reduce_scatter"
    results = "Tensor"

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    scatter_dim: int
    lengths: Sequence[int] | None
    reduce_op: str
    group_name: str
    plan: str | None
    dim: int = field(init=False)
    parts: list[int] = field(init=False)

    def check(self) -> None:
        x, weight = self.x, self.weight
        self.dim = check_dim(x, self.scatter_dim, "scatter_dim")
        check_weights(x, x.shape[-1], [weight], [self.bias])
        check_reduce_op(self.reduce_op)
        check_plan(self.name, self.plan)
        total, what = (weight.shape[0], "N") if self.turned else (x.shape[self.dim], f"dimension {self.dim} of x")
        self.parts = parts_of(total, self.members.world, self.lengths, what)

    @property
    def turned(self) -> bool:
        """Whether columns of the product are scattered. The product is then computed transposed."""
        return self.dim == self.x.dim() - 1

    def told(self) -> Mapping[str, Any]:
        shapes = {"x": tuple(self.x.shape), "weight": tuple(self.weight.shape)}
        of_result = {"scatter_dim": self.dim, "lengths": self.parts, "reduce_op": self.reduce_op}
        return {"shapes": shapes, "bias": self.bias is not None, **of_result}

    def asked(self) -> Asked:
        (N, K), M = self.weight.shape, math.prod(self.x.shape[:-1])
        return Asked(self.name, N, M, K) if self.turned else Asked(self.name, M, N, K)

    def run(self, path: Plain) -> torch.Tensor:
        x, weight, bias, parts = self.x, self.weight, self.bias, self.parts
        mine, before = parts[self.members.rank], sum(parts[: self.members.rank])
        rows, mean = as_rows(x, self.dim), self.reduce_op == "avg"
        if self.turned:  # the bias then belongs to rows: it is added here in float32, so that the sum is rounded once
            dtype = x.dtype if bias is None else torch.float32
            out = path.linear_scatter(weight, rows, None, parts, dtype, mean)().T
            out = out if bias is None else (out + bias[before : before + mine].float()).to(x.dtype)
        else:
            out = path.linear_scatter(rows, weight, bias, times(parts, x.shape, self.dim), x.dtype, mean)()
        return of_rows(out, resized([*x.shape[:-1], len(weight)], self.dim, mine), self.dim).contiguous()

    def setup(self, ctx: Any, output: torch.Tensor) -> None:
        ctx.scale = 1 / self.members.world if self.reduce_op == "avg" else 1
        ctx.call = {"scatter_dim": self.dim, "lengths": self.parts, "group_name": self.group_name}
        ctx.bias = None if self.bias is None else self.bias.shape[0]
        ctx.plan = self.plan if self.plan == AUTO else None
        ctx.save_for_backward(self.x, self.weight)

    @staticmethod
    def backward(ctx: Any, saved: Any, *grads: Any) -> Mapping[str, Any]:
        (grad,), (x, weight) = grads, saved
        needs = [bool(n) for n in ctx.needs_input_grad[:2]]
        found: list[torch.Tensor | None] = [None, None]
        if any(needs):
            scaled = grad if ctx.scale == 1 else grad * ctx.scale
            plan = ctx.plan if needs[0] else None
            both = _gradients(grad=scaled, x=x, weight=weight, needs=needs, plan=plan, **ctx.call)
            found = [g if need else None for g, need in zip(both, needs, strict=True)]
        of_bias = _of_bias(grad, ctx.bias, **ctx.call) if ctx.needs_input_grad[2] else None
        return {"x": found[0], "weight": found[1], "bias": of_bias}


def _of_bias(grad: torch.Tensor, n: int, scatter_dim: int, lengths: Sequence[int], group_name: str) -> torch.Tensor:
    """Returns the gradient of a bias of n elements; outside of the rank's part it is zero."""
    total = grad.sum(list(range(grad.dim() - 1)))
    if scatter_dim < grad.dim() - 1:
        return total
    before = sum(lengths[: Members.named(group_name).rank])
    return torch.nn.functional.pad(total, (before, n - before - total.shape[0]))


@dataclass
class LinearReduceScatterBackward(Call):
    """Computes the needed gradients, of x and of the weight. `grad`: the gradient of the rank's part of the result."""

    name = "linear_reduce_scatter, backward"
    results = "(Tensor, Tensor)"

    grad: torch.Tensor
    x: torch.Tensor
    weight: torch.Tensor
    scatter_dim: int
    lengths: Sequence[int]
    group_name: str
    needs: Sequence[bool]
    plan: str | None

    def planless(self) -> bool:
        return self.scatter_dim == self.x.dim() - 1

    def told(self) -> Mapping[str, Any]:
        return {"lengths": tuple(self.lengths), "needs": tuple(self.needs)}

    def fused(self) -> bool:
        """Whether one program computes both gradients. Otherwise only the gather with the product for x has a plan."""
        return all(self.needs) and not self.planless()

    def asked(self) -> Asked:
        (N, K), M = self.weight.shape, math.prod(self.x.shape[:-1])
        return Asked("linear_reduce_scatter_backward", M, N, K) if self.fused() else Asked("all_gather_linear", M, K, N)

    def run(self, path: Plain) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight, dim, last = self.x, self.weight, self.scatter_dim, self.planless()
        of, none = times(self.lengths, x.shape, dim), x.new_empty(0)
        rows, mine = as_rows(x, dim), as_rows(self.grad, dim)
        if self.fused() and isinstance(path, Programs):
            of_x, of_weight = path.empty(rows, rows.shape), path.empty(rows, weight.shape)
            path.call(mine, weight.T, rows, dx=of_x, dweight=of_weight.T, parts={"M": of})
        elif not (self.needs[1] or last):
            (of_x,), of_weight = path.gather_linear(mine, [weight.T], [None], of)[1], none
        else:
            full = path.all_gather(mine.T if last else mine, of)()
            full = full.T if last else full
            of_x = path.linear(full, weight.T) if self.needs[0] else none
            of_weight = path.linear(full.T, rows.T) if self.needs[1] else none
        return of_rows(of_x, x.shape, dim).contiguous() if self.needs[0] else none, of_weight


_operator, _gradients = LinearOperator(LinearReduceScatter), Operator(LinearReduceScatterBackward)


@public
def linear_reduce_scatter(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    scatter_dim: int = 0,
    reduce_op: str = "sum",
    lengths: Sequence[int] | None = None,
    group: dist.ProcessGroup | str | None = None,
    plan: str | None = None,
) -> torch.Tensor:
    """Returns the rank's part, along `scatter_dim`, of the sum over the ranks of x @ weight.T, plus bias.

    `x`: (..., K), float32, float16 or bfloat16. `weight`: (N, K) as in nn.Linear, for the rank's part of the summed
    features. `bias`: (N,), added once, to the sum. `scatter_dim`: the dimension of the result (..., N) that is split,
    into parts of one length, or of `lengths`, the same list on every rank. `reduce_op`: "sum", or "avg" over the ranks.
    `group`: of torch.distributed, or its name; by default all processes. `plan`: a schedule of
    `tilelink.kernels.matmul_reduce_scatter` by name (default: the first); "ring", by `matmul_ring_reduce_scatter`;
    "torch", plain torch; or "auto": the fused plan with the shortest predicted time, if unfused takes at least 1.15
    times as long, else "torch". "auto" also chooses the plan of the backward.

    All ranks must make the same call, and they get the same bits each time. The backward gathers the result's gradient
    once, for the gradients of x and weight. The gradient of the bias covers the rank's part of the result. If the ranks
    share one bias, sum it over the ranks; the program `matmul_reduce_scatter_backward` calls this sum dbias.
    Raises ArgumentError, ShapeError, DtypeError, DeviceError and ScheduleError; if one rank does, the others raise
    RankFailedError. Raises RankMismatchError if calls differ.
    """
    given = {"scatter_dim": scatter_dim, "lengths": lengths, "reduce_op": reduce_op, "plan": plan}
    found: torch.Tensor = _operator.for_user(group, x, weight, bias, **given)
    return found
