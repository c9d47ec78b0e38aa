"""Calls of operators on every rank, and what has to come out of them: unsharded, in float64, by autograd."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import tilelink.ops as ops
from bench.check import LIMIT_OF, scatter

LIMITS = LIMIT_OF | {torch.float32: 1e-5}
"""Relative RMS of results; of gradients, twice that."""
GATHER, SCATTER, REDUCE = "all_gather_linear", "linear_reduce_scatter", "linear_all_reduce"


@dataclass(frozen=True)
class Call:
    """One call of every rank, with its gradients. `shape`: of x, with the whole of `dim` where that is spread over the
    ranks; `lengths`: of the parts, if they are not even; `weights`: sizes N; `frozen`: what needs no
    gradient, "x", "weight" or both."""

    operator: str
    shape: tuple[int, ...]
    weights: tuple[int, ...] = (8,)
    dim: int = 0
    lengths: tuple[int, ...] | None = None
    dtype: torch.dtype = torch.float32
    bias: bool = False
    reduce_op: str = "sum"
    keep: bool = False
    strided: bool = False
    frozen: tuple[str, ...] = ()
    seed: int = 0

    def parts(self, world: int, total: int) -> list[int]:
        return [total // world] * world if self.lengths is None else list(self.lengths)

    def numbers(self, *shape: int, salt: int) -> torch.Tensor:
        made = torch.randn(shape, generator=torch.Generator().manual_seed(1000 * self.seed + salt)).to(self.dtype)
        return made.mT.contiguous().mT if self.strided and made.dim() > 1 else made

    def operands(self, world: int) -> list[dict[str, Any]]:
        """x, weights and biases of every rank."""
        d, shape = self.dim % len(self.shape), self.shape
        shards = [shape] * world
        if self.operator == GATHER:
            shards = [(*shape[:d], n, *shape[d + 1 :]) for n in self.parts(world, shape[d])]
        made = []
        for r in range(world):
            weights = [self.numbers(n, shape[-1], salt=100 + 10 * r + i) for i, n in enumerate(self.weights)]
            biases = [self.numbers(n, salt=self._salt(500, r) + i) for i, n in enumerate(self.weights)]
            biases = biases if self.bias else [None] * len(weights)
            made.append({"x": self.numbers(*shards[r], salt=r), "weights": weights, "biases": biases})
        return made

    def on(self, rank: int, world: int, group: Any, plan: str | None = None) -> dict[str, torch.Tensor]:
        """Makes the call on a rank: results and gradients by name."""
        given = self.operands(world)[rank]
        leaves = {"x": given["x"]} | {f"weight {i}": w for i, w in enumerate(given["weights"])}
        leaves |= {f"bias {i}": b for i, b in enumerate(given["biases"]) if b is not None}
        leaves = {k: t.requires_grad_() for k, t in leaves.items() if not k.startswith(self.frozen)}
        outs = self._called(given, group, plan)
        weighted = [(y.float() * self.cotangent(k, y, rank).float()).sum() for k, y in outs.items()]
        grads = torch.autograd.grad(torch.stack(weighted).sum(), list(leaves.values()))
        found = {k: y.detach() for k, y in outs.items()}
        return found | {f"grad of {k}": g for k, g in zip(leaves, grads, strict=True)}

    def _called(self, given: dict[str, Any], group: Any, plan: str | None) -> dict[str, torch.Tensor]:
        x, weights, biases = given["x"], given["weights"], given["biases"]
        more: dict[str, Any] = {"group": group, "plan": plan}
        if self.operator == REDUCE:
            return {"out": ops.linear_all_reduce(x, weights[0], biases[0], reduce_op=self.reduce_op, **more)}
        more["lengths"] = self.lengths
        if self.operator == SCATTER:
            more |= {"scatter_dim": self.dim, "reduce_op": self.reduce_op}
            return {"out": ops.linear_reduce_scatter(x, weights[0], biases[0], **more)}
        found = ops.all_gather_linear(x, weights, biases, gather_dim=self.dim, return_gathered=self.keep, **more)
        outs = {f"out {i}": y for i, y in enumerate(found[1] if self.keep else found)}
        return outs | ({"gathered": found[0]} if self.keep else {})

    def cotangent(self, name: str, y: torch.Tensor, rank: int) -> torch.Tensor:
        """By what a result is multiplied in the loss."""
        which = ["out", "out 0", "out 1", "out 2", "gathered"].index(name)
        return replace(self, strided=False).numbers(*y.shape, salt=self._salt(700, rank) + which)

    def _salt(self, salt: int, rank: int) -> int:
        """Of numbers that each rank has of its own; what goes with an all-reduce is the same on all."""
        return salt if self.operator == REDUCE else salt + 10 * rank

    def expected(self, world: int) -> list[dict[str, torch.Tensor]]:
        """Results and gradients of every rank, in float64."""
        ranks = self.operands(world)
        for given in ranks:
            given["x"] = given["x"].double().requires_grad_()
            given["weights"] = [w.double().requires_grad_() for w in given["weights"]]
            given["biases"] = [None if b is None else b.double().requires_grad_() for b in given["biases"]]
        outs = self._unsharded(ranks, world)
        loss = sum(
            (y * self.cotangent(k, y, r).double()).sum()
            for r, found in enumerate(outs)
            for k, y in found.items()
            if self.operator != REDUCE or r == 0
        )
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        expected = []
        for given, found in zip(ranks, outs, strict=True):
            right = {k: y.detach() for k, y in found.items()} | {"grad of x": given["x"].grad}
            right |= {f"grad of weight {i}": w.grad for i, w in enumerate(given["weights"])}
            biases = ranks[0]["biases"] if self.operator == REDUCE else given["biases"]
            right |= {f"grad of bias {i}": b.grad for i, b in enumerate(biases) if b is not None}
            expected.append(right)
        return expected

    def _unsharded(self, ranks: list[dict[str, Any]], world: int) -> list[dict[str, torch.Tensor]]:
        if self.operator == GATHER:
            full = torch.cat([g["x"] for g in ranks], self.dim)
            kept = {"gathered": full} if self.keep else {}
            pairs = [enumerate(zip(g["weights"], g["biases"], strict=True)) for g in ranks]
            return [{f"out {i}": _linear(full, w, b) for i, (w, b) in of_rank} | kept for of_rank in pairs]
        total: Any = sum(_linear(g["x"], g["weights"][0], None) for g in ranks)
        total = total / (world if self.reduce_op == "avg" else 1)
        if self.operator == REDUCE:
            return [{"out": _plus(total, g["biases"][0])} for g in ranks]
        lengths = self.parts(world, total.shape[self.dim])
        added = [_plus(total, g["biases"][0]).split(lengths, self.dim)[r] for r, g in enumerate(ranks)]
        return [{"out": a} for a in added]

    def errors(self, found: dict[str, torch.Tensor], rank: int, world: int) -> list[str]:
        """What is wrong of a rank's results and gradients."""
        needed = ("out", "gathered", *(f"grad of {k}" for k in ("x", "weight", "bias") if k not in self.frozen))
        everywhere = self.expected(world)
        right = {k: y for k, y in everywhere[rank].items() if k.startswith(needed)}
        wrong = [] if found.keys() == right.keys() else [f"{self}: {found.keys()}"]
        for name, y in found.items():
            limit = LIMITS[self.dtype] * (2 if name.startswith("grad") else 1) * scatter(y.numel())
            if y.shape != right[name].shape or y.dtype != self.dtype:
                wrong.append(f"{self}: {name} is {y.dtype}, {tuple(y.shape)}")
            elif not (error := relative_rms(y, right[name], [r[name] for r in everywhere])) <= limit:
                wrong.append(f"{self}: {name} has relative RMS {error:.2e}")
        return wrong


