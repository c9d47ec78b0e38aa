"""Calls of the programs that add up partial sums of all ranks, with their operands, and what has to come out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from bench.operands import laid_out
from tests.kernels.gather_gemm import Call
from tilelink import Schedule
from tilelink.frontend.schedule import CopyEngine, SMs
from tilelink.kernels.matmul_all_reduce import matmul_all_reduce
from tilelink.kernels.matmul_fabric_all_reduce import matmul_fabric_all_reduce
from tilelink.kernels.matmul_one_shot_all_reduce import matmul_one_shot_all_reduce
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.kernels.matmul_ring_reduce_scatter import matmul_ring_reduce_scatter

SCATTERING = (matmul_reduce_scatter, matmul_ring_reduce_scatter)
PROGRAMS = (*SCATTERING, matmul_all_reduce, matmul_fabric_all_reduce, matmul_one_shot_all_reduce)
FORMS = [(program, name) for program in PROGRAMS for name in program.schedules]
"""Every program with every schedule beside it."""


def form_name(form: Any) -> str:
    """For the ids of tests."""
    return f"{form[0].name}-{form[1]}" if isinstance(form, tuple) and hasattr(form[0], "name") else str(form)


def in_tiles(program: Any, name: str, matmul: tuple[int, int, int], moved: tuple[int, int]) -> Schedule:
    """A schedule of the library in smaller tiles, those of the matmul apart; few workers where there is a count."""
    schedule: Schedule = program.schedules[name]
    changes: dict[str, dict[str, Any]] = {}
    for role, resource in schedule.items():
        if isinstance(resource, SMs):
            steps = (min(moved[0], 16),) if role == "ring" else ()
            changes[role] = {"tile": matmul if role == "matmul" else (*moved, *steps)}
            changes[role] |= {"count": 2} if resource.count else {}
        elif isinstance(resource, CopyEngine):
            changes[role] = {"tile": (moved[0], None)}
    return schedule.changed(**changes)


@dataclass(frozen=True)
class Sum(Call):
    """One call of every rank, each with a part of K; `K` is that of a rank. `parts`: how many rows of the sum each rank
    gets; of a program that gives it to all ranks, their sum says how many rows there are."""

    program: Any = field(default=matmul_reduce_scatter, repr=False)

    @property
    def scatters(self) -> bool:
        return self.program in SCATTERING

    @cached_property
    def x(self) -> list[torch.Tensor]:
        rows = sum(self.parts)
        return [laid_out(self._numbers(rows, self.K, salt=r), self.layout) for r in range(self.world)]

    @cached_property
    def biases(self) -> list[torch.Tensor | None]:
        return [self._numbers(self.N, salt=200) if self.bias else None] * self.world

    @cached_property
    def expected(self) -> list[torch.Tensor]:
        """The results of all ranks, in float64."""
        total = torch.zeros(sum(self.parts), self.N, dtype=torch.float64)
        for x, w in zip(self.x, self.weight, strict=True):
            total += x.double() @ w.double()
        bias = self.biases[0]
        total += 0 if bias is None else bias.double()
        return list(total.split(self.parts)) if self.scatters else [total] * self.world

    def on(self, group: Any, out: torch.Tensor | None = None, **more: Any) -> torch.Tensor:
        """Makes the call on a rank."""
        r = group.rank
        if out is not None:
            out = out[: self.parts[r]] if self.scatters else out
        cut = {"parts": {"M": self.parts}} if self.scatters else {}
        return self.program(
            self.x[r], self.weight[r], bias=self.biases[r], schedule=self.schedule, group=group, slot=self.slot,
            out=out, **cut, **more,
        )  # fmt: skip

    def by(self, form: tuple[Any, str], **tiles: Any) -> Sum:
        """The same call of another program, by the name of its schedule or in tiles."""
        program, name = form
        return replace(self, program=program, schedule=in_tiles(program, name, **tiles) if tiles else name)
