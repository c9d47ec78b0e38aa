"""What operators compute, by our programs: on CUDA devices, or on a CPU in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tilelink.frontend.program import Program
from tilelink.kernels.all_gather import all_gather as all_gather_program
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul_all_reduce import matmul_all_reduce
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.ops import plain
from tilelink.ops.collectives import Later, Members
from tilelink.ops.lanes import lane

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
    return torch.nn.functional.linear(x, weight, bias) if x.is_cuda else plain.linear(x, weight, bias)


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
    """As `plain.gather_linear`. What is kept is gathered a second time."""
    M, K = sum(lengths), rows.shape[1]
    if not M * K * min(len(w) for w in weights):
        return plain.gather_linear(members, rows, weights, biases, lengths, plan, keep)
    outs = [_empty(members, rows, (M, len(w))) for w in weights]
    bias = list(biases) if any(b is not None for b in biases) else None
    of, turned = {"M": lengths}, [w.T for w in weights]
    _run(all_gather_matmul, members, rows, turned, out=outs, bias=bias, schedule=plan, parts=of)
    return all_gather(members, rows, lengths)() if keep else None, outs


def linear_scatter(
    members: Members,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    lengths: Sequence[int],
    plan: str | None,
    dtype: torch.dtype,
) -> Later:
    """As `plain.linear_scatter`; partial sums travel in `dtype`."""
    if not x.numel() * len(weight):
        return plain.linear_scatter(members, x, weight, bias, lengths, plan, dtype)
    out = _empty(members, x, (lengths[members.rank], len(weight)), dtype)
    _run(matmul_reduce_scatter, members, x, weight.T, out=out, bias=bias, schedule=plan, parts={"M": lengths})
    return lambda: out


def linear_all_reduce(
    members: Members,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    plan: str | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """As `plain.linear_all_reduce`; partial sums travel in `dtype`."""
    if not x.numel() * len(weight):
        return plain.linear_all_reduce(members, x, weight, bias, plan, dtype)
    out = _empty(members, x, (len(x), len(weight)), dtype)
    _run(matmul_all_reduce, members, x, weight.T, out=out, bias=bias, schedule=plan)
    return out


def _empty(
    members: Members, like: torch.Tensor, shape: tuple[int, int], dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Memory for a result, of the dtype of a tensor by default."""
    return lane(members.group, device=like.device.type).allocate(shape, dtype or like.dtype)


def _run(program: Program, members: Members, x: torch.Tensor, *tensors: Any, **options: Any) -> None:
    """Calls a program, or prepares the call."""
    do = program.prepare if _preparing else program
    do(x, *tensors, group=lane(members.group, device=x.device.type), **options)