EACH = [
    Call(GATHER, (2, 8, 16), (20, 12), dim=1, dtype=torch.bfloat16, bias=True, keep=True),
    Call(SCATTER, (8, 16), (20,), dtype=torch.float16, bias=True),
    Call(REDUCE, (3, 2, 16), (20,), dtype=torch.bfloat16, bias=True, reduce_op="avg"),
]
"""A call of each operator, on two ranks."""


def relative_rms(y: torch.Tensor, right: torch.Tensor, everywhere: Sequence[torch.Tensor]) -> float:
    """Relative to the results of all ranks, as a rank may have one or two, which are small differences of large
    partial sums."""
    numbers = torch.cat([r.flatten() for r in everywhere])
    scale = float(numbers.norm()) * (y.numel() / max(numbers.numel(), 1)) ** 0.5
    wrong = float((y.double() - right).norm())
    return wrong / scale if scale else wrong


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return _plus(x @ weight.T, bias)


def _plus(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x if bias is None else x + bias


def calls(world: int, number: int, seed: int, largest: int = 6) -> Sequence[Call]:
    """Random calls."""
    dice = random.Random(seed)
    made = []
    for k in range(number):
        operator = dice.choice([GATHER, SCATTER, REDUCE])
        rank = dice.choice([2, 2, 3, 4])
        shape = [dice.randint(1, largest if d < rank - 1 else 4 * largest) for d in range(rank)]
        weights = [dice.randint(1, 5 * largest) for _ in range(dice.randint(1, 3) if operator == GATHER else 1)]
        dim = dice.randrange(rank)
        spread = weights if operator == SCATTER and dim == rank - 1 else shape
        at = 0 if spread is weights else dim
        lengths = None
        if dice.random() < 0.4 and operator != REDUCE:
            lengths = tuple(dice.randint(0, 4) for _ in range(world))
            lengths = lengths if sum(lengths) else (1, *lengths[1:])
            spread[at] = sum(lengths)
        else:
            spread[at] *= world
        made.append(Call(
            operator, tuple(shape), tuple(weights), dim - rank * dice.randint(0, 1), lengths,
            dice.choice(list(LIMITS)), dice.random() < 0.5, dice.choice(["sum", "avg"]), dice.random() < 0.5,
            dice.random() < 0.3, dice.choice([(), (), ("x",), ("weight",)]), seed=seed * number + k,
        ))  # fmt: skip
    return made

