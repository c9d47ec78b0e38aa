"""What mutants are made of: every program of the library and of the examples, with each of its schedules, small."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

import tilelink as tk
from tilelink.frontend.ir import TileProgram
from tilelink.frontend.schedule import CopyEngine, Epilogue, Schedule
from tilelink.frontend.sizes import Sizes, even_parts
from tilelink.frontend.values import dtype_name
from tilelink.kernels import operators
from tilelink.language import RANKS_DIM
from tilelink.programs.program import Program

EXAMPLES = Path(__file__).parents[3] / "examples"
FURTHER = ("tests.programs.ring_attention:ring_attention", "tests.programs.gathered:lower_rows")
"""Programs of the tests that use words which no operator uses (claim, release), or notify in vain."""
OWN_SCHEDULES = {"ring_attention": tk.Schedule(pass_on=tk.SMs(2, tile=(16, 16)), attend=tk.SMs(2, tile=(16, 16, 16)))}
"""Of programs that have none beside them."""
PICKED = (-1, 10)
"""Bounds of integers that pick rows: every rank has as many rows."""
FIXED = ("ring_attention",)
"""Of more tiles than it has workers, this can't go on."""
TILE, WORKERS, SMS = 16, 2, 8
SIZE = {"M": 40, "S": 40, "K": 24, "N": 20, "B": 2, "H": 2}
"""Of dimensions; 20 where nothing is said. Nothing divides by the tile."""


@dataclass(frozen=True)
class Subject:
    """A program at small sizes. `size`: of dimensions, the lengths of the ranks' parts, or a route's counts of rows;
    `dtypes` by parameter; `without`: optional inputs that are left out."""

    module: str
    name: str
    schedule: str
    world: int = 2
    per_node: int | None = None
    size: Mapping[str, Any] = field(default_factory=dict, hash=False)
    dtypes: Mapping[str, str] = field(default_factory=dict, hash=False)
    without: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.name} {self.schedule}"

    @property
    def program(self) -> Program:
        return getattr(importlib.import_module(self.module), self.name)

    @property
    def larger(self) -> Subject:
        """The same with other sizes, of which the same is true: what divides still does, what is empty still is, and
        what a tile holds as a whole is as long as before."""

        def grown(n: Any) -> Any:
            if isinstance(n, tuple):
                return tuple(map(grown, n))
            return n + TILE if n >= TILE else n + (n > 0)

        sizes = self.sizes(self.program)
        whole = {d for r in self.in_tiles(self.program).values() for d, _ in getattr(r, "whole", ())}
        fixed = whole | {route.per_rank for route in self.program.recorded().routes}
        size = {d: n if d in fixed else grown(n) for d, n in sizes.items()}
        return self if self.name in FIXED else replace(self, size=size)

    @property
    def asking(self) -> Subject:
        """The same with all optional outputs asked for."""
        return replace(self, dtypes={**dict.fromkeys(self.program.on_demand, "float32"), **self.dtypes})

    @property
    def sms(self) -> int:
        """Of a rank; some are left for roles without a count."""
        counted = [r for r in self.in_tiles(self.program).values() if getattr(r, "count", None) is not None]
        return max(SMS, WORKERS * (len(counted) + 1))

    def in_tiles(self, program: Program) -> Schedule:
        """The schedule of this name, of this version of the program, in small tiles on few workers."""
        chosen = OWN_SCHEDULES.get(self.schedule) or program.schedule(self.schedule)
        return chosen.changed(**{role: _small(resource) for role, resource in chosen.items()})

    def types(self, program: Program) -> dict[str, str]:
        """The dtypes of all parameters but optional outputs that are not asked for."""
        there = self.dtypes.keys() | (program.parameters.keys() - program.on_demand - self.without)
        usual = dict.fromkeys((route.counts for route in program.recorded().routes), "int32")
        usual |= {n: dtype_name(p.dtype) for n, p in program.parameters.items() if p.dtype is not None}
        usual |= self.dtypes
        return {name: usual.get(name, "float32") for name in program.parameters if name in there}

    def bound(self, program: Program) -> TileProgram:
        """This version of the program, in small tiles."""
        return program.bind(self.in_tiles(program), self.types(program), self.without)

    def sizes(self, program: Program) -> dict[str, Any]:
        """By dimension: a number, the lengths of the parts, or a route's counts of rows."""
        declared = program.parameters.values()
        dims = program.recorded().dims - {RANKS_DIM, *(route.sent for route in program.recorded().routes)}
        cut = {p.dims[p.sharded] for p in declared if p.sharded is not None}
        sizes = {d: self.size.get(d, SIZE.get(d, 20)) for d in sorted(dims)}
        return {d: even_parts(n, self.world) if d in cut and isinstance(n, int) else n for d, n in sizes.items()}

    def parts(self, program: Program) -> dict[str, Any]:
        """What a call is told of the lengths of parts."""
        bound = self.bound(program)
        said = Sizes.of(bound, self.world, self.sizes(program)).said
        return {d: n for d, n in said.items() if d in bound.routed or isinstance(self.sizes(program)[d], tuple)}

    def operands(self, program: Program, rank: int) -> dict[str, torch.Tensor]:
        """Small integers, of which every sum is exact. Outputs are not among them."""
        made = {}
        bound = self.bound(program)
        exact = Sizes.of(bound, self.world, self.sizes(program))
        whole = {"ranks": self.world, **dict(exact.dims)}
        for n, tensor in enumerate(bound.inputs):
            shape = [exact.lengths(d)[rank] if k == tensor.sharded else whole[d] for k, d in enumerate(tensor.dims)]
            generator = torch.Generator().manual_seed(100 * rank + n)
            least, most = PICKED if program.parameters[tensor.name].dtype else (-3, 4)
            numbers = torch.randint(least, most, shape, generator=generator)
            numbers = torch.tensor(exact.counts[tensor.name]) if tensor.name in exact.counts else numbers
            made[tensor.name] = numbers.to(getattr(torch, tensor.dtype))
        return made


