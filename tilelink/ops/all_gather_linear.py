"""all_gather_linear: the first half of tensor parallelism with sequence parallelism (column-parallel layers)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from tilelink.errors import ArgumentError, ScheduleError, ShapeError
from tilelink.ops import collectives
from tilelink.ops.agreement import agree, agree_on_devices
from tilelink.ops.auto import settled
from tilelink.ops.autocast import cast_for, no_autocast
from tilelink.ops.checks import check_dim, check_lengths, check_weights
from tilelink.ops.collectives import Later, Members, name_of_group, size_of_group
from tilelink.ops.matrices import as_rows, empty_rows, of_rows, resized, times
from tilelink.ops.paths import Path, path_of
from tilelink.ops.plain import side_by_side
from tilelink.ops.registration import operator
from tilelink.plans.names import AUTO, TORCH, check_plan

Tensors = Sequence[torch.Tensor]
Maybe = Sequence[torch.Tensor | None]


def all_gather_linear(
    x: torch.Tensor,
    weights: torch.Tensor | Tensors,
    biases: torch.Tensor | Maybe | None = None,
    *,
    gather_dim: int = 0,
    lengths: Sequence[int] | None = None,
    group: dist.ProcessGroup | str | None = None,
    plan: str | None = None,
    return_gathered: bool = False,
) -> Any:
    """all_gather(x) @ weight.T + bias on every rank, for one weight or several that share the gather (Q, K and V; gate
    and up). A result for a weight, a list for a list; with `return_gathered`, a pair of the gathered x and that.

    `x`: (..., K), float32, float16 or bfloat16; its shards of all ranks are put together along `gather_dim`, in the
    order of ranks: a dimension of tokens, or the last one. `weights`: (N, K) as those of nn.Linear, `biases`: (N,) or
    None. `lengths`: how long the shards of the ranks are along `gather_dim`, the same on every rank; without it all
    have one length. `group`: of torch.distributed, or its name; by default all processes. `plan`: the name of a
    schedule of `tilelink.kernels.all_gather_matmul`, by default the first; "torch", plain torch; or "auto", the one
    that is predicted to be the fastest, also in the backward.

    All ranks call alike. Gradients: that of x comes by reduce-scatter, that of a weight is the rank's own. For it x is
    gathered once more in the backward, or kept with `return_gathered`. Results lie in memory with `gather_dim` first.
    Raises ArgumentError, ShapeError, DtypeError, DeviceError, ScheduleError; on every rank, if one does (there as
    RankFailedError), and RankMismatchError.
    """
    one = isinstance(weights, torch.Tensor)
    several = [weights] if isinstance(weights, torch.Tensor) else list(weights)
    added: list[torch.Tensor | None]
    if biases is None:
        added = [None] * len(several)
    else:
        added = [biases] if isinstance(biases, torch.Tensor) else list(biases)
        if len(added) == len(several) and any(b is not None for b in added):  # of a mixed list torch has no gradients
            added = [w.new_zeros(w.shape[0]) if b is None else b for w, b in zip(several, added, strict=True)]
    name = name_of_group(group)
    agree_on_devices(name, x, several, added)
    cast = cast_for(x)
    x, several, added = cast(x), [cast(w) for w in several], [cast(b) for b in added]
    with no_autocast(x):
        if lengths is None:
            full, outs = _even(x, several, added, gather_dim, name, plan, return_gathered)
        else:
            full, outs = _uneven(x, several, added, gather_dim, list(lengths), name, plan, return_gathered)
    found = outs[0] if one else outs
    return (full, found) if return_gathered else found


# ---- the operators


def _checked(
    x: torch.Tensor, weights: Tensors, biases: Maybe, gather_dim: int, lengths: Sequence[int] | None, world: int,
    plan: str | None,
) -> tuple[int, list[int]]:  # fmt: skip
    """The dimension, and the lengths of the shards along it."""
    dim = check_dim(x, gather_dim, "gather_dim")
    parts = [x.shape[dim]] * world if lengths is None else list(lengths)
    check_lengths(parts, world)
    last = dim == x.dim() - 1
    check_weights(x, sum(parts) if last else x.shape[-1], weights, biases)
    check_plan("all_gather_linear", plan)
    if last and plan not in (None, TORCH, AUTO):
        raise ScheduleError(
            f"plan is {plan!r}: what is gathered along the dimension that is summed over has no plan but {TORCH}"
        )
    return dim, parts


def _forward(
    x: torch.Tensor, weights: Tensors, biases: Maybe, gather_dim: int, lengths: Sequence[int] | None, group_name: str,
    plan: str | None, keep: bool,
) -> tuple[torch.Tensor, list[torch.Tensor]]:  # fmt: skip
    members = Members.named(group_name)

    def check() -> tuple[Path, int, list[int], str | None]:
        dim, parts = _checked(x, weights, biases, gather_dim, lengths, members.world, plan)
        if parts[members.rank] != x.shape[dim]:
            raise ShapeError(f"lengths are {tuple(parts)}; x has shape {tuple(x.shape)} on rank {members.rank}")
        M, N, last = sum(times(parts, x.shape, dim)), [len(w) for w in weights], dim == x.dim() - 1
        wanted = TORCH if last and plan == AUTO else plan
        found = settled("all_gather_linear", wanted, members, x, M, N, x.shape[-1])
        return path_of(x.device, found), dim, parts, found

    def describe(checked: tuple[Path, int, list[int], str | None]) -> dict[str, Any]:
        path, dim, parts, by = checked
        shapes = {"x": tuple(resized(x.shape, dim, -1)), "lengths": tuple(parts)}
        shapes |= {f"weight {i}": tuple(w.shape) for i, w in enumerate(weights)}
        return {
            "operator": "all_gather_linear", "shapes": shapes,
            "biases": [b is not None for b in biases], "dtype": x.dtype, "gather_dim": dim, "plan": by,
            "return_gathered": keep, "computed by": path.__name__,
        }  # fmt: skip

    path, dim, parts, by = agree(members, x.device, check, describe)
    rows, of = as_rows(x, dim), times(parts, x.shape, dim)
    full: torch.Tensor | None
    if dim == x.dim() - 1:
        full = path.all_gather(members, rows.T, of)().T.contiguous()
        outs = [path.linear(full, w, b) for w, b in zip(weights, biases, strict=True)]
    else:
        full, outs = path.gather_linear(members, rows, weights, biases, of, by, keep)
    shape = resized(x.shape, dim, sum(parts))
    gathered = of_rows(full, shape, dim) if keep and full is not None else x.new_empty(0)
    return gathered, [of_rows(out, [*shape[:-1], out.shape[-1]], dim) for out in outs]


def _fake(
    x: torch.Tensor, weights: Tensors, biases: Maybe, gather_dim: int, lengths: Sequence[int] | None, group_name: str,
    plan: str | None, keep: bool,
) -> tuple[torch.Tensor, list[torch.Tensor]]:  # fmt: skip
    dim, parts = _checked(x, weights, biases, gather_dim, lengths, size_of_group(group_name), plan)
    shape = resized(x.shape, dim, sum(parts))
    gathered = empty_rows(x, shape, dim) if keep else x.new_empty(0)
    return gathered, [empty_rows(x, [*shape[:-1], w.shape[0]], dim) for w in weights]


def _forward_even(x: torch.Tensor, weights: Tensors, biases: Maybe, gather_dim: int, *rest: Any) -> Any:
    return _forward(x, weights, biases, gather_dim, None, *rest)


def _fake_even(x: torch.Tensor, weights: Tensors, biases: Maybe, gather_dim: int, *rest: Any) -> Any:
    return _fake(x, weights, biases, gather_dim, None, *rest)


# ---- gradients


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, list[torch.Tensor]]) -> None:
    x, weights, biases, gather_dim, *lengths, group_name, plan, keep = inputs
    world = size_of_group(group_name)
    ctx.dim = gather_dim % x.dim()
    ctx.lengths = list(lengths[0]) if lengths else [x.shape[ctx.dim]] * world
    ctx.group_name, ctx.kept, ctx.arguments = group_name, keep, len(inputs)
    ctx.biases = all(b is not None for b in biases)
    if not ctx.biases and any(b is not None and b.requires_grad for b in biases):
        raise ArgumentError("biases of which some are None get no gradients from torch: give zeros in their place")
    ctx.plan = plan if plan == AUTO else None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[0] if keep else x, *weights)


def _backward(ctx: Any, grad_gathered: torch.Tensor | None, grads: Maybe | None) -> tuple[Any, ...]:
    x, *weights = ctx.saved_tensors
    grads = [None] * len(weights) if grads is None else list(grads)
    grad_gathered = grad_gathered if ctx.kept else None
    need_x, need_weights, *_ = ctx.needs_input_grad
    needs = [bool(need_x) and any(g is not None for g in (grad_gathered, *grads))]
    needs += [bool(n) and g is not None for n, g in zip(need_weights, grads, strict=True)]
    found: list[torch.Tensor | None] = [None] * len(needs)
    if any(needs):
        grad_x, grad_weights = _gradients(
            grads, grad_gathered, x, weights, ctx.dim, ctx.lengths, ctx.group_name, ctx.kept, needs, ctx.plan
        )
        found = [g if need else None for g, need in zip([grad_x, *grad_weights], needs, strict=True)]
    return (
        found[0],
        found[1:],
        [None if g is None else g.sum(list(range(g.dim() - 1))) for g in grads] if ctx.biases else None,
        *[None] * (ctx.arguments - 3),
    )


def _gradients_now(
    grads: Maybe, grad_gathered: torch.Tensor | None, x: torch.Tensor, weights: Tensors, dim: int,
    lengths: Sequence[int], group_name: str, kept: bool, needs: Sequence[bool], plan: str | None,
) -> tuple[torch.Tensor, list[torch.Tensor]]:  # fmt: skip
    """Gradients of the shard of x and of the weights, those that are needed, from those of the results. `x`: gathered
    where it was `kept`, else it is gathered while the gradient of x is multiplied, and weights while that is sent."""
    members = Members.named(group_name)
    last, of = dim == x.dim() - 1, times(lengths, x.shape, dim)
    fused = all(needs) and not (last or kept or grad_gathered is not None)

    def check() -> tuple[Path, str | None]:
        """One program, or the scatter of the gradient of x among other things."""
        N, K = [len(w) for w in weights], weights[0].shape[1]
        shared = sum(n for n, g in zip(N, grads, strict=True) if g is not None)
        asked = ("all_gather_linear_backward", N, K) if fused else ("linear_reduce_scatter", K, shared)
        wanted = TORCH if last and plan == AUTO else plan if needs[0] else None
        found = settled(asked[0], wanted, members, x, sum(of), *asked[1:])
        return path_of(x.device, found), found

    path, by = agree(members, x.device, check, lambda checked: {
        "operator": "all_gather_linear, backward", "lengths": tuple(lengths), "needs": tuple(needs), "dtype": x.dtype,
        "gradients of": [g is not None for g in grads], "of gathered": grad_gathered is not None, "plan": checked[1],
        "computed by": checked[0].__name__,
    })  # fmt: skip
    shape = resized(x.shape, dim, lengths[members.rank])
    mine, given = as_rows(x, dim), {i: as_rows(g, dim) for i, g in enumerate(grads) if g is not None}
    if fused:
        rows, grad_weights = path.gather_linear_gradients(members, list(given.values()), weights, mine, of, by)
        return of_rows(rows, shape, dim).contiguous(), grad_weights
    columns = _columns(path, members, mine, kept, last, of) if any(needs[1:]) else None
    of_gathered = None if grad_gathered is None else as_rows(grad_gathered, dim)
    sending = _input_gradient(path, members, given, of_gathered, weights, last, of, x.dtype, by) if needs[0] else None
    grad_x, grad_weights = x.new_empty(0), [x.new_empty(0) for _ in weights]
    if columns is not None:
        full = columns()
        for i, g in given.items():
            grad_weights[i] = path.linear(g.T, full) if needs[1 + i] else grad_weights[i]
    if sending is not None:
        rows = sending().to(x.dtype)
        grad_x = of_rows(rows.T if last else rows, shape, dim).contiguous()
    return grad_x, grad_weights


def _columns(path: Path, members: Members, mine: torch.Tensor, kept: bool, last: bool, of: Sequence[int]) -> Later:
    """The transpose of the gathered x, under way where it was not kept."""
    if kept:
        return lambda: mine.T
    if last:
        return path.all_gather(members, mine.T, of)
    rows = path.all_gather(members, mine, of)
    return lambda: rows().T


def _input_gradient(
    path: Path, members: Members, given: dict[int, torch.Tensor], of_gathered: torch.Tensor | None, weights: Tensors,
    last: bool, of: Sequence[int], dtype: torch.dtype, plan: str | None,
) -> Later:  # fmt: skip
    """The gradient of this rank's rows of x (of its columns, turned, where the last dimension was gathered), under way:
    from the gradients of results, `given` by weight, and from that of the gathered x."""
    sums = []
    if given:
        grad, weight = side_by_side(list(given.values()), [weights[i] for i in given])
        a, b = (weight.T, grad) if last else (grad, weight.T)
        of_sum = dtype if of_gathered is None else torch.float32
        sums.append(path.linear_scatter(members, a, b, None, of, plan, of_sum))
    if of_gathered is not None:
        rows = of_gathered.T if last else of_gathered
        sums.append(collectives.reduce_scatter(members, rows.float(), of))
    return sums[0] if len(sums) == 1 else lambda: sums[0]() + sums[1]()


def _gradients_fake(
    grads: Maybe, grad_gathered: torch.Tensor | None, x: torch.Tensor, weights: Tensors, dim: int,
    lengths: Sequence[int], group_name: str, kept: bool, needs: Sequence[bool], plan: str | None,
) -> tuple[torch.Tensor, list[torch.Tensor]]:  # fmt: skip
    shape = resized(x.shape, dim, lengths[Members.named(group_name).rank])
    of_weights = zip(weights, needs[1:], strict=True)
    return x.new_empty(shape if needs[0] else 0), [w.new_empty(w.shape if needed else 0) for w, needed in of_weights]


_gradients = operator(
    "all_gather_linear_backward(Tensor?[] grads, Tensor? grad_gathered, Tensor x, Tensor[] weights, SymInt gather_dim, "
    "SymInt[] lengths, str group_name, bool kept, bool[] needs, str? plan) -> (Tensor, Tensor[])",
    _gradients_now,
    _gradients_fake,
)
_even = operator(
    "all_gather_linear(Tensor x, Tensor[] weights, Tensor?[] biases, SymInt gather_dim, str group_name, str? plan, "
    "bool return_gathered) -> (Tensor, Tensor[])",
    _forward_even,
    _fake_even,
    setup=_setup,
    backward=_backward,
)
_uneven = operator(
    "all_gather_linear_uneven(Tensor x, Tensor[] weights, Tensor?[] biases, SymInt gather_dim, SymInt[] lengths, "
    "str group_name, str? plan, bool return_gathered) -> (Tensor, Tensor[])",
    _forward,
    _fake,
    setup=_setup,
    backward=_backward,
)
