"""linear_all_reduce: the second half of tensor parallelism if every rank has all tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tilelink.errors import public
from tilelink.ops.checks import check_dim, check_reduce_op, check_weights
from tilelink.ops.linear_operator import LinearOperator
from tilelink.ops.matrices import as_rows
from tilelink.ops.operator import Asked, Call
from tilelink.ops.plain import Plain
from tilelink.ops.programs import Programs
from tilelink.plans.names import check_plan


@dataclass
class LinearAllReduce(Call):
    """A call of `linear_all_reduce`. Every rank has a copy of the result and of the result's gradient, so the backward
    is plain torch on this rank alone. A second gradient would not be such a copy, so there is none."""

    name = "linear_all_reduce"
    results = "Tensor"

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    reduce_op: str
    group_name: str
    plan: str | None

    def check(self) -> None:
        check_dim(self.x, 0, "dimension")
        check_weights(self.x, self.x.shape[-1], [self.weight], [self.bias])
        check_reduce_op(self.reduce_op)
        check_plan(self.name, self.plan)

    def told(self) -> Mapping[str, Any]:
        shapes = {"x": tuple(self.x.shape), "weight": tuple(self.weight.shape)}
        return {"shapes": shapes, "bias": self.bias is not None, "reduce_op": self.reduce_op}

    def asked(self) -> Asked:
        N, K = self.weight.shape
        return Asked(self.name, math.prod(self.x.shape[:-1]), N, K)

    def run(self, path: Plain) -> torch.Tensor:
        x, weight, mean = as_rows(self.x, self.x.dim() - 1), self.weight, self.reduce_op == "avg"
        if isinstance(path, Programs):
            out = path.empty(x, (len(x), len(weight)))
            path.call(x, weight.T, out=out, **path.ending(self.bias, mean))
        else:
            total = path.members.all_reduce(path.partial(x, weight, x.dtype))
            out = path.finished(total, self.bias, x.dtype, mean)
        return out.reshape(*self.x.shape[:-1], weight.shape[0])

    def setup(self, ctx: Any, output: torch.Tensor) -> None:
        ctx.scale = 1 / self.members.world if self.reduce_op == "avg" else 1
        ctx.save_for_backward(self.x, self.weight)

    @staticmethod
    def backward(ctx: Any, saved: Any, *grads: Any) -> Mapping[str, Any]:
        (grad,), (x, weight) = grads, saved
        need_x, need_weight, need_bias, *_ = ctx.needs_input_grad
        scaled, over_all = grad if ctx.scale == 1 else grad * ctx.scale, list(range(grad.dim() - 1))
        return {
            "x": scaled @ weight if need_x else None,
            "weight": torch.tensordot(scaled, x, dims=(over_all, over_all)) if need_weight else None,
            "bias": grad.sum(over_all) if need_bias else None,
        }


_operator = LinearOperator(LinearAllReduce)


@public
def linear_all_reduce(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    reduce_op: str = "sum",
    group: dist.ProcessGroup | str | None = None,
    plan: str | None = None,
) -> torch.Tensor:
    """Returns the sum over the ranks of x @ weight.T, plus bias: on every rank, with the same bits.

    `x`: (..., K), float32, float16 or bfloat16. `weight`: (N, K) as in nn.Linear, for the rank's part of the summed
    features. `bias`: (N,), added once, to the sum; the same on every rank. `reduce_op`: "sum", or "avg" over the ranks.
    `group`: of torch.distributed, or its name; by default all processes. `plan`: a schedule of
    `tilelink.kernels.matmul_all_reduce` by name (default: the first); "one_shot", "one_shot:push" or
    "one_shot:multicast", by `matmul_one_shot_all_reduce`; "fabric", by `matmul_fabric_all_reduce`, where the switch
    adds in an order that is not documented; "torch", plain torch; or "auto": the fused plan with the shortest predicted
    time, if unfused takes at least 1.15 times as long, else "torch".

    All ranks must make the same call. Every rank has a copy of the result and of its gradient, so the backward sends
    nothing, as in Megatron and DTensor. Raises ArgumentError, ShapeError, DtypeError, DeviceError and ScheduleError; if
    one rank does, the others raise RankFailedError. Raises RankMismatchError if calls differ.
    """
    found: torch.Tensor = _operator.for_user(group, x, weight, bias, reduce_op=reduce_op, plan=plan)
    return found
