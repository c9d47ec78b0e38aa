"""Rows that are routed to experts: how many go where, and where they lie on both sides.

A rank has `E` experts. The rows with one expert and one source are a segment. A rank's segments follow each other from
the beginning of its part. At the home of their experts their order is (expert, source), at their source it is (home,
expert). Behind the last segment the part is unused.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, SupportsIndex

import numpy as np
import sympy

from tilelink.errors import DimensionError, Site, counted
from tilelink.frontend.expressions import WORLD, Expr, begin_of, first_of, own, symbol
from tilelink.frontend.tables import ENTRY, ROW, Table
from tilelink.language import RouteWord

SEGMENT, EXPERT, PART = "segment", "expert", "part"
"""The kinds of pieces of a route's rows; PART is all rows that a rank has on a side. EXPERT is also the name of the
axis of a tile space that goes through the experts of a rank."""


def counts_of(route: RouteWord) -> sympy.Symbol:
    """The counts of a route as a table: for each expert of all ranks, a count for each source."""
    return own(f"counts.{route.counts}")


def segments(route: RouteWord, dim: str) -> Table:
    """The table that says where the segments of each rank begin, along a side of the route."""
    each = segments_of_rank(route)
    place = ROW * each + ENTRY if dim == route.rows else ENTRY * WORLD + ROW
    return Table(symbol(dim), each, begin_of(counts_of(route), place), first_of(symbol(dim), ROW))


@dataclass(frozen=True)
class Segment:
    """Rows with the same expert, number `expert` of rank `home`. `source`: the rank that they come from, None if they
    come from several."""

    route: RouteWord
    home: Expr
    expert: Expr
    source: Expr | None

    def bounds(self, dim: str) -> tuple[Expr, Expr]:
        """Where its rows begin and end along a side of the route."""
        table = segments(self.route, dim)
        if dim == self.route.rows:
            first = self.expert * WORLD + (0 if self.source is None else self.source)
            return table.begin(self.home, first), table.begin(self.home, first + (WORLD if self.source is None else 1))
        assert self.source is not None, "at the sources the rows of an expert are no piece"
        first = self.home * symbol(self.route.per_rank) + self.expert
        return table.begin(self.source, first), table.begin(self.source, first + 1)


def segments_of_rank(route: RouteWord) -> Expr:
    """How many segments a rank has, on either side."""
    return WORLD * symbol(route.per_rank)


def end_of_rows(route: RouteWord, dim: str, rank: Expr) -> Expr:
    """Where the rows of a rank end, along a side of the route."""
    return segments(route, dim).begin(rank, segments_of_rank(route))


@dataclass(frozen=True)
class Integers:
    """A row or a table of integers from 0 on: lengths of parts, or counts of rows. They may be given as a list, a
    tuple, an array or a tensor, and are compared and hashed by value. `data`: the integers, with 64 bits each."""

    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, given: Any) -> Integers | None:
        """The given integers; None for other values, negative integers, or rows of several lengths."""
        if isinstance(given, Integers | Routing):
            return given.table if isinstance(given, Routing) else given
        try:
            found = _integers(given)
        except (TypeError, ValueError, OverflowError):  # it can't be an array
            return None
        if found is None or not found.ndim or (found.size and int(found.min()) < 0):
            return None
        return cls.of_array(found)

    @classmethod
    def of_array(cls, array: np.ndarray) -> Integers:
        """The integers of an array, which must all be 0 or more."""
        return cls(array.shape, array.astype(np.int64).tobytes())

    @cached_property
    def array(self) -> np.ndarray:
        """The integers as a read-only array."""
        return np.frombuffer(self.data, np.int64).reshape(self.shape)

    @cached_property
    def plain(self) -> tuple[Any, ...]:
        """The integers as a tuple; a table as a tuple of tuples."""
        rows = self.array.tolist()
        return tuple(map(tuple, rows)) if len(self.shape) > 1 else tuple(rows)

    def __repr__(self) -> str:
        if len(self.data) <= 8 * PRINTED:
            return repr(self.plain)
        shape = " x ".join(map(str, self.shape))
        return f"{shape} counts, {self.array.sum()} in all (sha256 {hashlib.sha256(self.data).hexdigest()[:16]})"


MAX_ROWS = 2**30
"""The most rows that an expert gets from one source."""
PRINTED = 128
"""Up to this number, integers are printed. More are told apart by a digest."""


def _integers(given: Any) -> np.ndarray | None:
    """The integers of an array, a tensor or nested sequences; None for anything else, such as booleans."""
    if hasattr(given, "tolist"):
        array = np.asarray(given.cpu() if hasattr(given, "cpu") else given)
        return array.astype(np.int64) if array.dtype.kind in "iu" else None
    if not _is_row(given):
        return None
    nested = len(given) > 0 and _is_row(given[0])
    rows: Sequence[Any] = given if nested else [given]
    kinds = set(map(type, chain.from_iterable(rows)))
    if any(issubclass(k, bool | np.bool_) or not hasattr(k, "__index__") for k in kinds):
        return None
    if kinds - {int}:
        rows = [[operator.index(n) for n in row] for row in rows]
    return np.array(rows if nested else rows[0], np.int64)


def _is_row(given: Any) -> bool:
    return isinstance(given, list | tuple) or (isinstance(given, Sequence) and not isinstance(given, str))


@dataclass(frozen=True)
class Routing:
    """How many rows each expert gets from each source: `table`, (experts of all ranks, sources)."""

    table: Integers

    @classmethod
    def of(cls, given: Any, route: RouteWord, world: int, experts: Any, site: Site) -> Routing:
        """The routing that is given: counts (nested sequences, an array, a tensor) for each expert of all ranks and
        each source, in a table or a row; or the number of all rows, which are dealt out evenly. Raises
        DimensionError."""
        if not isinstance(experts, int) or isinstance(experts, bool) or experts < 1:
            raise DimensionError(f"{route.per_rank} is {experts!r}: a rank has one expert or more", site)
        shape = (world * experts, world)
        integers = Integers.of(given)
        if integers is not None and integers.shape in (shape, (world * experts * world,)):
            return cls(Integers(shape, integers.data))
        given = integers.plain if integers is not None else given.tolist() if hasattr(given, "tolist") else given
        if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
            return cls.even(given, world, experts)
        raise DimensionError(
            f"{route.rows}: {_wrong(given, world, world * experts)}; needed are counts[expert][source], rows of each "
            f"of the {world * experts} experts ({experts} of each of {world} ranks, as {route.per_rank} says) from "
            f"each of {world} sources; or a number of rows",
            site,
        )

    @classmethod
    def even(cls, rows: int, world: int, experts: int) -> Routing:
        """A routing of rows that are dealt out evenly: two segments differ by at most one row."""
        segments = world * experts * world
        ends = [rows * (k + 1) // segments for k in range(segments)]
        return cls(Integers.of_array(np.diff([0, *ends]).reshape(world * experts, world)))

    @property
    def array(self) -> np.ndarray:
        """The counts, of shape (experts of all ranks, sources)."""
        return self.table.array

    @property
    def counts(self) -> tuple[tuple[int, ...], ...]:
        """The counts as tuples: `counts[home * experts + expert][source]`."""
        return self.table.plain

    @cached_property
    def _sides(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """How many rows each rank sends, and how many it gets."""
        homes = self.array.reshape(self.array.shape[1], -1).sum(1)
        return tuple(self.array.sum(0).tolist()), tuple(homes.tolist())

    def parts(self, route: RouteWord) -> dict[str, tuple[int, ...]]:
        """How many rows each rank has on both sides."""
        return dict(zip(route.sides, self._sides, strict=True))

    def without_room(
        self, counts: str, rooms: Mapping[str, Sequence[int]], of_operators: bool = False, of_programs: bool = True
    ) -> str:
        """Why not all rows have room, or why a count is wrong; "" if all is well. `counts`: the name of the counts.
        `rooms`: the room of each rank, along the dimension of rows at their sources, then along the one at their homes.
        `of_operators`, `of_programs`: whether the user may have called an operator of experts, or a program."""
        table, world = self.array, self.array.shape[1]
        for e, s in np.argwhere((table < 0) | (table > MAX_ROWS)).tolist():
            said = f"{counts}[{e}, {s}] is {table[e, s]}: counts of rows are from 0 to {MAX_ROWS}"
            if table[e, s] >= 0 or not of_operators:
                return said
            wrong, are = ("1 entry", "is") if table[e, s] == -1 else (f"{-table[e, s]} entries", "are")
            every, in_program = len(table), f". In a call of a program: {said}" if of_programs else ""
            return (
                f"{wrong} of topk_idx of rank {s} {are} out of range: experts are 0 to {every - 1} (with slices=n, 0 "
                f"to {every} / n - 1), or -1 for none. With places=, an expert is out of range if the table gives it "
                f"no place, or one that the ranks do not have{in_program}"
            )
        by_home = table.reshape(world, -1, world).sum(2)
        for (dim, room), rows in zip(rooms.items(), (table.T, by_home), strict=True):
            for rank in np.flatnonzero(rows.sum(1) > np.array(room)).tolist():
                most = int(rows[rank].argmax())
                expert = most if rows is not by_home else most + rank * by_home.shape[1]
                needed = rows[rank].sum()
                by_capacity, by_parts = f"capacity={needed}", f"pass a longer tensor, or parts={{'{dim}': lengths}}"
                if of_operators and of_programs:
                    how = f"in operators of experts by {by_capacity}; in calls of programs {by_parts}"
                else:
                    how = by_capacity if of_operators else by_parts
                return (
                    f"rank {rank} has room for {counted(room[rank], 'row')}{f' of {dim}' if of_programs else ''} and "
                    f"gets {needed}; expert {expert} has the most, {rows[rank, most]}. No row was moved: give room for "
                    f"{needed}, {how}"
                )
        return ""

    def __repr__(self) -> str:
        return repr(self.table)


def _is_count(n: Any) -> bool:
    return isinstance(n, SupportsIndex) and not isinstance(n, bool) and 0 <= operator.index(n) < 1 << 63


def _wrong(table: Any, world: int, experts: int) -> str:
    """The mistake in counts that are no table of the right shape."""
    if not isinstance(table, Sequence) or isinstance(table, str):
        return f"{table!r} is no table of counts"
    for e, row in enumerate(table):
        if not isinstance(row, Sequence) or isinstance(row, str):
            return f"counts[{e}] is {row!r}, no row of counts"
        if len(table) == experts and len(row) != world:
            return f"counts[{e}] has {counted(len(row), 'entry', 'entries')}"
        for s, n in enumerate(row):
            if not _is_count(n):
                return f"counts[{e}][{s}] is {n!r}"
    turned = ", which is the table with sources first" if {len(row) for row in table} == {experts} else ""
    return f"counts of {counted(len(table), 'expert')}{turned}"
