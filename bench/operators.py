"""What is measured: operators in all their forms, their inputs, and what is right."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilelink.analysis.unroll import Events, unroll
from tilelink.frontend.ir import TileProgram
from tilelink.frontend.program import Program
from tilelink.frontend.schedule import Schedule
from tilelink.frontend.sizes import Sizes, even_parts
from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul import matmul

Shape = Mapping[str, int | Sequence[int]]
Tensors = tuple[torch.Tensor, ...]

UNFUSED = "unfused"
"""The form that all others are held against."""

WORKERS = 16
"""Workers of a rank, so few that each runs several tiles of a layer: 16 stand for the 132 SMs of a GPU,"""

GATHERING = 2
"""and 2 for the 16 SMs that the schedules of the library give to the gather."""

TILE = (128, 256, 128)
"""Of all matmuls, fused or not. A large k step costs the interpreter fewer operations."""


@dataclass(frozen=True)
class Step:
    """A program with its schedule, in a form of an operator."""

    program: Program
    schedule: Schedule

    def events(self, shape: Shape, world: int, dtype: str) -> Events:
        """What every worker of every rank does in it. Raises what is wrong with the shape or the schedule."""
        bound = self.program.bind(self.schedule, dtype, self.program.optional)
        return unroll(bound, Sizes.of(bound, world, _sizes_of(bound, shape)), sms=WORKERS)


Form = tuple[Step, ...]
"""One way to compute an operator: programs that run one after the other on every rank."""


class Operator(ABC):
    """An operator that can be measured. `cut`: which of its dimensions are cut over the ranks. `baseline` says what its
    unfused form is."""

    dims: tuple[str, ...]
    cut: tuple[str, ...]
    baseline: str

    @abstractmethod
    def forms(self, shape: Shape, world: int) -> dict[str, Form]:
        """Its forms by the name of their schedule, fitted to a shape; `UNFUSED` is the first."""

    @abstractmethod
    def inputs(self, shape: Shape, world: int, dtype: torch.dtype) -> list[Tensors]:
        """Random inputs of each rank, always the same."""

    @abstractmethod
    def call(self, form: Form, inputs: Tensors, group: Any, shape: Shape) -> torch.Tensor:
        """Computes it on the rank of `group`."""

    @abstractmethod
    def reference(self, inputs: list[Tensors]) -> list[torch.Tensor]:
        """What is right for each rank: in float64, of the inputs as they are."""


class AllGatherMatmul(Operator):
    """A column-parallel projection: the rows of x of all ranks, times each rank's own weight."""

    dims = ("M", "N", "K")
    cut = ("M",)
    baseline = (
        f"unfused: all_gather on {GATHERING} workers of each rank (no more than the fused form, as a link and not the "
        f"workers bounds a collective), then matmul on all {WORKERS}"
    )

    def forms(self, shape: Shape, world: int) -> dict[str, Form]:
        def fitted(program: Program, name: str, **changes: dict[str, Any]) -> Step:
            schedule = program.schedule(name).changed(**changes)
            sizes: dict[str, Any] = dict(_sizes_of(program.bind(schedule, absent=program.optional), shape))
            return Step(program, program.fit(schedule, world=world, **sizes))

        gather, tile = {"count": GATHERING}, {"tile": TILE}
        return {
            UNFUSED: (fitted(all_gather, "pull", gather=gather), fitted(matmul, "gemm", multiply=tile)),
            **{n: (fitted(all_gather_matmul, n, gather=gather, matmul=tile),) for n in ("push", "pull", "multicast")},
            "engine": (fitted(all_gather_matmul, "engine", matmul=tile),),
        }

    def inputs(self, shape: Shape, world: int, dtype: torch.dtype) -> list[Tensors]:
        random = torch.Generator().manual_seed(0)

        def tensor(rows: int, cols: int) -> torch.Tensor:
            return torch.randn(rows, cols, generator=random).to(dtype)

        n, k = shape["N"], shape["K"]
        assert isinstance(n, int) and isinstance(k, int), "only M is cut"
        return [(tensor(m, k), tensor(n, k).T) for m in _lengths(shape["M"], world)]

    def call(self, form: Form, inputs: Tensors, group: Any, shape: Shape) -> torch.Tensor:
        x, weight = inputs
        parts = {"M": _lengths(shape["M"], group.world)}
        first, *second = form
        if not second:
            return first.program(x, weight, schedule=first.schedule, group=group, parts=parts)
        full = first.program(x, schedule=first.schedule, group=group, parts=parts)
        return second[0].program(full, weight, schedule=second[0].schedule, group=group)

    def reference(self, inputs: list[Tensors]) -> list[torch.Tensor]:
        full = torch.cat([x for x, _ in inputs]).double()
        return [full @ weight.double() for _, weight in inputs]


def _sizes_of(program: TileProgram, shape: Shape) -> Shape:
    """The dimensions that a program has; where it does not cut one, the whole of it."""
    return {d: n if isinstance(n, int) or d in program.cut else sum(n) for d, n in shape.items() if d in program.dims}


def _lengths(size: int | Sequence[int], world: int) -> tuple[int, ...]:
    """The parts of the ranks of a dimension that is cut."""
    return even_parts(size, world) if isinstance(size, int) else tuple(size)


OPERATORS: dict[str, Operator] = {"all_gather_matmul": AllGatherMatmul()}
