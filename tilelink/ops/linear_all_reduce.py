"""linear_all_reduce: the second half of tensor parallelism where every rank has all tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tilelink.ops.agreement import agree, agree_on_devices
from tilelink.ops.auto import settled
from tilelink.ops.autocast import cast_for, no_autocast
from tilelink.ops.checks import check_dim, check_reduce_op, check_weights
from tilelink.ops.collectives import Members, name_of_group, size_of_group
from tilelink.ops.matrices import as_rows
from tilelink.ops.paths import Path, path_of
from tilelink.ops.registration import operator
from tilelink.plans.names import check_plan


def linear_all_reduce(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    reduce_op: str = "sum",
    group: dist.ProcessGroup | str | None = None,
    plan: str | None = None,
) -> torch.Tensor:
    """The sum over the ranks of x @ weight.T, plus bias, on every rank, with the same bits.

    `x`: (..., K), float32, float16 or bfloat16. `weight`: (N, K) as that of nn.Linear, a rank's own part of the
    features that are summed over. `bias`: (N,), added once, to the sum; the same on every rank. `reduce_op`: "sum", or
    "avg" over the ranks. `group`: of torch.distributed, or its name; by default all processes. `plan`: the name of a
    schedule of `tilelink.kernels.matmul_all_reduce`, by default the first; "one_shot", "one_shot:push" or
    "one_shot:multicast", by `matmul_one_shot_all_reduce`; "torch", plain torch; or "auto", the one that is predicted to
    be the fastest.

    All ranks call alike. The result is one tensor, of which every rank has a copy, and so is its gradient: the backward
    sends nothing, as in Megatron and DTensor. Raises ArgumentError, ShapeError, DtypeError, DeviceError, ScheduleError;
    on every rank, if one does (there as RankFailedError), and RankMismatchError.
    """
    name = name_of_group(group)
    agree_on_devices(name, x, [weight], [bias])
    cast = cast_for(x)
    x, weight, bias = cast(x), cast(weight), cast(bias)
    with no_autocast(x):
        return _operator(x, weight, bias, reduce_op, name, plan)


def _check(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reduce_op: str, plan: str | None
) -> None:
    check_dim(x, 0, "dimension")
    check_weights(x, x.shape[-1], [weight], [bias])
    check_reduce_op(reduce_op)
    check_plan("linear_all_reduce", plan)


def _forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reduce_op: str, group_name: str, plan: str | None
) -> torch.Tensor:
    members = Members.named(group_name)

    def check() -> tuple[Path, str | None]:
        _check(x, weight, bias, reduce_op, plan)
        M, (N, K) = x.numel() // max(1, x.shape[-1]), weight.shape
        found = settled("linear_all_reduce", plan, members, x, M, N, K)
        return path_of(x.device, found), found

    path, by = agree(members, x.device, check, lambda checked: {
        "operator": "linear_all_reduce", "shapes": {"x": tuple(x.shape), "weight": tuple(weight.shape)},
        "bias": bias is not None, "dtype": x.dtype, "reduce_op": reduce_op, "plan": checked[1],
        "computed by": checked[0].__name__,
    })  # fmt: skip
    rows = as_rows(x, x.dim() - 1)
    out = path.linear_all_reduce(members, rows, weight, bias, by, reduce_op == "avg")
    return out.reshape(*x.shape[:-1], weight.shape[0])


def _fake(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reduce_op: str, group_name: str, plan: str | None
) -> torch.Tensor:
    _check(x, weight, bias, reduce_op, plan)
    return x.new_empty([*x.shape[:-1], weight.shape[0]])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, _, reduce_op, group_name, _ = inputs
    ctx.scale = 1 / size_of_group(group_name) if reduce_op == "avg" else 1
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    need_x, need_weight, need_bias, *_ = ctx.needs_input_grad
    scaled, over_all = grad if ctx.scale == 1 else grad * ctx.scale, list(range(grad.dim() - 1))
    return (
        scaled @ weight if need_x else None,
        torch.tensordot(scaled, x, dims=(over_all, over_all)) if need_weight else None,
        grad.sum(over_all) if need_bias else None,
        None,
        None,
        None,
    )


_operator = operator(
    "linear_all_reduce(Tensor x, Tensor weight, Tensor? bias, str reduce_op, str group_name, str? plan) -> Tensor",
    _forward,
    _fake,
    setup=_setup,
    backward=_backward,
)
