"""Calls of programs that send a token once to a rank, and sums of its rows back, and what has to come out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bench.choices import Choices
from bench.references import REFERENCES
from tests.kernels.routed import Called
from tilelink.frontend.routes import Integers, Routing
from tilelink.frontend.schedule import Schedule, SMs
from tilelink.kernels.all_gather_grouped_matmul import all_gather_grouped_matmul
from tilelink.kernels.grouped_matmul_reduce_scatter import grouped_matmul_reduce_scatter
from tilelink.programs.program import Program
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


class Once(Called):
    """A call of one of these programs. `room`: rows that every rank has room for; as many as there are, by default.
    `every`: all tokens go to all ranks."""

    def __init__(
        self, form: tuple[Program, str | Schedule], choices: Choices, *, K: int = 20, N: int = 24,
        dtype: torch.dtype = torch.float32, integers: bool = False, seed: int = 0, room: int | None = None,
        every: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(dtype, integers, seed)
        self.program = form[0]
        self.schedule = form[1] if isinstance(form[1], Schedule) else in_tiles(*form)
        self.every = every
        self.world, numbers = len(choices.experts), self.numbers
        (route,) = self.program.recorded().routes
        routing = Routing(Integers.of_array(choices.counts))
        self.counts, self.picks = choices.counts, [choices.integers(rank) for rank in range(self.world)]
        self.parts = {**routing.parts(route), "tokens": tuple(map(len, choices.experts))}
        self.rows = self.parts[route.rows]
        if room is not None:
            self.parts |= dict.fromkeys(route.sides, (room,) * self.world)
        self.sends = self.program is all_gather_grouped_matmul
        self.rounded = 1 if self.sends else 3**0.5  # products, sums, their sum
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
