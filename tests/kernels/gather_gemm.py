"""Calls of all_gather_matmul with their operands, and what has to come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

import tilelink as tk
from bench.check import LIMIT_OF, relative_rms_of_all
from bench.operands import laid_out
from tilelink import Schedule
from tilelink.kernels.all_gather_matmul import all_gather_matmul, engine, few, multicast, pieces, pull, push
from tilelink.runtime.cpu.world import CpuWorld

NAMED = {"push": push, "pull": pull, "multicast": multicast, "engine": engine, "pieces": pieces, "few": few}
ENGINES = {
    at: engine.changed(gather={"at": at, "order": tk.own_rank_first, "streams": "peers"}) for at in ("home", "reader")
}
"""A copy engine of the rank that has the rows, or of the one that reads them, with a stream for each peer."""


def in_tiles(schedule: str, gather: tuple[int, int | None], matmul: tuple[int, int, int]) -> Schedule:
    """A schedule of the library in smaller tiles; those of an engine cover a signal, which whole rows have."""
    tile = (gather[0], None) if schedule == "engine" else gather
    return NAMED[schedule].changed(gather={"tile": tile}, matmul={"tile": matmul})


@dataclass(frozen=True)
class Call:
    """One call of every rank: M is the sum of `parts`, a rank's rows each. `layout`: how x lies in memory; `integers`:
    operands of which every sum is exact; `slot`: picked by hand."""

    parts: tuple[int, ...]
    N: int = 24
    K: int = 40
    dtype: torch.dtype = torch.float32
    schedule: Schedule | str = "push"
    bias: bool = False
    transposed: bool = False
    layout: str = "rows"
    integers: bool = False
    slot: int | None = None
    seed: int = 0
    program: Any = field(default=all_gather_matmul, repr=False)

    @property
    def world(self) -> int:
        return len(self.parts)

    @cached_property
    def x(self) -> list[torch.Tensor]:
        return [laid_out(self._numbers(m, self.K, salt=r), self.layout) for r, m in enumerate(self.parts)]

    @cached_property
    def weight(self) -> list[torch.Tensor]:
        shape = (self.N, self.K) if self.transposed else (self.K, self.N)
        made = [self._numbers(*shape, salt=100 + r) for r in range(self.world)]
        return [w.T for w in made] if self.transposed else made

    @cached_property
    def biases(self) -> list[torch.Tensor | None]:
        return [self._numbers(self.N, salt=200 + r) if self.bias else None for r in range(self.world)]

    @cached_property
    def expected(self) -> list[torch.Tensor]:
        """The results of all ranks, in float64."""
        x = torch.cat(self.x).double()
        sums = [x @ w.double() for w in self.weight]
        return [s if b is None else s + b.double() for s, b in zip(sums, self.biases, strict=True)]

    def poison(self) -> torch.Tensor:
        """An output in which it shows what nobody wrote."""
        return torch.full((sum(self.parts), self.N), float("nan"), dtype=self.dtype)

    def on(self, group: Any, **more: Any) -> torch.Tensor:
        """Makes the call on a rank, maybe with other options."""
        r = group.rank
        options = {"bias": self.biases[r], "schedule": self.schedule, "parts": {"M": self.parts}, "slot": self.slot}
        return self.program(self.x[r], self.weight[r], group=group, **options | more)

    def check(self, results: Sequence[torch.Tensor]) -> None:
        """Raises AssertionError unless the results of all ranks are right."""
        for rank, (y, e) in enumerate(zip(results, self.expected, strict=True)):
            assert y.dtype == self.dtype and y.shape == e.shape
            assert not y.isnan().any(), f"rank {rank}: {int(y.isnan().sum())} of {y.numel()} elements are NaN"
            if self.integers:
                assert torch.equal(y, e.to(self.dtype)), f"rank {rank}: not exact"
        error = relative_rms_of_all(results, self.expected)
        assert self.integers or error < LIMIT_OF[self.dtype], f"relative RMS {error} in {self.dtype}"

    def _numbers(self, *shape: int, salt: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * self.seed + salt)
        if self.integers:
            return torch.randint(-4, 5, shape, generator=generator).to(self.dtype)
        return torch.randn(*shape, generator=generator).to(self.dtype)


Results = list[list[torch.Tensor]]
"""By call and rank."""


def run(calls: Sequence[Call], *, seed: int = 0, world: CpuWorld | None = None, **options: Any) -> Results:
    """Makes the calls one after the other on every rank, without waiting in between."""
    world = world or small_world(calls[0].world, **options)
    results = world.run(lambda group: [c.on(group, out=c.poison()) for c in calls], seed=seed)
    return [list(of_call) for of_call in zip(*results, strict=True)]


def small_world(world: int, **options: Any) -> CpuWorld:
    """A world that is made quickly."""
    return CpuWorld(world, **{"heap_bytes": 1 << 20, "signal_bytes": 4 << 10, "sms": 20, **options})


def run_and_check(*calls: Call, **options: Any) -> Results:
    """Runs calls and checks all their results."""
    results = run(calls, **options)
    for call, outs in zip(calls, results, strict=True):
        call.check(outs)
    return results
