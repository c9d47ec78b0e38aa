"""Calls of programs whose rows are routed to experts, and what has to come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bench.check import FEW, LIMIT_OF, relative_rms_of_all, scatter
from bench.references import REFERENCES
from tests.kernels.gather_gemm import small_world
from tilelink.frontend.routes import Integers, Routing
from tilelink.frontend.schedule import Schedule
from tilelink.kernels.combine import combine
from tilelink.kernels.dispatch import dispatch
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.kernels.dispatch_matmul_backward import dispatch_matmul_backward
from tilelink.kernels.expert_weight_gradient import expert_weight_gradient
from tilelink.kernels.matmul_combine import matmul_combine
from tilelink.kernels.matmul_combine_backward import matmul_combine_backward
from tilelink.programs.program import Program
from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.group import Group

PROGRAMS = [dispatch_matmul, matmul_combine]
ALONE = [(dispatch, "pull"), (combine, "pull")]
"""Without a product."""
FORMS = [(p, s) for p in PROGRAMS for s in p.schedules]
BACKWARD = [dispatch_matmul_backward, matmul_combine_backward, expert_weight_gradient]
GRADIENTS = [(p, s) for p in BACKWARD for s in p.schedules]
"""Those that make the gradients of weights."""
Counts = Sequence[Sequence[int]]
TOP = 3
"""Rows that a token adds up."""


def _padded(integers: torch.Tensor, room: int) -> torch.Tensor:
    """With integers behind them that are no rows, and that nobody looks at."""
    return torch.nn.functional.pad(integers, (0, room - len(integers)), value=1 << 20)


def random_counts(world: int, experts: int, seed: int, most: int = 40, empty: float = 0.3) -> Counts:
    """Rows of each expert from each source, of which about so many are none."""
    random = np.random.default_rng(seed)
    counts = random.integers(0, most, (world * experts, world))
    counts[random.random(counts.shape) < empty] = 0
    return counts.tolist()


class Called(ABC):
    """One call of every rank. `right`: what has to come out of each, of small whole numbers exactly; `rounded`: by how
    much of the error of a product the result may be off. What has no row is poisoned."""

    world: int
    right: list[Any]
    rounded = 1.0

    def __init__(self, dtype: torch.dtype, integers: bool, seed: int) -> None:
        self.dtype, self.integers, self.random = dtype, integers, torch.Generator().manual_seed(seed)

    def numbers(self, *shape: int, of: torch.dtype | None = None) -> torch.Tensor:
        """Small whole numbers, or normally distributed ones, of the dtype or of another one."""
        if self.integers:
            return torch.randint(-2, 3, shape, generator=self.random).to(of or self.dtype)
        return torch.randn(shape, generator=self.random).to(of or self.dtype)

    @abstractmethod
    def on(self, group: Group, **options: Any) -> Any:
        """The result of a rank."""

    def check(self, outs: Sequence[Any]) -> None:
        """What all ranks got."""
        self.compare(outs, self.right)

    def compare(self, outs: Sequence[torch.Tensor], right: Sequence[torch.Tensor], name: str = "out") -> None:
        """A result of all ranks."""
        assert all(out[len(e) :].isnan().all() for out, e in zip(outs, right, strict=True)), name
        outs = [out[: len(e)] for out, e in zip(outs, right, strict=True)]
        if self.integers:
            assert all(torch.equal(out, e.to(self.dtype)) for out, e in zip(outs, right, strict=True)), name
            return
        count = sum(e.numel() for e in right)
        limit = self.rounded * LIMIT_OF[self.dtype] * (1 if count < FEW else scatter(count))
        assert relative_rms_of_all(outs, right) <= limit, name


class Routed(Called):
    """A call of a program with routed rows. `room`: rows that every rank has room for, on both sides; as many as there
    are, by default."""

    def __init__(
        self, form: tuple[Program, str | Schedule], counts: Counts, *, K: int = 40, N: int = 24,
        dtype: torch.dtype = torch.float32, integers: bool = False, tile: int = 16, seed: int = 0,
        room: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(dtype, integers, seed)
        self.program, self.counts = form[0], counts
        self.schedule = form[1] if isinstance(form[1], Schedule) else in_tiles(*form, tile)
        self.world, random, numbers = len(counts[0]), self.random, self.numbers
        self.experts = len(counts) // self.world
        (route,) = self.program.recorded().routes
        routing = Routing(Integers.of_array(np.array(counts)))
        rows = routing.parts(route)
        self.parts = rows if room is None else dict.fromkeys(rows, (room,) * self.world)
        self.multiplies = "weight" in self.program.parameters
        self.sends = "x" in self.program.parameters
        self.parts["tokens"] = tuple(5 + 13 * rank % 20 for rank in range(self.world))
        side = self.parts["tokens"] if self.sends else rows[route.rows]
        self.given = [numbers(n, K) for n in side]
        self.weight = [numbers(self.experts, K, N if self.multiplies else K) for _ in range(self.world)]
        sizes = list(zip(self.parts["tokens"], rows[route.sent], self.parts[route.sent], strict=True))
        if self.sends:  # rows that a rank sends are any of its tokens
            self.picks = [_padded(torch.randint(n, (sent,), generator=random), room) for n, sent, room in sizes]
            more = [{"order": picks[: sent]} for picks, (_, sent, _) in zip(self.picks, sizes, strict=True)]
        else:  # a token adds up any of the rows that came back
            self.picks = [torch.randint(-1, sent, (n, TOP), generator=random) for n, sent, _ in sizes]
            self.weights = [numbers(n, TOP).float() for n, *_ in sizes]
            more = [{"place": p, "weights": w.double()} for p, w in zip(self.picks, self.weights, strict=True)]
        first = "x" if self.sends else "rows"
        ranks = [
            {first: x.double(), "weight": w.double(), **m}
            for x, w, m in zip(self.given, self.weight, more, strict=True)
        ]
        self.references = REFERENCES[self.program](ranks, routing)
        self.right = [of_rank["out"] for of_rank in self.references]
        self.dim, self.out = ("tokens", route.rows) if self.sends else (route.rows, "tokens")

    def on(self, group: Group, **options: Any) -> torch.Tensor:
        mine, weight, rank = self.given[group.rank], self.weight[group.rank], group.rank
        x, out = (
            torch.full((self.parts[d][rank], n), float("nan"), dtype=self.dtype)
            for d, n in ((self.dim, mine.shape[1]), (self.out, weight.shape[2]))
        )
        x[: len(mine)] = mine
        counts = torch.tensor(self.counts, dtype=torch.int32)
        options = {"schedule": self.schedule, "parts": self.parts, "counts": counts, **options}
        options |= {} if self.sends else {"weights": self.weights[rank]}
        given = [x, weight] if self.multiplies else [x]
        picks = self.picks[rank].to(torch.int64 if self.integers else torch.int32)
        made: torch.Tensor = self.program(*given, options.pop("counts"), picks, out, group=group, **options)
        return made


def named(value: Any) -> str:
    """What a form, or a number, is called in the name of a test."""
    return f"{value[0].name} {value[1]}" if isinstance(value, tuple) else str(value)


def check_tables(world: CpuWorld, experts: int) -> None:
    """The tables of the last run of each rank are what numpy makes of the same counts. Hence, of each rank: its
    segments lie one behind the other, in its room, and are as long on both sides."""
    ranks = world.world
    for group in world.groups:
        record = group.recent[max(group.recent)]
        known = record.counted.sizes.values
        for key, table in record.tables.items():
            np.testing.assert_array_equal(table.numpy(), known[key], err_msg=key)
    sent, got = (np.diff(known[f"{d}.running"].reshape(ranks, -1)) for d in ("sent", "routed"))
    assert (sent.reshape(ranks, ranks, experts) == got.reshape(ranks, experts, ranks).transpose(2, 0, 1)).all()


def in_tiles(program: Program, schedule: str, tile: int) -> Schedule:
    """A schedule of the program with small tiles, and with few workers that move whole rows, or pieces of them."""
    known = program.schedule(schedule)
    changes: dict[str, Any] = {}
    for name, resource in known.items():
        if name in ("matmul", "input_gradient"):
            changes[name] = {"tile": (tile, 16, 16)}
        elif name == "weight_gradient":
            changes[name] = {"tile": (None, 16, 16, 16)}
        elif name == "add_up":
            changes[name] = {"tile": (16, 16), "count": 2}
        else:
            whole = schedule != "few" and resource.tile[-1] is None
            changes[name] = {"tile": (tile, None if whole else 16), "count": 2}
    return known.changed(**changes)


def run(calls: Sequence[Called], seed: int = 0, world: CpuWorld | None = None) -> list[list[Any]]:
    """The results of calls in a row, by call and rank."""
    made = (world or small_world(calls[0].world)).run(lambda g: [call.on(g) for call in calls], seed=seed)
    return [[of_rank[n] for of_rank in made] for n in range(len(calls))]


def run_and_check(*calls: Called, seed: int = 0, world: CpuWorld | None = None) -> list[list[Any]]:
    results = run(calls, seed, world)
    for call, outs in zip(calls, results, strict=True):
        call.check(outs)
    return results
