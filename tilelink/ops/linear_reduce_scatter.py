"""linear_reduce_scatter: the second half of tensor parallelism with sequence parallelism (row-parallel layers)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from tilelink.ops.agreement import agree, agree_on_devices
from tilelink.ops.auto import settled
from tilelink.ops.autocast import cast_for, no_autocast
from tilelink.ops.checks import check_dim, check_reduce_op, check_weights, parts_of
from tilelink.ops.collectives import Members, name_of_group, size_of_group
from tilelink.ops.matrices import as_rows, of_rows, resized, times
from tilelink.ops.paths import Path, path_of
from tilelink.ops.registration import operator
from tilelink.plans.names import AUTO, TORCH, check_plan


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
    """The rank's part, along `scatter_dim`, of the sum over the ranks of x @ weight.T, plus bias.

    `x`: (..., K), float32, float16 or bfloat16. `weight`: (N, K) as that of nn.Linear, a rank's own part of the
    features that are summed over. `bias`: (N,), added once, to the sum. `scatter_dim`: of the result (..., N), in parts
    of one length, or of `lengths`, the same on every rank. `reduce_op`: "sum", or "avg" over the ranks. `group`: of
    torch.distributed, or its name; by default all processes. `plan`: the name of a schedule of
    `tilelink.kernels.matmul_reduce_scatter`, by default the first; "ring", by `matmul_ring_reduce_scatter`; "torch",
    plain torch; or "auto", the one that is predicted to be the fastest, also in the backward.

    All ranks call alike, and get the same bits each time. Gradients: that of the result is gathered once, for those of
    x and of the weight; that of the bias is of the rank's own part (sum it over the ranks where they share one bias:
    then it is what the program `matmul_reduce_scatter_backward` calls dbias).
    Raises ArgumentError, ShapeError, DtypeError, DeviceError, ScheduleError; on every rank, if one does (there as
    RankFailedError), and RankMismatchError.
    """
    name = name_of_group(group)
    agree_on_devices(name, x, [weight], [bias])
    cast = cast_for(x)
    x, weight, bias = cast(x), cast(weight), cast(bias)
    with no_autocast(x):
        if lengths is None:
            return _even(x, weight, bias, scatter_dim, reduce_op, name, plan)
        return _uneven(x, weight, bias, scatter_dim, list(lengths), reduce_op, name, plan)


# ---- the operators


def _checked(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scatter_dim: int, lengths: Sequence[int] | None,
    reduce_op: str, world: int, plan: str | None,
) -> tuple[int, list[int]]:  # fmt: skip
    """The dimension, and the lengths of the parts along it."""
    dim = check_dim(x, scatter_dim, "scatter_dim")
    check_weights(x, x.shape[-1], [weight], [bias])
    check_reduce_op(reduce_op)
    check_plan("linear_reduce_scatter", plan)
    last = dim == x.dim() - 1
    total, what = (weight.shape[0], "N") if last else (x.shape[dim], f"dimension {dim} of x")
    return dim, parts_of(total, world, lengths, what)


def _forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scatter_dim: int, lengths: Sequence[int] | None,
    reduce_op: str, group_name: str, plan: str | None,
) -> torch.Tensor:  # fmt: skip
    members = Members.named(group_name)

    def check() -> tuple[Path, int, list[int], str | None]:
        dim, parts = _checked(x, weight, bias, scatter_dim, lengths, reduce_op, members.world, plan)
        rows, (N, K) = x.numel() // max(1, x.shape[-1]), weight.shape
        M, N = (N, rows) if dim == x.dim() - 1 else (rows, N)  # the product is turned where its columns are scattered
        found = settled("linear_reduce_scatter", plan, members, x, M, N, K)
        return path_of(x.device, found), dim, parts, found

    def describe(checked: tuple[Path, int, list[int], str | None]) -> dict[str, Any]:
        path, dim, parts, by = checked
        return {
            "operator": "linear_reduce_scatter", "shapes": {"x": tuple(x.shape), "weight": tuple(weight.shape)},
            "bias": bias is not None, "dtype": x.dtype, "scatter_dim": dim, "lengths": parts, "reduce_op": reduce_op,
            "plan": by, "computed by": path.__name__,
        }  # fmt: skip

    path, dim, parts, by = agree(members, x.device, check, describe)
    last, mine, before = dim == x.dim() - 1, parts[members.rank], sum(parts[: members.rank])
    rows, mean = as_rows(x, dim), reduce_op == "avg"
    if last:  # the product is turned, and a bias is one of its rows then: added afterwards, so that all is rounded once
        dtype = x.dtype if bias is None else torch.float32
        out = path.linear_scatter(members, weight, rows, None, parts, by, dtype, mean)().T
        out = out if bias is None else (out + bias[before : before + mine].float()).to(x.dtype)
    else:
        of = times(parts, x.shape, dim)
        out = path.linear_scatter(members, rows, weight, bias, of, by, x.dtype, mean)()
    return of_rows(out, _result(x, weight, dim, mine), dim).contiguous()


def _fake(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scatter_dim: int, lengths: Sequence[int] | None,
    reduce_op: str, group_name: str, plan: str | None,
) -> torch.Tensor:  # fmt: skip
    members = Members.named(group_name)
    dim, parts = _checked(x, weight, bias, scatter_dim, lengths, reduce_op, members.world, plan)
    return x.new_empty(_result(x, weight, dim, parts[members.rank]))


def _result(x: torch.Tensor, weight: torch.Tensor, dim: int, mine: int) -> list[int]:
    """The shape of a rank's part."""
    return resized([*x.shape[:-1], weight.shape[0]], dim, mine)


