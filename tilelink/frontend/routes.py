"""Rows that are routed to experts: how many go where, and where they lie on both sides.

A rank has `E` experts. The rows that have one expert and one source are a segment. At the homes of the experts segments
are in the order (home, expert, source), at the sources in the order (source, home, expert).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, SupportsIndex

import numpy as np

from tilelink.errors import DimensionError, Site
from tilelink.frontend.expressions import WORLD, Expr, begin_of, symbol
from tilelink.language import RouteWord

SEGMENT, EXPERT = "segment", "expert"
"""The pieces of the rows of a route; the latter is also what the axis of a tile space is called that goes through the
experts of a rank."""


@dataclass(frozen=True)
class Segment:
    """What rows have in common: their expert, `expert` of rank `home`, and the rank they come from, None where they
    come from several."""

    route: RouteWord
    home: Expr
    expert: Expr
    source: Expr | None

    def number(self, dim: str) -> Expr:
        """The number of the segment along one side of the route; of the expert's first, where it has no source."""
        experts, source = symbol(self.route.per_rank), 0 if self.source is None else self.source
        if dim == self.route.rows:
            return (self.home * experts + self.expert) * WORLD + source
        assert self.source is not None, "at the sources the rows of an expert are no piece"
        return (source * WORLD + self.home) * experts + self.expert

    def bounds(self, dim: str) -> tuple[Expr, Expr]:
        """Where its rows begin and end along a side of the route."""
        first = self.number(dim)
        return begin_of(symbol(dim), first), begin_of(symbol(dim), first + (WORLD if self.source is None else 1))


def segments_of_rank(route: RouteWord) -> Expr:
    """How many segments a rank has, on either side."""
    return WORLD * symbol(route.per_rank)


@dataclass(frozen=True)
class Routing:
    """How many rows each expert gets from each source: `counts[home * experts + expert][source]`."""

    counts: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, given: Any, route: RouteWord, world: int, experts: Any, site: Site) -> Routing:
        """From counts as nested sequences (an array, a tensor), for each expert of all ranks one a source, or one after
        the other; or from the number of all rows, which are dealt out evenly. Raises DimensionError."""
        if not isinstance(experts, int) or isinstance(experts, bool) or experts < 1:
            raise DimensionError(f"{route.per_rank} is {experts!r}: a rank has one expert or more", site)
        given = given.tolist() if hasattr(given, "tolist") else given
        if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
            return cls.even(given, world, experts)
        table = given
        if isinstance(given, Sequence) and len(given) == world * experts * world and all(map(_is_count, given)):
            table = [given[first : first + world] for first in range(0, len(given), world)]
        if problem := _wrong(table, world, world * experts):
            raise DimensionError(
                f"{route.rows}: {problem}; needed are counts[expert][source], rows of each of the {world * experts} "
                f"experts ({experts} of each of {world} ranks, as {route.per_rank} says) from each of {world} sources; "
                "or a number of rows",
                site,
            )
        return cls(tuple(tuple(map(int, row)) for row in table))

    @classmethod
    def even(cls, rows: int, world: int, experts: int) -> Routing:
        """Rows dealt out evenly: all segments have as many, or one row more."""
        segments = world * experts * world
        ends = [rows * (k + 1) // segments for k in range(segments)]
        lengths = np.diff([0, *ends]).reshape(world * experts, world)
        return cls(tuple(map(tuple, lengths.tolist())))

    @property
    def array(self) -> np.ndarray:
        """(experts of all ranks, sources)"""
        return np.array(self.counts, np.int64)

    def parts(self, route: RouteWord) -> dict[str, tuple[int, ...]]:
        """How many rows each rank has on both sides."""
        world = self.array.shape[1]
        homes = self.array.reshape(world, -1).sum(1)
        return {route.sent: tuple(self.array.sum(0).tolist()), route.rows: tuple(homes.tolist())}

    def values(self, route: RouteWord) -> dict[str, Any]:
        """Values of what the tile program calls the tables and the largest pieces of both sides."""
        made: dict[str, Any] = {}
        for dim, lengths in ((route.rows, self.array), (route.sent, self.array.T)):
            made[f"{dim}_segments"] = np.array([0, *accumulate(lengths.ravel().tolist())], np.int64)
            made[f"{dim}_{SEGMENT}"] = int(self.array.max())
            made[f"{dim}_{EXPERT}"] = int(self.array.sum(1).max())
        return made


def _is_count(n: Any) -> bool:
    return isinstance(n, SupportsIndex) and not isinstance(n, bool) and operator.index(n) >= 0


def _wrong(table: Any, world: int, experts: int) -> str:
    """What is wrong with counts, "" if nothing."""
    if not isinstance(table, Sequence) or isinstance(table, str):
        return f"{table!r} is no table of counts"
    for e, row in enumerate(table):
        if not isinstance(row, Sequence) or isinstance(row, str):
            return f"counts[{e}] is {row!r}, no row of counts"
        if len(table) == experts and len(row) != world:
            return f"counts[{e}] has {len(row)} entries"
        for s, n in enumerate(row):
            if not _is_count(n):
                return f"counts[{e}][{s}] is {n!r}"
    turned = ", which is the table with sources first" if {len(row) for row in table} == {experts} else ""
    return "" if len(table) == experts else f"counts of {len(table)} experts{turned}"
