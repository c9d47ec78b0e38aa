"""all_gather_linear: the first half of tensor parallelism with sequence parallelism (column-parallel layers)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from tilelink.errors import ArgumentError, ScheduleError, ShapeError, public
from tilelink.ops.checks import check_dim, check_lengths, check_weights, numbered
from tilelink.ops.collectives import Later
from tilelink.ops.linear_operator import LinearOperator
from tilelink.ops.matrices import as_rows, of_rows, resized, times
from tilelink.ops.operator import Asked, Call, Operator
from tilelink.ops.plain import Maybe, Plain, Tensors, side_by_side
from tilelink.ops.programs import Programs
from tilelink.plans.names import AUTO, TORCH, check_plan, names_program, planned, sizes_of


@dataclass
class AllGatherLinear(Call):
    """A call of `all_gather_linear`. `dim`: `gather_dim` from 0 on. `parts`: the lengths of the shards along `dim`."""

    name = "all_gather_linear"
    results = "(Tensor, Tensor[])"

    x: torch.Tensor
    weights: Tensors
    biases: Maybe
    gather_dim: int
    lengths: Sequence[int] | None
    group_name: str
    plan: str | None
    return_gathered: bool
    dim: int = field(init=False)
    parts: list[int] = field(init=False)

    def check(self) -> None:
        x, world = self.x, self.members.world
        self.dim = check_dim(x, self.gather_dim, "gather_dim")
        self.parts = [x.shape[self.dim]] * world if self.lengths is None else list(self.lengths)
        check_lengths(self.parts, world)
        check_weights(x, sum(self.parts) if self.planless() else x.shape[-1], self.weights, self.biases)
        check_plan(self.name, self.plan)
        if names_program(self.plan) and not self.planless():
            sizes_of(planned(self.name, self.plan).program, {"K": x.shape[-1]})
        if self.planless() and names_program(self.plan):
            what = f"a gather along the dimension that is summed over has only the plan {TORCH}"
            raise ScheduleError(f"plan is {self.plan!r}: {what}")

    def check_here(self) -> None:
        if self.parts[self.members.rank] != self.x.shape[self.dim]:
            given = f"x has shape {tuple(self.x.shape)} on rank {self.members.rank}"
            raise ShapeError(f"lengths are {tuple(self.parts)}; {given}")

    def planless(self) -> bool:
        """Whether the gather is along the last dimension, over which the product sums."""
        return self.dim == self.x.dim() - 1

    def told(self) -> Mapping[str, Any]:
        shapes = {"x": tuple(resized(self.x.shape, self.dim, -1)), "lengths": tuple(self.parts)}
        shapes |= {name: tuple(w.shape) for name, w in numbered("weight", self.weights).items()}
        biases = [b is not None for b in self.biases]
        return {"shapes": shapes, "biases": biases, "gather_dim": self.dim, "return_gathered": self.return_gathered}

    def asked(self) -> Asked:
        *tokens, features = self._whole()
        return Asked(self.name, math.prod(tokens), [len(w) for w in self.weights], features)

    def _whole(self) -> list[int]:
        """The shape of the gathered x."""
        return resized(self.x.shape, self.dim, sum(self.parts))

    def run(self, path: Plain) -> tuple[torch.Tensor, list[torch.Tensor]]:
        x, dim, whole = self.x, self.dim, self._whole()
        rows, of = as_rows(x, dim), times(self.parts, x.shape, dim)
        full: torch.Tensor | None
        if self.planless():
            full = path.all_gather(rows.T, of)().T.contiguous()
            outs = [path.linear(full, w, b) for w, b in zip(self.weights, self.biases, strict=True)]
        else:
            full, outs = path.gather_linear(rows, self.weights, self.biases, of, self.return_gathered)
        gathered = of_rows(full, whole, dim) if self.return_gathered and full is not None else x.new_empty(0)
        return gathered, [of_rows(out, [*whole[:-1], out.shape[-1]], dim) for out in outs]

    def setup(self, ctx: Any, output: tuple[torch.Tensor, list[torch.Tensor]]) -> None:
        ctx.biases = all(b is not None for b in self.biases)
        if not ctx.biases and any(b is not None and b.requires_grad for b in self.biases):
            raise ArgumentError("torch gives no gradients for a list of biases with None: pass zeros instead of None")
        ctx.call = {"gather_dim": self.dim, "lengths": self.parts, "group_name": self.group_name}
        ctx.kept, ctx.plan = self.return_gathered, self.plan if self.plan == AUTO else None
        ctx.save_for_backward(output[0] if self.return_gathered else self.x, *self.weights)

    @staticmethod
    def backward(ctx: Any, saved: Any, *grads: Any) -> Mapping[str, Any]:
        x, *weights = saved
        of_gathered = grads[0] if ctx.kept else None
        of_outs = [None] * len(weights) if grads[1] is None else list(grads[1])
        need_x, need_weights, need_biases, *_ = ctx.needs_input_grad
        needs = [bool(need_x) and any(g is not None for g in (of_gathered, *of_outs))]
        needs += [bool(n) and g is not None for n, g in zip(need_weights, of_outs, strict=True)]
        found: list[torch.Tensor | None] = [None] * len(needs)
        if any(needs):
            of_x, of_weights = _gradients(
                grads=of_outs, grad_gathered=of_gathered, x=x, weights=weights, kept=ctx.kept, needs=needs,
                plan=ctx.plan if needs[0] else None, **ctx.call,
            )  # fmt: skip
            found = [g if need else None for g, need in zip([of_x, *of_weights], needs, strict=True)]
        if not ctx.biases:
            return {"x": found[0], "weights": found[1:]}
        needed = [g if need else None for g, need in zip(of_outs, need_biases, strict=True)]
        of_biases = [None if g is None else g.sum(list(range(g.dim() - 1))) for g in needed]
        return {"x": found[0], "weights": found[1:], "biases": of_biases}


@dataclass
class AllGatherLinearBackward(Call):
    """Computes the needed gradients, of x and of the weights. `x`: gathered if it was `kept`, else the shard. Its
    gather overlaps the product for the gradient of x; the scatter of that gradient overlaps products for weights."""

    name = "all_gather_linear, backward"
    results = "(Tensor, Tensor[])"

    grads: Maybe
    grad_gathered: torch.Tensor | None
    x: torch.Tensor
    weights: Tensors
    gather_dim: int
    lengths: Sequence[int]
    group_name: str
    kept: bool
    needs: Sequence[bool]
    plan: str | None

    def planless(self) -> bool:
        return self.gather_dim == self.x.dim() - 1

    def told(self) -> Mapping[str, Any]:
        given = {"gradients of": [g is not None for g in self.grads], "of gathered": self.grad_gathered is not None}
        return {"lengths": tuple(self.lengths), "needs": tuple(self.needs), **given}

    def fused(self) -> bool:
        """Whether one program computes all gradients. Otherwise only the scatter of the gradient of x has a plan."""
        return all(self.needs) and not (self.planless() or self.kept or self.grad_gathered is not None)

    def asked(self) -> Asked:
        N, K = [len(w) for w in self.weights], self.weights[0].shape[1]
        M = math.prod(resized(self.x.shape, self.gather_dim, sum(self.lengths))[:-1])
        if self.fused():
            return Asked("all_gather_linear_backward", M, N, K)
        summed = sum(n for n, g in zip(N, self.grads, strict=True) if g is not None)
        return Asked("linear_reduce_scatter", M, K, summed)

    def run(self, path: Plain) -> tuple[torch.Tensor, list[torch.Tensor]]:
        x, dim, last = self.x, self.gather_dim, self.planless()
        of, shape = times(self.lengths, x.shape, dim), resized(x.shape, dim, self.lengths[self.members.rank])
        mine, given = as_rows(x, dim), {i: as_rows(g, dim) for i, g in enumerate(self.grads) if g is not None}
        if self.fused() and isinstance(path, Programs):
            rows, of_weights = path.empty(x, mine.shape), [path.empty(x, w.shape) for w in self.weights]
            turned, wanted = [w.T for w in self.weights], [w.T for w in of_weights]
            path.call(list(given.values()), turned, mine, dx=rows, dweight=wanted, parts={"M": of})
            return of_rows(rows, shape, dim).contiguous(), of_weights
        columns = self._columns(path, mine, of) if any(self.needs[1:]) else None
        sending = self._input_gradient(path, given, of) if self.needs[0] else None
        of_x, of_weights = x.new_empty(0), [x.new_empty(0) for _ in self.weights]
        if columns is not None:  # multiplied while the gradient of x is sent
            full = columns()
            for i, g in given.items():
                of_weights[i] = path.linear(g.T, full) if self.needs[1 + i] else of_weights[i]
        if sending is not None:
            rows = sending().to(x.dtype)
            of_x = of_rows(rows.T if last else rows, shape, dim).contiguous()
        return of_x, of_weights

    def _columns(self, path: Plain, mine: torch.Tensor, of: Sequence[int]) -> Later:
        """The transpose of the gathered x. If x was not kept, this starts the gather."""
        if self.kept:
            return lambda: mine.T
        under_way = path.all_gather(mine.T if self.planless() else mine, of)
        return under_way if self.planless() else lambda: under_way().T

    def _input_gradient(self, path: Plain, given: dict[int, torch.Tensor], of: Sequence[int]) -> Later:
        """Starts to compute the gradient of this rank's rows of x; if the last dimension was gathered, of its columns,
        transposed. `given`: the gradients of results, by the index of their weight. `of`: the rows of each rank."""
        sums, last, of_gathered = [], self.planless(), self.grad_gathered
        if given:
            grad, weight = side_by_side(list(given.values()), [self.weights[i] for i in given])
            a, b = (weight.T, grad) if last else (grad, weight.T)
            sums.append(path.linear_scatter(a, b, None, of, self.x.dtype if of_gathered is None else torch.float32))
        if of_gathered is not None:
            rows = as_rows(of_gathered, self.gather_dim)
            sums.append(path.members.reduce_scatter((rows.T if last else rows).float(), of))
        return sums[0] if len(sums) == 1 else lambda: sums[0]() + sums[1]()


_operator, _gradients = LinearOperator(AllGatherLinear), Operator(AllGatherLinearBackward)


@public
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
    """Computes all_gather(x) @ weight.T + bias on every rank, for one weight or several weights that share the gather
    (Q, K and V; gate and up). Returns a tensor for one weight, and a list for a list; with `return_gathered`, the pair
    (gathered x, this result).

    `x`: (..., K), float32, float16 or bfloat16, the rank's shard. The shards are concatenated in the order of ranks
    along `gather_dim`: a dimension of tokens, or the last one. `weights`: (N, K) as in nn.Linear. `biases`: (N,) or
    None. `lengths`: the length of each rank's shard along `gather_dim`, the same list on every rank; by default all
    shards have one length. `group`: of torch.distributed, or its name; by default all processes. `plan`: a schedule of
    `tilelink.kernels.all_gather_matmul` by name (default: the first); "split", by `all_gather_split_matmul`, for few
    rows and columns, where 4 divides K; "torch", plain torch; or "auto": the fused plan with the shortest predicted
    time, if unfused takes at least 1.15 times as long, else "torch". "auto" also chooses the plan of the backward.

    All ranks must make the same call. The gradient of x comes by reduce-scatter. The gradient of a weight is the rank's
    own; for it the backward gathers x again, unless `return_gathered` kept it. Results lie in memory with `gather_dim`
    first. Raises ArgumentError, ShapeError, DtypeError, DeviceError and ScheduleError; if one rank does, the others
    raise RankFailedError. Raises RankMismatchError if calls differ.
    """
    full, outs = _operator.for_user(
        group, x, weights, biases, gather_dim=gather_dim, lengths=lengths, plan=plan, return_gathered=return_gathered
    )
    found = outs[0] if isinstance(weights, torch.Tensor) else outs
    return (full, found) if return_gathered else found
