"""The operators that the harness measures: their forms, inputs and right results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch

from bench.references import REFERENCES
from tilelink.analysis.events import Events
from tilelink.analysis.unroll import unroll
from tilelink.frontend.schedule import Schedule
from tilelink.frontend.sizes import even_parts
from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.all_reduce import all_reduce
from tilelink.kernels.matmul import matmul
from tilelink.kernels.matmul_all_reduce import matmul_all_reduce
from tilelink.kernels.matmul_fabric_all_reduce import matmul_fabric_all_reduce
from tilelink.kernels.matmul_one_shot_all_reduce import matmul_one_shot_all_reduce
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.kernels.matmul_ring_reduce_scatter import matmul_ring_reduce_scatter
from tilelink.kernels.reduce_scatter import reduce_scatter
from tilelink.language import own_dims
from tilelink.programs.program import Program

Shape = Mapping[str, int | Sequence[int]]
Tensors = tuple[torch.Tensor, ...]

UNFUSED = "unfused"
"""The form that all other forms are compared with."""

WORKERS = 16
"""Workers of a rank, in place of the 132 SMs of a GPU. They are few, so that each runs several tiles of a layer."""

MOVING = 2
"""Workers that stand for the 16 SMs that the library's schedules give to roles that gather, send or share."""

TILE = (128, 256, 128)
"""The tile of all matmuls, fused or not. A large k step costs the interpreter fewer operations."""

SUM_TILE = (128, 256, 512)
"""The tile of matmuls whose sums go on to other ranks. 128 tokens take as many steps as 512: each step is larger."""


@dataclass(frozen=True)
class Step:
    """A program with its schedule, in a form of an operator."""

    program: Program
    schedule: Schedule

    def events(self, shape: Shape, world: int, dtype: str) -> Events:
        """Returns the events of every worker of every rank. Raises errors of the shape or the schedule."""
        bound, exact = self.program.bound_at(self.schedule, world=world, sizes=_at(self.program, shape), dtypes=dtype)
        return unroll(bound, exact, sms=WORKERS)


Form = tuple[Step, ...]
"""One way to compute an operator: programs that run one after the other on every rank."""


class Operator(ABC):
    """An operator that can be measured. `program`: a fused form. `baseline`: a text that describes the unfused form.
    `layers`: projections of Llama-3-8B at tensor parallel 4 by name, in a rank's sizes."""

    dims: tuple[str, ...] = ("M", "N", "K")
    program: Program
    baseline: str
    layers: ClassVar[Mapping[str, Shape]]

    @abstractmethod
    def forms(self, shape: Shape, world: int) -> dict[str, Form]:
        """Returns its forms, by the name of their schedule and fitted to a shape; `UNFUSED` is the first."""

    @abstractmethod
    def inputs(self, shape: Shape, world: int, dtype: torch.dtype) -> list[Tensors]:
        """Returns random inputs of each rank, the same in every call."""

    @abstractmethod
    def call(self, form: Form, inputs: Tensors, group: Any, shape: Shape) -> torch.Tensor:
        """Computes the operator on the rank of `group`."""

    @abstractmethod
    def reference(self, inputs: list[Tensors], shape: Shape) -> list[torch.Tensor]:
        """Returns the right result of each rank, computed in float64 from the rounded inputs."""


class AllGatherMatmul(Operator):
    """A column-parallel projection: the rows of x of all ranks, times each rank's own weight, or several weights."""

    program = all_gather_matmul
    baseline = (
        f"unfused: all_gather on {MOVING} workers of each rank (no more than the fused form, as a link and not the "
        f"workers bounds a collective), then matmul on all {WORKERS}, of several weights side by side"
    )
    layers: ClassVar[Mapping[str, Shape]] = {
        "gate_up": {"M": 512, "N": 7168, "K": 4096},
        "qkv": {"M": 512, "N": 1536, "K": 4096},
    }

    def forms(self, shape: Shape, world: int) -> dict[str, Form]:
        gather, tile = {"count": MOVING}, {"tile": TILE}
        fitted = partial(_fitted, shape=shape, world=world)
        return {
            UNFUSED: (fitted(all_gather, "pull", gather=gather), fitted(matmul, "gemm", multiply=tile)),
            **{n: (fitted(all_gather_matmul, n, gather=gather, matmul=tile),) for n in ("push", "pull", "multicast")},
            "engine": (fitted(all_gather_matmul, "engine", matmul=tile),),
        }

    def inputs(self, shape: Shape, world: int, dtype: torch.dtype) -> list[Tensors]:
        tensor, n, k = _random(dtype), shape["N"], shape["K"]
        assert isinstance(k, int), "only M is cut"
        columns = (n,) if isinstance(n, int) else tuple(n)
        return [(tensor(m, k), *(tensor(c, k).T for c in columns)) for m in _lengths(shape["M"], world)]

    def call(self, form: Form, inputs: Tensors, group: Any, shape: Shape) -> torch.Tensor:
        x, *weights = inputs
        parts = {"M": _lengths(shape["M"], group.world)}
        first, *second = form
        if not second:
            columns = [w.shape[1] for w in weights]
            out = x.new_empty(sum(parts["M"]), sum(columns))  # complete when the rank is, like every result
            outs = out.split(columns, 1)
            first.program(x, weights, outs, schedule=first.schedule, group=group, parts=parts)
            return out
        full = first.program(x, schedule=first.schedule, group=group, parts=parts)
        return second[0].program(full, _beside(weights), schedule=second[0].schedule, group=group)

    def reference(self, inputs: list[Tensors], shape: Shape) -> list[torch.Tensor]:
        ranks = [{"x": x.double(), "weight": [w.double() for w in weights]} for x, *weights in inputs]
        return [torch.cat(of["out"], 1) for of in REFERENCES[self.program](ranks, _lengths(shape["M"], len(inputs)))]