def _small(resource: Any) -> dict[str, Any]:
    if isinstance(resource, Epilogue):
        return {}
    tile = tuple(t if t is None or t == 1 else TILE for t in resource.tile)
    if isinstance(resource, CopyEngine):
        return {"tile": tile}
    whole = dict.fromkeys(dict(resource.whole), 32)
    count = {"count": WORKERS} if resource.count is not None else {"wave": 1} if resource.wave else {}
    return {"tile": tile, **count, **({"whole": whole} if whole else {}), "warps": 4}


UNEVEN: dict[str, Any] = {"world": 3, "size": {"M": (5, 0, 20)}}
ROUTED: dict[str, Any] = {"size": {"routed": ((5, 0), (17, 3), (0, 0), (16, 20)), "experts": 2}}
"""Rows of each expert from each source: of none, of less than a tile, of a tile, of more."""
BIASED: dict[str, Any] = {"dtypes": {"dbias": "float32"}}
SPECIAL: dict[str, dict[str, Any]] = {
    "all_gather": UNEVEN,
    "all_gather_grouped_matmul": ROUTED,
    "all_gather_grouped_matmul engine": {**ROUTED, "without": frozenset(["wanted"])},
    "all_gather_grouped_matmul multicast": {**ROUTED, "without": frozenset(["wanted"])},
    "all_gather_matmul push": UNEVEN,
    "all_gather_matmul pull": {"size": {"M": (20, 20)}},
    "all_gather_matmul multicast": {"world": 3, "size": {"M": (16, 16, 16)}},
    "all_gather_matmul engine": {"size": {"M": (33, 7)}},
    "all_gather_matmul_backward": BIASED,
    "combine": ROUTED,
    "dispatch": ROUTED,
    "dispatch_matmul": ROUTED,
    "dispatch_matmul_backward": ROUTED,
    "expert_weight_gradient": ROUTED,
    "grouped_matmul_reduce_scatter": ROUTED,
    "gathered_attention": {"size": {"S": (20, 13)}},
    "hierarchical_all_gather_matmul": {"world": 4, "per_node": 2, "size": {"M": (17, 3, 0, 9), "K": 16, "N": 16}},
    "lower_rows": {"size": {"M": (20, 20)}},
    "matmul_all_to_all": {"size": {"M": (20, 13), "N": (16, 7)}},
    "matmul_combine": ROUTED,
    "matmul_combine_backward": ROUTED,
    "matmul_reduce_scatter push": UNEVEN,
    "matmul_reduce_scatter": {"size": {"M": (20, 13)}},
    "matmul_reduce_scatter_backward": BIASED,
    "matmul_ring_reduce_scatter": {"world": 3, "size": {"M": (5, 16, 20)}},
    "mixture_of_experts": ROUTED,
    "ring_attention": {"world": 4, "size": {"Q": 20, "T": 20, "D": 16}},
    "scaled_matmul": {"size": {"M": (20, 13)}, "dtypes": {"x": "int8", "scale": "float32", "weight": "int8",
                                                          "weight_scale": "float32", "out": "float32"}},
}  # fmt: skip
"""What is not by default: by program, or by program and schedule."""


@cache
def subjects() -> tuple[Subject, ...]:
    """Every program with every schedule that stands beside it."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    programs = [(p.function.__module__, p) for p in operators().values()]
    for file in sorted(EXAMPLES.glob("*.py")):
        found = vars(importlib.import_module(file.stem))
        programs += [(file.stem, p) for p in found.values() if isinstance(p, Program) and p.file == str(file)]
    for target in FURTHER:
        module, _, name = target.partition(":")
        programs.append((module, getattr(importlib.import_module(module), name)))
    made = []
    for module, program in programs:
        for schedule in program.schedules or (program.name,):
            special = SPECIAL.get(f"{program.name} {schedule}", SPECIAL.get(program.name, {}))
            made.append(Subject(module, program.name, schedule, **special))
    return tuple(made)


def named(name: str) -> Subject:
    """The subject that is written like this."""
    return next(s for s in subjects() if str(s) == name)