def _forward_even(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dim: int, *rest: Any) -> Any:
    return _forward(x, weight, bias, dim, None, *rest)


def _fake_even(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dim: int, *rest: Any) -> Any:
    return _fake(x, weight, bias, dim, None, *rest)


# ---- gradients


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, bias, scatter_dim, *lengths, reduce_op, group_name, plan = inputs
    world = size_of_group(group_name)
    ctx.dim = scatter_dim % x.dim()
    total = weight.shape[0] if ctx.dim == x.dim() - 1 else x.shape[ctx.dim]
    ctx.lengths = list(lengths[0]) if lengths else [total // world] * world
    ctx.scale = 1 / world if reduce_op == "avg" else 1
    ctx.group_name, ctx.bias, ctx.arguments = group_name, None if bias is None else bias.shape[0], len(inputs)
    ctx.plan = plan if plan == AUTO else None
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    needs = [bool(n) for n in ctx.needs_input_grad[:2]]
    scaled = grad if ctx.scale == 1 else grad * ctx.scale
    found: list[torch.Tensor | None] = [None, None]
    if any(needs):
        grads = _gradients(scaled, x, weight, ctx.dim, ctx.lengths, ctx.group_name, needs, ctx.plan)
        found = [g if need else None for g, need in zip(grads, needs, strict=True)]
    return (
        *found,
        _of_bias(grad, ctx.bias, ctx.dim, ctx.lengths, ctx.group_name) if ctx.needs_input_grad[2] else None,
        *[None] * (ctx.arguments - 3),
    )


def _of_bias(grad: torch.Tensor, n: int, dim: int, lengths: Sequence[int], group_name: str) -> torch.Tensor:
    """The gradient of a bias of n elements, of which a rank uses a part where the last dimension is scattered."""
    total = grad.sum(list(range(grad.dim() - 1)))
    if dim < grad.dim() - 1:
        return total
    before = sum(lengths[: Members.named(group_name).rank])
    return torch.nn.functional.pad(total, (before, n - before - total.shape[0]))


def _gradients_now(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, dim: int, lengths: Sequence[int], group_name: str,
    needs: Sequence[bool], plan: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients of x and of the weight, those that are needed, from that of the rank's part of the result."""
    members = Members.named(group_name)
    last, of = dim == x.dim() - 1, times(lengths, x.shape, dim)
    fused = all(needs) and not last

    def check() -> tuple[Path, str | None]:
        """One program, or the gather of the gradient with the product for x."""
        N, K = weight.shape
        asked = ("linear_reduce_scatter_backward", N, K) if fused else ("all_gather_linear", K, N)
        wanted = TORCH if last and plan == AUTO else plan if needs[0] else None
        found = settled(asked[0], wanted, members, x, sum(of), *asked[1:])
        return path_of(x.device, found), found

    path, by = agree(members, x.device, check, lambda checked: {
        "operator": "linear_reduce_scatter, backward", "lengths": tuple(lengths), "needs": tuple(needs),
        "dtype": x.dtype, "plan": checked[1], "computed by": checked[0].__name__,
    })  # fmt: skip
    none, rows, mine = x.new_empty(0), as_rows(x, dim), as_rows(grad, dim)
    if fused:
        grad_x, grad_weight = path.linear_scatter_gradients(members, mine, weight, rows, of, by)
        return of_rows(grad_x, x.shape, dim).contiguous(), grad_weight
    if needs[0] and not last:
        _, (grad_x,) = path.gather_linear(members, mine, [weight.T], [None], of, by, False)
        return of_rows(grad_x, x.shape, dim).contiguous(), none
    full = path.all_gather(members, mine.T if last else mine, of)()
    full = full.T if last else full
    grad_x = of_rows(path.linear(full, weight.T), x.shape, dim).contiguous() if needs[0] else none
    return grad_x, path.linear(full.T, rows.T) if needs[1] else none


def _gradients_fake(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, dim: int, lengths: Sequence[int], group_name: str,
    needs: Sequence[bool], plan: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    return x.new_empty(x.shape if needs[0] else 0), x.new_empty(weight.shape if needs[1] else 0)


_gradients = operator(
    "linear_reduce_scatter_backward(Tensor grad, Tensor x, Tensor weight, SymInt scatter_dim, SymInt[] lengths, "
    "str group_name, bool[] needs, str? plan) -> (Tensor, Tensor)",
    _gradients_now,
    _gradients_fake,
)
_even = operator(
    "linear_reduce_scatter(Tensor x, Tensor weight, Tensor? bias, SymInt scatter_dim, str reduce_op, str group_name, "
    "str? plan) -> Tensor",
    _forward_even,
    _fake_even,
    setup=_setup,
    backward=_backward,
)
_uneven = operator(
    "linear_reduce_scatter_uneven(Tensor x, Tensor weight, Tensor? bias, SymInt scatter_dim, SymInt[] lengths, "
    "str reduce_op, str group_name, str? plan) -> Tensor",
    _forward,
    _fake,
    setup=_setup,
    backward=_backward,
)
