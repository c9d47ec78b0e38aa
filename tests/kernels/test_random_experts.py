"""Two products of experts and all gradients by the programs, against float64: random sizes, every extreme routing.

`make test` has a small one; `make verify` draws 59 more, and 300 of up to 8 ranks and 256 experts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
import torch

from bench.check import LIMIT_OF
from tests.kernels.gather_gemm import small_world
from tests.kernels.routed import in_tiles
from tests.parameters import some_of
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.kernels.dispatch_matmul_backward import dispatch_matmul_backward
from tilelink.kernels.matmul_combine import matmul_combine
from tilelink.kernels.matmul_combine_backward import matmul_combine_backward
from tilelink.runtime.group import Group

ROUTINGS = ("even", "skewed", "one expert", "one source", "one token", "none")


@dataclass(frozen=True)
class Drawn:
    """A configuration: tokens of a rank, each at `top` of `experts` on each rank; `routing`: one of ROUTINGS."""

    world: int
    experts: int
    top: int
    tokens: int
    K: int
    N: int
    tile: int
    schedule: str
    routing: str
    seed: int

    @classmethod
    def of(cls, seed: int, small: bool = False) -> Drawn:
        draw = random.Random(seed)
        world = draw.choice([1, 2, 2, 3] if small else [1, 2, 2, 3, 4, 8])
        experts = draw.choice([1, 2, 3] if small else [1, 2, 3, 256 // world if seed % 10 == 9 else 5])
        return cls(
            world, experts, draw.randint(1, min(8, world * experts)), draw.choice([1, 3, 5] if small else [1, 3, 5, 9]),
            draw.choice([16, 20] if small else [16, 20, 24, 37]), draw.choice([16, 20] if small else [16, 20, 33]),
            draw.choice([16, 32]),
            draw.choice(["push", "pull", "few"]), ROUTINGS[seed % len(ROUTINGS)], seed,
        )  # fmt: skip

    @cached_property
    def counts(self) -> torch.Tensor:
        """(experts of all ranks, world)"""
        numbers, every = torch.Generator().manual_seed(self.seed), self.world * self.experts
        scores = torch.rand(self.world, self.tokens, every, generator=numbers)
        if self.routing == "skewed":
            scores -= torch.arange(every) / 4
        found = torch.zeros(every, self.world, dtype=torch.int32)
        for rank, of_rank in enumerate(scores):
            for token in of_rank:
                found[token.topk(self.top).indices, rank] += 1
        if self.routing == "one expert":
            found[:-1] = 0
        if self.routing == "one source":
            found[:, :-1] = 0
        if self.routing == "one token":
            found[:] = 0
            found[every // 2, 0] = 1
        return torch.zeros_like(found) if self.routing == "none" else found

    @cached_property
    def given(self) -> dict[str, torch.Tensor]:
        """Of all ranks: rows that are sent by source, both weights by expert, the gradient of what comes back, and how
        much each row counts."""
        numbers, rows, every = torch.Generator().manual_seed(self.seed), int(self.counts.sum()), self.counts.shape[0]
        shapes = {"x": (rows, self.K), "first": (every, self.N, self.K), "second": (every, self.K, self.N),
                  "dz": (rows, self.K), "scale": (rows,)}  # fmt: skip
        return {name: torch.randn(shape, generator=numbers) for name, shape in shapes.items()}

    def right(self) -> dict[str, torch.Tensor]:
        """What comes out of all ranks, one after the other: what comes back, and the gradients."""
        leaves = {n: t.double().requires_grad_() for n, t in self.given.items() if n not in ("dz", "scale")}
        expert = torch.cat([torch.repeat_interleave(torch.arange(len(c)), c) for c in self.counts.T])
        made = [x @ leaves["first"][e].T @ leaves["second"][e].T for x, e in zip(leaves["x"], expert, strict=True)]
        z = torch.stack(made) * self.given["scale"].double()[:, None] if made else leaves["x"] * 0
        zero = sum(t.sum() * 0 for t in leaves.values())
        grads = torch.autograd.grad((z * self.given["dz"].double()).sum() + zero, list(leaves.values()))
        return {"z": z.detach(), **{f"d{n}": g for n, g in zip(leaves, grads, strict=True)}}

    def on(self, group: Group) -> dict[str, torch.Tensor]:
        """The same on a rank. What has no row is poisoned."""
        rank, sent = group.rank, self.counts.sum(0).tolist()
        routed = self.counts.reshape(self.world, -1).sum(1).tolist()
        room = {"sent": (max(sent) + 2,) * self.world, "routed": (max(routed) + 3,) * self.world}
        room["tokens"] = room["sent"]  # each row is a token here
        order = torch.arange(room["sent"][0], dtype=torch.int32)
        place = torch.where(order < sent[rank], order, -1)[:, None]
        own = slice(rank * self.experts, (rank + 1) * self.experts)
        scale = self.given["scale"].split(sent)[rank]

        def padded(rows: torch.Tensor) -> torch.Tensor:
            made = torch.full((room["sent"][0], *rows.shape[1:]), float("nan"))
            made[: len(rows)] = rows
            return made

        def empty(side: str, columns: int) -> torch.Tensor:
            return torch.full((room[side][0], columns), float("nan"))

        def call(program: Any, *tensors: torch.Tensor, **named: torch.Tensor) -> None:
            schedule = in_tiles(program, self.schedule, self.tile)
            program(*tensors[:2], self.counts, *tensors[2:], **named, schedule=schedule, parts=room, group=group)

        x, dz = (padded(self.given[n].split(sent)[rank]) for n in ("x", "dz"))
        first, second = self.given["first"][own], self.given["second"][own]
        y, rows, dy = (empty("routed", n) for n in (self.N, self.K, self.N))
        z, dx = empty("sent", self.K), empty("sent", self.K)
        dfirst, dsecond = (torch.full_like(w, float("nan")) for w in (first, second))
        call(dispatch_matmul, x, first.mT, order, out=y, gathered=rows)
        call(matmul_combine, y, second.mT, place, out=z, weights=padded(scale).nan_to_num()[:, None])
        call(matmul_combine_backward, dz, second, order, y, drows=dy, dweight=dsecond, scale=padded(scale))
        call(dispatch_matmul_backward, dy, first, place, rows, dx=dx, dweight=dfirst)
        assert not any(t[sent[rank] :].any() for t in (z, dx))  # tokens without rows
        return {"z": z[: sent[rank]], "dx": dx[: sent[rank]], "dfirst": dfirst, "dsecond": dsecond}

    def check(self) -> None:
        outs, right = small_world(self.world).run(self.on), self.right()
        for name, wanted in right.items():
            made = torch.cat([out[name] for out in outs]).double()
            error = (made - wanted).norm() / wanted.norm().clamp(min=1e-30)
            limit = 8 * LIMIT_OF[torch.float32]
            assert made.shape == wanted.shape and (error <= limit or not wanted.any()), (self, name)
            assert made[wanted == 0].eq(0).all() if not wanted.any() else made.isfinite().all()


@some_of(60, first=1)
def test_forward_and_backward_of_small_ones(seeds: range) -> None:
    for seed in seeds:
        Drawn.of(seed, small=True).check()


@pytest.mark.verify
@pytest.mark.parametrize("seeds", [range(k, k + 75) for k in range(0, 300, 75)], ids=str)
def test_forward_and_backward(seeds: range) -> None:
    for seed in seeds:
        Drawn.of(seed).check()