class Reduction(Operator):
    """A row-parallel projection: each rank has a part of K, and the partial sums are added up. K: on one rank."""

    layers: ClassVar[Mapping[str, Shape]] = {
        "o_proj": {"M": 128, "N": 4096, "K": 1024},
        "down": {"M": 128, "N": 4096, "K": 3584},
    }

    def inputs(self, shape: Shape, world: int, dtype: torch.dtype) -> list[Tensors]:
        tensor, m, n, k = _random(dtype), sum(_lengths(shape["M"], world)), shape["N"], shape["K"]
        assert isinstance(n, int) and isinstance(k, int), "only M is cut"
        return [(tensor(m, k), tensor(n, k).T) for _ in range(world)]

    def call(self, form: Form, inputs: Tensors, group: Any, shape: Shape) -> torch.Tensor:
        made = inputs
        for step in form:
            parts = {d: _lengths(shape[d], group.world) for d in cut_dims(step.program)}
            made = (step.program(*made, schedule=step.schedule, group=group, parts=parts),)
        return made[0]

    def reference(self, inputs: list[Tensors], shape: Shape) -> list[torch.Tensor]:
        ranks = [{"x": x.double(), "weight": weight.double()} for x, weight in inputs]
        return [of["out"] for of in REFERENCES[self.program](ranks, _lengths(shape["M"], len(inputs)))]


class MatmulReduceScatter(Reduction):
    """Every rank gets its rows of the sum."""

    program = matmul_reduce_scatter
    baseline = (
        f"unfused: matmul on all {WORKERS} workers of each rank, then reduce_scatter, of which {MOVING} workers fetch "
        "(no more than send in the fused forms), and the others add up"
    )

    def forms(self, shape: Shape, world: int) -> dict[str, Form]:
        few, tile = {"count": MOVING}, {"tile": SUM_TILE}
        fitted = partial(_fitted, shape=shape, world=world)
        return {
            UNFUSED: (fitted(matmul, "gemm", multiply=tile), fitted(reduce_scatter, "pull", fetch=few)),
            "fused": (fitted(matmul_reduce_scatter, "fused", matmul=tile),),
            **{n: (fitted(matmul_reduce_scatter, n, matmul=tile, send=few),) for n in ("push", "pull")},
            "engine": (fitted(matmul_reduce_scatter, "engine", matmul=tile),),
            "ring": (fitted(matmul_ring_reduce_scatter, "ringed", matmul=tile, ring=few | {"tile": (128, 256, 128)}),),
        }


class MatmulAllReduce(Reduction):
    """Every rank gets the whole sum."""

    program = matmul_all_reduce
    baseline = (
        f"unfused: matmul on all {WORKERS} workers of each rank, then all_reduce in two shots, of which {MOVING} "
        f"workers fetch (no more than send in the fused forms), {MOVING} add up and share, and the others take"
    )

    def forms(self, shape: Shape, world: int) -> dict[str, Form]:
        few, tile = {"count": MOVING}, {"tile": SUM_TILE}
        fitted = partial(_fitted, shape=shape, world=world)
        return {
            UNFUSED: (fitted(matmul, "gemm", multiply=tile), fitted(all_reduce, "pull", fetch=few, share=few)),
            **{n: (fitted(matmul_all_reduce, n, matmul=tile, share=few),) for n in ("fused", "multicast")},
            "fabric": (fitted(matmul_fabric_all_reduce, "multicast", matmul=tile, share=few),),
            "one_shot": (fitted(matmul_one_shot_all_reduce, "fused", matmul=tile, reduce={"tile": (32, 256)}),),
        }


def _fitted(program: Program, name: str, shape: Shape, world: int, **changes: dict[str, Any]) -> Step:
    """Returns a program in one of its schedules, with changes, and in tiles that fit a shape."""
    schedule = program.schedule(name).changed(**changes)
    return Step(program, program.fit(schedule, world=world, **_at(program, shape)))


def _random(dtype: torch.dtype) -> Callable[[int, int], torch.Tensor]:
    """Returns a function that makes random matrices, the same ones in every run."""
    random = torch.Generator().manual_seed(0)
    return lambda rows, cols: torch.randn(rows, cols, generator=random).to(dtype)


def _beside(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the weights side by side in one matrix, with contiguous columns as in each weight."""
    return weights[0] if len(weights) == 1 else torch.cat([w.T for w in weights]).T


def _at(program: Program, shape: Shape) -> dict[str, Any]:
    """Returns the sizes of a program's dimensions; uneven parts and several sizes are summed where it has one size."""
    whole = cut_dims(program) | own_dims(program.declared)
    dims = {d for t in program.recorded().tensors for d in t.dims}
    return {d: n if d in whole or isinstance(n, int) else sum(n) for d, n in shape.items() if d in dims}


def cut_dims(program: Program) -> frozenset[str]:
    """Returns the dimensions of inputs and outputs that a program cuts over the ranks."""
    tensors = (t for t in program.recorded().tensors if t.kind != "buffer")
    return frozenset(t.dims[t.sharded] for t in tensors if t.sharded is not None)


def _lengths(size: int | Sequence[int], world: int) -> tuple[int, ...]:
    """Returns the length of each rank's part of a dimension that is cut."""
    return even_parts(size, world) if isinstance(size, int) else tuple(size)


OPERATORS: dict[str, Operator] = {
    "all_gather_matmul": AllGatherMatmul(),
    "matmul_reduce_scatter": MatmulReduceScatter(),
    "matmul_all_reduce": MatmulAllReduce(),
}
