"""Calls of programs that send a token once to a rank, and sums of its rows back, and what has to come out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bench.check import FEW, relative_rms_of_all, scatter
from bench.choices import Choices
from bench.references import REFERENCES
from tests.kernels.gather_gemm import LIMITS, small_world
from tilelink.frontend.routes import Integers, Routing
from tilelink.frontend.schedule import Schedule, SMs
from tilelink.kernels.all_gather_grouped_matmul import all_gather_grouped_matmul
from tilelink.kernels.grouped_matmul_reduce_scatter import grouped_matmul_reduce_scatter
from tilelink.programs.program import Program
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.group import Group

PROGRAMS = [all_gather_grouped_matmul, grouped_matmul_reduce_scatter]
EVERY = [(p, s) for p in PROGRAMS for s in p.schedules]
"""Forms that send all tokens to all ranks,"""
FORMS = [(p, s) for p, s in EVERY if s not in ("multicast", "engine")]
"""and those that may be told which tokens ranks want."""


def chosen(tokens: Sequence[int], each: int, top: int, seed: int, none: float = 0.2) -> Choices:
    """Of each token of each rank, `top` experts that differ, or -1 for none; `each`: experts of a rank."""
    random, every = np.random.default_rng(seed), each * len(tokens)
    picks = [np.array([random.permutation(every)[:top] for _ in range(n)], int).reshape(n, top) for n in tokens]
    return Choices([np.where(random.random(p.shape) < none, -1, p) for p in picks], each)


class Once:
    """One call of every rank, of small whole numbers or normally distributed ones. `room`: rows that every rank has
    room for; as many as there are, by default. `every`: all tokens go to all ranks. What has no row is poisoned."""

    def __init__(
        self, form: tuple[Program, str | Schedule], choices: Choices, *, K: int = 20, N: int = 24,
        dtype: torch.dtype = torch.float32, integers: bool = False, seed: int = 0, room: int | None = None,
        every: bool = False,
    ) -> None:  # fmt: skip
        self.program, self.dtype, self.integers = form[0], dtype, integers
        self.schedule = form[1] if isinstance(form[1], Schedule) else in_tiles(*form)
        self.every = every
        self.world, random = len(choices.experts), torch.Generator().manual_seed(seed)

        def numbers(*shape: int) -> torch.Tensor:
            if integers:
                return torch.randint(-2, 3, shape, generator=random).to(dtype)
            return torch.randn(shape, generator=random).to(dtype)

        (route,) = self.program.recorded().routes
        routing = Routing(Integers.of_array(choices.counts))
        self.counts, self.picks = choices.counts, [choices.integers(rank) for rank in range(self.world)]
        self.parts = {**routing.parts(route), "tokens": tuple(map(len, choices.experts))}
        self.rows = self.parts[route.rows]
        if room is not None:
            self.parts |= dict.fromkeys(route.sides, (room,) * self.world)
        self.sends = self.program is all_gather_grouped_matmul
        self.given = [numbers(n, K) for n in (self.parts["tokens"] if self.sends else self.rows)]
        self.weight = [numbers(choices.each, K, N) for _ in self.rows]
        self.weights = [numbers(*picks["at"].shape).float() for picks in self.picks]
        first = "x" if self.sends else "rows"
        ranks = [
            {first: x.double(), "weight": w.double(), "weights": own.double(), **picks}
            for x, w, own, picks in zip(self.given, self.weight, self.weights, self.picks, strict=True)
        ]
        self.right = [of_rank["out"] for of_rank in REFERENCES[self.program](ranks, routing)]
        self.dim, self.out = ("tokens", route.rows) if self.sends else (route.rows, "tokens")

    def on(self, group: Group, **options: Any) -> torch.Tensor:
        rank, weight, picks = group.rank, self.weight[group.rank], self.picks[group.rank]
        given, out = (
            torch.full((self.parts[d][rank], n), float("nan"), dtype=self.dtype)
            for d, n in ((self.dim, weight.shape[1]), (self.out, weight.shape[2]))
        )
        given[: len(self.given[rank])] = self.given[rank]
        options = {"schedule": self.schedule, "parts": self.parts, "group": group, "out": out, **options}
        options["wanted"] = None if self.every else picks["wanted"]
        if self.sends:  # behind those that rows have, integers that nobody looks at
            more = self.parts[self.out][rank] - self.rows[rank]
            options["token"] = torch.nn.functional.pad(picks["token"], (0, more), value=1 << 20)
        else:
            options |= {"at": picks["at"], "weights": self.weights[rank]}
        counts = options.pop("counts", torch.from_numpy(self.counts.astype(np.int32)))
        made: torch.Tensor = self.program(given, weight, counts, **options)
        return made

    def check(self, outs: Sequence[torch.Tensor]) -> None:
        """What all ranks got."""
        assert all(out[len(e) :].isnan().all() for out, e in zip(outs, self.right, strict=True))
        outs = [out[: len(e)] for out, e in zip(outs, self.right, strict=True)]
        if self.integers:
            assert all(torch.equal(out, e.to(self.dtype)) for out, e in zip(outs, self.right, strict=True))
            return
        count, rounded = sum(e.numel() for e in self.right), 1 if self.sends else 3**0.5  # products, sums, their sum
        limit = rounded * LIMITS[self.dtype] * (1 if count < FEW else scatter(count))
        assert relative_rms_of_all(list(outs), self.right) <= limit


def in_tiles(program: Program, schedule: str, tile: int = 16) -> Schedule:
    """A schedule of the program with small tiles and few workers."""
    changes: dict[str, Any] = {}
    for name in (known := program.schedule(schedule)):
        columns = None if name in ("send", "fan_out") else 16
        if not isinstance(known[name], SMs):
            continue
        changes[name] = {"tile": (tile, 16, 16)} if name == "matmul" else {"tile": (16, columns)}
        changes[name] |= {"count": 2} if known[name].count is not None else {}
    return known.changed(**changes)


def run(calls: Sequence[Once], seed: int = 0, world: CpuWorld | None = None) -> list[list[torch.Tensor]]:
    """The results of calls in a row, by call and rank."""
    made = (world or small_world(calls[0].world)).run(lambda g: [call.on(g) for call in calls], seed=seed)
    return [[of_rank[n] for of_rank in made] for n in range(len(calls))]


def run_and_check(*calls: Once, seed: int = 0, world: CpuWorld | None = None) -> None:
    for call, outs in zip(calls, run(calls, seed, world), strict=True):
        call.check(outs)
