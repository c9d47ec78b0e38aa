"""What operators compute, by our programs: on CUDA devices, or on a CPU in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tilelink.frontend.program import Program
from tilelink.kernels.all_gather import all_gather as all_gather_program
from tilelink.ops import plain
from tilelink.ops.collectives import Later, Members
from tilelink.ops.lanes import lane
from tilelink.ops.mean import mean_over
from tilelink.plans.names import planned

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


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias on this rank, by torch: there is nothing to overlap."""
    return plain.linear(x, weight, bias)


def all_gather(members: Members, rows: torch.Tensor, lengths: Sequence[int]) -> Later:
    """As `plain.all_gather`."""
    shape = sum(lengths), rows.shape[1]
    if not all(shape):
        return plain.all_gather(members, rows, lengths)
    full = _empty(members, rows, shape)
    _run(all_gather_program, members, rows, out=full, parts={"M": lengths})
    return lambda: full


def gather_linear(
    members: Members,
    rows: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    lengths: Sequence[int],
    plan: str | None,
    keep: bool,
) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """As `plain.gather_linear`, on one gather."""
    M, K = sum(lengths), rows.shape[1]
    if not M * K * min(len(w) for w in weights):
        return plain.gather_linear(members, rows, weights, biases, lengths, plan, keep)
    outs = [_empty(members, rows, (M, len(w))) for w in weights]
    bias = list(biases) if any(b is not None for b in biases) else None
    full = _empty(members, rows, (M, K)) if keep else None
    (program, schedule), turned = planned("all_gather_linear", plan), [w.T for w in weights]
    of = {"M": lengths}
    _run(program, members, rows, turned, out=outs, bias=bias, gathered=full, schedule=schedule, parts=of)
    return full, outs


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
    """As `plain.linear_scatter`; partial sums travel in `dtype`, and in float32 around a ring."""
    if not x.numel() * len(weight):
        return plain.linear_scatter(members, x, weight, bias, lengths, plan, dtype, mean)
    out = _empty(members, x, (lengths[members.rank], len(weight)), dtype)
    program, schedule = planned("linear_reduce_scatter", plan)
    ending, of = _ending(members, bias, mean), {"M": lengths}
    _run(program, members, x, weight.T, out=out, schedule=schedule, parts=of, **ending)
    return lambda: out


def gather_linear_gradients(
    members: Members,
    grads: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    rows: torch.Tensor,
    lengths: Sequence[int],
    plan: str | None,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """As `plain.gather_linear_gradients`, in one kernel."""
    if not sum(lengths) * rows.shape[1] * min(len(w) for w in weights):
        return plain.gather_linear_gradients(members, grads, weights, rows, lengths, plan)
    dx = _empty(members, rows, (len(rows), rows.shape[1]))
    dweights = [_empty(members, rows, (len(w), w.shape[1])) for w in weights]
    turned, wanted, of = [w.T for w in weights], [w.T for w in dweights], {"M": lengths}
    program, schedule = planned("all_gather_linear_backward", plan)
    _run(program, members, list(grads), turned, rows, dx=dx, dweight=wanted, schedule=schedule, parts=of)
    return dx, dweights


def linear_scatter_gradients(
    members: Members,
    grad: torch.Tensor,
    weight: torch.Tensor,
    x: torch.Tensor,
    lengths: Sequence[int],
    plan: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `plain.linear_scatter_gradients`, in one kernel."""
    if not x.numel() * len(weight):
        return plain.linear_scatter_gradients(members, grad, weight, x, lengths, plan)
    dx, dweight = _empty(members, x, (len(x), x.shape[1])), _empty(members, x, (len(weight), x.shape[1]))
    (program, schedule), of = planned("linear_reduce_scatter_backward", plan), {"M": lengths}
    _run(program, members, grad, weight.T, x, dx=dx, dweight=dweight.T, schedule=schedule, parts=of)
    return dx, dweight


def linear_all_reduce(
    members: Members,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    plan: str | None,
    mean: bool,
) -> torch.Tensor:
    """As `plain.linear_all_reduce`; partial sums travel in the dtype of x."""
    if not x.numel() * len(weight):
        return plain.linear_all_reduce(members, x, weight, bias, plan, mean)
    out = _empty(members, x, (len(x), len(weight)))
    program, schedule = planned("linear_all_reduce", plan)
    _run(program, members, x, weight.T, out=out, schedule=schedule, **_ending(members, bias, mean))
    return out


def _ending(members: Members, bias: torch.Tensor | None, mean: bool) -> dict[str, Any]:
    """What a program does to a sum before it is rounded. It adds the bias first, so that of a mean is as many times
    as much."""
    if not mean:
        return {"bias": bias}
    return {"bias": None if bias is None else bias.float() * members.world, "epilogue": mean_over(members.world)}


def _empty(
    members: Members, like: torch.Tensor, shape: tuple[int, int], dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Memory for a result, of the dtype of a tensor by default."""
    return lane(members.group, device=like.device.type).allocate(shape, dtype or like.dtype)


def _run(program: Program, members: Members, *tensors: Any, **options: Any) -> None:
    """Calls a program, or prepares the call."""
    first = tensors[0][0] if isinstance(tensors[0], list) else tensors[0]
    do = program.prepare if _preparing else program
    do(*tensors, group=lane(members.group, device=first.device.type), **options)
