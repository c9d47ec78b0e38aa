"""Orders: in which order workers walk the tiles of a role."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from tilelink.errors import ScheduleError, Site, public, public_class, similar
from tilelink.frontend.arithmetic import evaluate, to_text
from tilelink.frontend.expressions import RANK, WORLD, Expr, own, without_fractions
from tilelink.frontend.kept import kept

STEP = own("step")
PartOrder = Callable[[Any, Any, Any], Any]


def natural(number: Any) -> bool:
    """Whether it is an integer of at least 1 that kernels can count to."""
    return isinstance(number, SupportsIndex) and not isinstance(number, bool) and 1 <= index(number) < 1 << 31


@public_class
@dataclass(frozen=True, repr=False)
class Order:
    """The order in which a worker set walks the tiles of a role. The library has four, counted modulo the world:
    `tk.own_rank_first`: rank, rank + 1, ...
    `tk.next_rank_first`: rank + 1, rank + 2, ..., and the own rank last.
    `tk.ring`: rank, rank - 1, ...
    `tk.across_parts`: tiles go across the parts of ranks, from the first row to the last.

    `parts(step, rank, world)` returns the rank whose part (or the value of whose rank axis) `rank` walks at `step`. It
    must be a permutation of 0..world-1 for each rank. It must use integer arithmetic, because TileLink prints it into
    the kernel. None: tiles don't end where a part ends, and are walked from the first row to the last.
    `group`: the tiles of the last two dimensions are walked in groups of this many rows, column by column inside a
    group (1: row by row). The tiles of a group share data in the cache.
    `columns`: this many tiles along the last dimension are walked for all ranks, experts and rows before the next ones
    (0: rank by rank).
    `by_rank`: over the rows of a route, all experts are walked for one rank before the next rank (False: expert by
    expert). Over everything else ranks come first anyway.
    """

    name: str
    parts: PartOrder | None
    group: int = 1
    columns: int = 0
    by_rank: bool = False

    def __post_init__(self) -> None:
        if not callable(self.parts) and self.parts is not None:
            raise ScheduleError(
                f"{self.parts!r} as an order: it is a function (step, rank, world) -> part", Site.of_user()
            )
        if not natural(self.group):
            raise ScheduleError(f"a group of {self.group!r} rows: it must be at least 1", Site.of_user())

    def part_at(self, step: Expr, rank: Expr = RANK, world: Expr = WORLD) -> Expr:
        """The symbolic part at a step."""
        assert self.parts is not None, "tiles that go across parts walk no part"
        return without_fractions(self.parts(step, rank, world))

    def check(self, world: int, site: Site | None) -> None:
        """Raises ScheduleError if the order is not a permutation for each rank of this world, or if the printed
        arithmetic gives other values than the function."""
        if problem := _problem(self, world):
            raise ScheduleError(f"order {self.name} {problem}", site)

    def __str__(self) -> str:
        name = f"ranks_first({self.name})" if self.by_rank else self.name
        if self.columns:
            return f"columns_first({self.columns}, {name})"
        return name if self.group == 1 else f"grouped({self.group}, {name})"

    def __repr__(self) -> str:
        """As the user writes it, if it is one of ours: "tk.grouped(8, tk.ring)"."""
        ours = LIBRARY.get(self.name)
        if ours is None or ours.parts is not self.parts:
            return str(self)
        return re.sub(r"[a-z_]+", r"tk.\g<0>", str(self))


@kept()
def _problem(order: Order, world: int) -> str | None:
    """The mistake of an order in a world of this size, or None."""
    if order.parts is None:
        return None
    for rank in range(world):
        try:
            walked = [order.parts(step, rank, world) for step in range(world)]
            part = order.part_at(STEP)
        except (TypeError, ValueError, ArithmeticError) as e:
            return f"fails on rank {rank} of {world}: {e}"
        walks = f"walks the parts {walked} on rank {rank} of {world}"
        if not all(isinstance(p, SupportsIndex) for p in walked) or sorted(walked) != list(range(world)):
            return f"{walks}; it must be a permutation of 0..{world - 1}"
        if (evaluate(part, {STEP.name: np.arange(world), RANK.name: rank, WORLD.name: world}) != walked).any():
            printed = to_text(part)
            return f"{walks}, but in the kernel it is {printed}: a kernel can't take a branch of Python"
    return None


own_rank_first = Order("own_rank_first", lambda step, rank, world: (rank + step) % world)
next_rank_first = Order("next_rank_first", lambda step, rank, world: (rank + step + 1) % world)
ring = Order("ring", lambda step, rank, world: (rank - step) % world)
across_parts = Order("across_parts", None)
"""Tiles go over the boundaries of parts, from the first row of all ranks to the last, so a tile has no home. It is for
few rows a rank: together they fill a tile, and a block of a weight is read once for all ranks."""
LIBRARY = {o.name: o for o in (own_rank_first, next_rank_first, ring, across_parts)}


@public
def order(parts: PartOrder, *, group: int = 1) -> Order:
    """An order from a function `(step, rank, world) -> part`; see `Order`. Can be used as a decorator."""
    return Order(getattr(parts, "__name__", "order"), parts, group)


def check_order(given: Any, site: Site) -> None:
    """Raises ScheduleError for what is no order."""
    if isinstance(given, str):
        named = {o.name: o for o in (own_rank_first, next_rank_first, ring)}
        said = f"write tk.{given}" if given in named else f"ours are {', '.join(f'tk.{n}' for n in named)}"
        raise ScheduleError(f"order {given!r}: an order is an object, not a name; {said}{similar(given, named)}", site)
    if not isinstance(given, Order):
        raise ScheduleError(f"order {given!r}: make an order of a function by tk.order(function)", site)


@public
def grouped(group: int, parts: Order = own_rank_first) -> Order:
    """The order `parts`, with the tiles of each part (across parts: all tiles) walked in groups of `group` rows."""
    check_order(parts, Site.of_user())
    return replace(parts, group=group)


@public
def columns_first(columns: int, parts: Order = own_rank_first) -> Order:
    """The order `parts`, with `columns` tiles of columns of all ranks, experts and rows before the next columns. The
    first columns of all rows are thus made early (COMET, arXiv 2502.19811, section 3)."""
    check_order(parts, Site.of_user())
    if not natural(columns):
        raise ScheduleError(f"{columns!r} columns at a time: it must be at least 1", Site.of_user())
    return replace(parts, columns=columns, group=1)


@public
def ranks_first(parts: Order = own_rank_first) -> Order:
    """The order `parts` over a route, with the rows of one rank for all experts before the rows of the next rank. A
    role over experts takes a tile with the last rank that has rows in it. It thus makes tiles whose rows are here while
    rows of other ranks travel (COMET, arXiv 2502.19811, section 3)."""
    check_order(parts, Site.of_user())
    return replace(parts, by_rank=True)
