"""Random layers of experts, and what has to come out: all experts in one place, in float64, by autograd."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

import tilelink.ops as ops
from bench.references import every_slice, layer_of_experts
from tests.ops.sharded import LIMITS
from tilelink.ops.whole_layer import swiglu


@dataclass(frozen=True)
class Layer:
    """One call of every rank, with its gradients. `tokens`: of each rank, repeated where there are more ranks;
    `experts`: of a rank; `slices`: ranks that share an expert, if the world has as many, 0 for all;
    `skewed`: all tokens go to the first experts; `none`: how often a pair has no expert; `twice`: tokens name their
    first expert as their last one, too; `nan`: the first weight of rank 0 is NaN."""

    tokens: tuple[int, ...] = (5,)
    top: int = 2
    experts: int = 2
    K: int = 16
    hidden: int = 16
    dtype: torch.dtype = torch.float32
    skewed: bool = False
    none: float = 0.0
    seed: int = 0
    slices: int = 1
    twice: bool = False
    nan: bool = False

    def of(self, rank: int) -> int:
        return self.tokens[rank % len(self.tokens)]

    def cut(self, world: int) -> int:
        """Ranks that share an expert."""
        wanted = self.slices or world
        return 1 if world % wanted else wanted

    def operands(self, world: int) -> list[dict[str, torch.Tensor]]:
        made = []
        for rank in range(world):
            drawn = torch.Generator().manual_seed(100 * self.seed + rank)
            n, every = self.of(rank), self.experts * world // self.cut(world)
            scores = torch.rand(n, every, generator=drawn)
            if self.skewed:
                scores -= torch.arange(every)
            chosen = scores.topk(min(self.top, every)).indices
            chosen[torch.rand(chosen.shape, generator=drawn) < self.none] = -1
            if self.twice:
                chosen[:, -1] = chosen[:, 0]
            shapes = {"x": (n, self.K), "gate_up": (self.experts, 2 * self.hidden, self.K),
                      "down": (self.experts, self.K, self.hidden)}  # fmt: skip
            of_rank = {k: torch.randn(s, generator=drawn).to(self.dtype) for k, s in shapes.items()}
            weights = torch.rand(chosen.shape, generator=drawn).to(self.dtype)
            if self.nan and rank == 0:
                weights[0, 0] = float("nan")
            made.append({**of_rank, "topk_idx": chosen, "topk_weights": weights})
        return made

    def cotangent(self, rank: int) -> torch.Tensor:
        made = torch.randn(self.of(rank), self.K, generator=torch.Generator().manual_seed(7000 + rank))
        return made.to(self.dtype)

    def on(self, group: dist.ProcessGroup, **options: Any) -> dict[str, torch.Tensor]:
        """The result and the gradients of a rank, by name."""
        rank, world = dist.get_rank(group), dist.get_world_size(group)
        given = self.operands(world)[rank]
        leaves = {k: t.requires_grad_() for k, t in given.items() if k != "topk_idx"}
        options |= {"tokens": max(map(self.of, range(world))), "slices": self.cut(world)}
        if self.twice:  # the default has room for experts that differ
            options["capacity"] = world * options["tokens"] * self.top
        out = ops.mixture_of_experts(**given, group=group, **options)
        grads = torch.autograd.grad(out, list(leaves.values()), self.cotangent(rank))
        return {"out": out.detach()} | {f"grad of {k}": g for k, g in zip(leaves, grads, strict=True)}

    def right(self, world: int) -> list[dict[str, torch.Tensor]]:
        """What ranks have to get."""
        ranks = [{k: t.double() if k != "topk_idx" else t for k, t in r.items()} for r in self.operands(world)]
        leaves = [{k: t.requires_grad_() for k, t in r.items() if k != "topk_idx"} for r in ranks]
        experts = list(every_slice(ranks, self.cut(world)))
        outs = [layer_of_experts(r["x"], r["topk_idx"], r["topk_weights"], experts) for r in ranks]
        loss = torch.stack([(y * self.cotangent(k).double()).sum() for k, y in enumerate(outs)]).sum()
        grads = torch.autograd.grad(loss, [t for of_rank in leaves for t in of_rank.values()], allow_unused=True)
        found, left = [], iter(grads)
        for of_rank, out in zip(leaves, outs, strict=True):
            of = {f"grad of {k}": torch.zeros_like(t) if g is None else g
                  for (k, t), g in zip(of_rank.items(), left, strict=False)}  # fmt: skip
            found.append({"out": out.detach()} | of)
        return found

    def magnitudes(self, world: int) -> list[dict[str, torch.Tensor]]:
        """As `right`, with the magnitudes of what each sum adds up: what its terms were rounded to goes with these, and
        what is left of a sum may be a fiftieth of them."""
        ranks = [{k: t.double() if k != "topk_idx" else t for k, t in r.items()} for r in self.operands(world)]
        experts = list(every_slice(ranks, self.cut(world)))
        found = [{k: torch.zeros_like(t) for k, t in r.items() if k != "topk_idx"} for r in ranks]
        outs = [torch.zeros_like(r["x"]) for r in ranks]
        for source, r in enumerate(ranks):
            dy = self.cotangent(source).double()
            for e, (number, (gate_up, down)) in enumerate(experts):
                owner, own = divmod(e, self.experts)
                chosen = r["topk_idx"] == number
                weight = r["topk_weights"].where(chosen, 0).sum(1, keepdim=True)
                products = (r["x"] @ gate_up.T).requires_grad_()
                hidden = swiglu(products)
                (dproducts,) = torch.autograd.grad(hidden, products, weight * dy @ down)
                z = hidden.detach().abs() @ down.T.abs()
                outs[source] += weight * z
                found[source]["x"] += dproducts.abs() @ gate_up.abs()
                found[source]["topk_weights"] += chosen * (dy.abs() * z).sum(1, keepdim=True)
                found[owner]["gate_up"][own] += dproducts.T.abs() @ r["x"].abs()
                found[owner]["down"][own] += (weight * dy).T.abs() @ hidden.detach().abs()
        return [{"out": y} | {f"grad of {k}": t for k, t in f.items()} for y, f in zip(outs, found, strict=True)]

    def errors(self, made: dict[str, torch.Tensor], rank: int, world: int) -> list[str]:
        """What is wrong, in words."""
        wrong, terms = [], self.magnitudes(world)[rank]
        for name, right in self.right(world)[rank].items():
            limit = 3 * LIMITS[self.dtype] * (1 + name.startswith("grad"))  # some roundings, and few numbers
            if made[name].shape != right.shape or not made[name].isnan().equal(right.isnan()):
                wrong.append(f"{self}, rank {rank} of {world}: {name} has another shape, or NaN elsewhere")
                continue
            there = ~right.isnan()
            far, of_terms = ((made[name].double() - right)[there].norm(), terms[name][there].norm())
            if not (far <= limit * of_terms):
                wrong.append(f"{self}, rank {rank} of {world}: {name} is off by {far / of_terms:.1e} of its terms")
        return wrong


def layers(world: int, number: int, seed: int) -> list[Layer]:
    """Drawn at random, with every extreme routing among them."""
    drawn = random.Random(f"{world} {seed}")
    found = [
        Layer((3, 0), 2, 1), Layer((0,), 2, 2), Layer((4,), 1, 1, skewed=True), Layer((3,), 3, 3, none=1.0),
        Layer((6, 1, 2), 2, 2, none=0.5), Layer((7,), 2, 2, skewed=True, dtype=torch.bfloat16),
        Layer((5, 0, 3), 2, 3, none=0.3, slices=0), Layer((4,), 2, 2, slices=2),
    ]  # fmt: skip
    for k in range(number):
        experts = drawn.choice([1, 2, 3, 5, 16])
        tokens = tuple(drawn.choice([0, 1, 2, 5, 9, 20]) for _ in range(world))
        dtype = drawn.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
        top = drawn.randint(1, min(8, experts * world))
        odd = {"skewed": drawn.random() < 0.2, "none": drawn.choice([0, 0, 0.3]), "slices": drawn.choice([1, 1, 2, 0])}
        found.append(Layer(tokens, top, experts, drawn.choice([16, 24, 40]), 16, dtype, seed=k, **odd))
    return [replace(f, seed=k) for k, f in enumerate(found)]
