"""Cases that the harness runs, and how flags become cases. Flags are checked before anything is launched."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path

from bench.check import LIMITS
from bench.operators import OPERATORS, Form, Shape, Step, cut_dims
from tilelink.errors import DtypeError
from tilelink.frontend.sizes import check_world
from tilelink.language import own_dims
from tilelink.tools.cli.command import UsageError
from tilelink.tools.cli.program import shape_text

LAYERS: dict[str, Shape] = {name: shape for operator in OPERATORS.values() for name, shape in operator.layers.items()}
"""Projections of Llama-3-8B at tensor parallel 4, for all operators together."""

QUICK: Shape = {"M": 512, "N": 1536, "K": 1024}
"""A shape for a quick run: it has the tiles of qkv, and a quarter of its k steps."""


@dataclass(frozen=True)
class Case:
    """One form of an operator at one shape. `seeds`: of the scheduler, one a run. `work`: tiles and workers, a text."""

    op: str
    shape: tuple[tuple[str, int | tuple[int, ...]], ...]
    dtype: str
    world: int
    schedule: str
    seeds: tuple[int, ...]
    work: str
    out: Path

    @property
    def sizes(self) -> Shape:
        return dict(self.shape)

    @property
    def shape_text(self) -> str:
        return shape_text(self.sizes)

    @property
    def layer(self) -> str | None:
        """The name of the shape, if it has one."""
        return next((name for name, shape in OPERATORS[self.op].layers.items() if shape == self.sizes), None)

    @property
    def name(self) -> str:
        """The name of the case in texts and file names."""
        shape = self.layer or self.shape_text.replace(",", "_").replace("=", "")
        return f"{self.op}-{self.schedule}-{shape}-world{self.world}-{self.dtype}"

    @property
    def form(self) -> Form:
        return OPERATORS[self.op].forms(self.sizes, self.world)[self.schedule]

    @property
    def cost(self) -> int:
        """The cost of the case relative to other cases."""
        return self.world * prod(n if isinstance(n, int) else sum(n) for _, n in self.shape)


def plan(
    ops: Sequence[str],
    shapes: Sequence[Shape | str],
    worlds: Sequence[int],
    dtypes: Sequence[str],
    seeds: Sequence[int],
    out: Path,
) -> list[Case]:
    """Returns all cases that flags ask for; a layer's name stands for cases of operators with this layer. Raises
    UsageError, WorldError, DtypeError, and errors of shapes."""
    cases = []
    for op, world, dtype, given in product(ops, worlds, dtypes, shapes):
        check_known(op, OPERATORS)
        check_dtype(dtype)
        layers = OPERATORS[op].layers
        if isinstance(given, str) and given not in layers:
            continue
        shape = layers[given] if isinstance(given, str) else given
        _check(op, shape, world)
        for schedule, form in OPERATORS[op].forms(shape, world).items():
            work = "; then ".join(_work(step, shape, world, dtype) for step in form)
            fixed = tuple((d, n if isinstance(n, int) else tuple(n)) for d, n in shape.items())
            cases.append(Case(op, fixed, dtype, world, schedule, tuple(seeds), work, out))
    if not cases:
        raise UsageError(f"{' and '.join(ops) or 'no operator'} has no layer {', '.join(map(str, shapes))}")
    return cases


def check_known(op: str, known: Collection[str]) -> None:
    """Raises UsageError for an operator that is not `known`."""
    if op not in known:
        raise UsageError(f"there is no operator {op} to measure; there is {', '.join(known)}")


def check_dtype(dtype: str) -> None:
    """Raises DtypeError for a dtype without a limit for results."""
    if dtype not in LIMITS:
        raise DtypeError(f"there is no limit for results in {dtype}; there is one for {', '.join(LIMITS)}")


def _check(op: str, shape: Shape, world: int) -> None:
    dims, program = OPERATORS[op].dims, OPERATORS[op].program
    cut = cut_dims(program)
    if set(shape) != set(dims):
        raise UsageError(f"{op} has the dimensions {', '.join(dims)}, not {', '.join(shape)}")
    for d, n in shape.items():
        if not isinstance(n, int) and d not in cut | own_dims(program.declared):
            raise UsageError(f"{op} does not cut {d} over the ranks, but {', '.join(cut)}: {d} has one size")
    if not all(n > 0 if isinstance(n, int) else sum(n) > 0 for n in shape.values()):
        raise UsageError(f"{shape_text(shape)} is empty: there is nothing to measure")
    check_world(world)


def _work(step: Step, shape: Shape, world: int, dtype: str) -> str:
    """Returns the tiles and workers of each role on a rank, as text."""
    parts = []
    events = step.events(shape, world, dtype)
    for role in events.program.roles:
        tile = "x".join(str(n or "whole") for n in role.resource.tile)
        allotted = events.allotment[role.name]
        agents = "streams of the copy engine" if role in events.program.on_engine else "workers"
        parts.append(f"{role.name}: {allotted.tiles} tiles of {tile} on {allotted.workers} {agents}")
    return ", ".join(parts)
