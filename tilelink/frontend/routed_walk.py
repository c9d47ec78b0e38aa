"""The mapping f_S of a role over the rows of a route, or over its experts: the paper's dynamic mappings.

How many tiles a piece has (the rows of one expert from one source, or of one expert) is data. A running table says
where the tiles of each piece begin, in the order in which a worker goes through the pieces. A worker thus walks exactly
the tiles that exist, for any routing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy

from tilelink.errors import ScheduleError, Site
from tilelink.frontend.expressions import (
    RANK,
    WORLD,
    Expr,
    axis,
    ceil_div,
    floor_div,
    larger,
    modulo,
    natural,
    of_dim,
    own,
    smaller,
    symbol,
)
from tilelink.frontend.ir import Range, Walk
from tilelink.frontend.routes import EXPERT, Segment, segments
from tilelink.frontend.schedule import CopyEngine, SMs
from tilelink.frontend.tables import ENTRY, ROW, Table
from tilelink.frontend.walk import (
    NUMBER,
    TILE,
    Coordinates,
    axis_values,
    by_columns,
    columns_of,
    executor_of,
    indices_of,
    longest_part,
    part_at,
    rank_axes,
    tile_of,
    tile_sizes,
)
from tilelink.language import ExpertsWord, RouteWord, Space

TURN = own("turn")
"""The number of a piece, in the order in which a rank goes through the pieces."""


@dataclass(frozen=True)
class _Pieces:
    """The pieces that the executing ranks of a role go through, one a turn. `executor`: the axis of these ranks.
    `other`: the axis of the ranks at the other end of the rows. `t`: rows of a tile, None for all rows of a piece.

    A piece is the rows of an expert from or to one rank, or all rows of an expert. If ranks come first in a role over
    experts, a piece is the tiles of an expert that end with the rows of one source.
    """

    space: Space
    resource: SMs | CopyEngine
    executor: str
    other: str | None
    t: int | None
    site: Site

    @property
    def route(self) -> RouteWord:
        assert self.space.route is not None
        return self.space.route

    @property
    def by_source(self) -> bool:
        """Whether a piece is the tiles that end with the rows of one source."""
        return self.other is None and self.resource.order.by_rank

    @property
    def experts(self) -> Expr:
        return symbol(self.route.per_rank)

    @property
    def count(self) -> Expr:
        return self.experts if self.other is None and not self.by_source else self.experts * WORLD

    @property
    def room(self) -> Expr:
        """The most tiles of a rank."""
        pieces = self.experts if self.by_source else self.count
        return pieces + (0 if self.t is None else floor_div(longest_part(self.side), self.t))

    @property
    def side(self) -> str:
        """The dimension along which the executing ranks have the rows."""
        return self.route.sent if self.executor == "source" else self.route.rows

    def ranks(self, step: Expr, rank: Expr) -> Expr:
        """The other rank that `rank` comes to at a step."""
        return part_at(self.resource, step, rank, WORLD, self.site)

    def first(self, rank: Expr) -> Expr:
        """The other rank that `rank` comes to first."""
        found = self.ranks(sympy.S.Zero, rank)
        return rank if found == modulo(rank, WORLD) else found  # ranks are below WORLD

    def place(self, turn: Expr, rank: Expr) -> tuple[Expr, Expr]:
        """The expert and the other rank of the piece of a turn."""
        if self.resource.order.by_rank:
            return modulo(turn, self.experts), self.ranks(floor_div(turn, self.experts), rank)
        return floor_div(turn, WORLD), self.ranks(modulo(turn, WORLD), rank)

    def axes(self, turn: Expr, rank: Expr) -> dict[str, Expr]:
        """The values of a piece's axes."""
        if self.other is None:
            return {self.executor: rank, EXPERT: self.place(turn, rank)[0] if self.by_source else turn}
        expert, other = self.place(turn, rank)
        return {self.executor: rank, EXPERT: expert, self.other: other}

    def tiles(self, turn: Expr, rank: Expr) -> Expr:
        """How many tiles a piece has."""
        if self.by_source:
            expert, source = self.place(turn, rank)
            last = floor_div(source + 1, WORLD)  # 1 for the last source, whose last tile may be shorter
            return self.tiles_before(expert, rank, source + 1, last) - self.tiles_before(expert, rank, source)
        begin, end = _segment(self.space.routed, self.axes(turn, rank)).bounds(self.side)
        length = natural(end - begin)
        if self.t is not None:
            return ceil_div(length, self.t)
        # if a tile has all rows of an expert, an expert without rows has a tile, too
        return sympy.S.One if self.other is None else smaller(1, length)

    def tiles_before(self, expert: Expr, rank: Expr, source: Expr, shorter: Expr = sympy.S.Zero) -> Expr:
        """How many tiles of an expert end before the rows of `source` begin. `shorter`: 1 if the last of them may be
        less than a tile, else 0. A tile with rows of the first source that a rank comes to, and of sources before it,
        belongs to the latter: it is walked last."""
        assert self.t is not None
        first = self.first(rank)
        table = segments(self.route, self.route.rows)

        def rows_before(source: Expr) -> Expr:
            begins = table.begin(rank, expert * WORLD)
            return natural(table.begin(rank, expert * WORLD + source) - begins)

        rest = (self.t - 1) * shorter
        mixed = ceil_div(rows_before(first), self.t) * smaller(1, larger(0, source - first + 1))
        return larger(floor_div(rows_before(source) + rest, self.t), mixed)


def make_routed_walk(
    role: str, space: Space, resource: SMs | CopyEngine, site: Site, steps: bool
) -> tuple[Walk, dict[str, Expr]]:
    """`make_walk` over a route or its experts. Experts are outermost, and all ranks go through their experts together;
    or ranks are outermost, if the order has them first. Raises ScheduleError, TileSizeError."""
    route = space.route
    assert route is not None
    sizes = dict(zip(space.dims, tile_sizes(role, space, resource, site, steps), strict=True))
    ranks = {a: axis_values(word) for a, word in rank_axes(space, frozenset([route.rows])).items()}
    executor = executor_of(role, space, resource, tuple(ranks), site)
    assert executor is not None
    other = next((a for a in ranks if a != executor), None)
    t = sizes[route.rows]
    pieces = _Pieces(space, resource, executor, other, t, site)
    if pieces.by_source and t is None:
        raise ScheduleError(
            f"{role}: order={resource.order} goes through the tiles of an expert's rows, and its tile has all of them: "
            "give the rows of a tile",
            site,
        )
    table = Table(own(f"tiles.{role}"), pieces.count, pieces.tiles(ENTRY, ROW))
    axes = {executor: RANK} | {a: axis(a) for a in (EXPERT, other) if a is not None}
    counts = {d: of_dim(d, "tiles") for d, extent in sizes.items() if extent is not None}
    across = sympy.prod(n for d, n in counts.items() if d != route.rows)
    columns = columns_of(role, space, resource, site) if resource.order.columns else None
    begun = floor_div(NUMBER, across)
    if columns is not None:  # the tiles of all rows, for the first columns, then for the next ones
        begun, column = by_columns(table.begin(RANK, pieces.count), counts[columns], resource.order.columns)
    coordinates: Coordinates = [(TURN.name, table.find(RANK, begun))]
    first = table.begin(RANK, TURN)
    coordinates.append((TILE.name, natural(begun - first if columns else NUMBER - first * across)))
    coordinates += [(axis(a).name, value) for a, value in pieces.axes(TURN, RANK).items() if a != executor]
    if t is not None:
        coordinates.append((counts[route.rows].name, natural(table.begin(RANK, TURN + 1) - first)))
    indices = indices_of(TILE, list(counts.items()), resource.order.group)
    if columns is not None:
        indices = {route.rows: TILE, columns: column}
    more, ranges, sent = _ranges(space, sizes, indices, axes, pieces)
    walk = Walk(
        sizes=tuple((n.name, ceil_div(symbol(d), sizes[d])) for d, n in counts.items() if d != route.rows),
        count=table.begin(RANK, pieces.count) * across,
        axes=tuple((axis(a).name, pieces.experts if a == EXPERT else WORLD) for a in (EXPERT, other) if a is not None),
        coordinates=(*coordinates, *more),
        exists=sympy.true,
        ranges=ranges,
        sent=sent,
        expert=axis(EXPERT).name,
        homes=((route.rows, axes["home"]),),
        table=table,
        room=pieces.room * across,
    )
    return walk, axes


def _ranges(
    space: Space, sizes: Mapping[str, int | None], indices: Mapping[str, Expr], axes: dict[str, Expr], pieces: _Pieces
) -> tuple[Coordinates, tuple[Range, ...], Range | None]:
    """The coordinates of a tile, its ranges along its dimensions, and for a tile of a route, where its rows lie at
    their source."""
    coordinates: Coordinates = []
    ranges, sent = [], None
    segment = _segment(space.routed, axes)
    for d, extent in sizes.items():
        number = of_dim(d, "tile")
        if d != segment.route.rows:
            more, made = tile_of(d, sympy.S.Zero, symbol(d), number, extent, None)
            coordinates += [(number.name, indices[d])] if extent is not None else []
        elif isinstance(space.routed, ExpertsWord):
            more, made = _rows_of_expert(segment, indices.get(d), extent, pieces)
        else:
            coordinates += [(number.name, indices[d])] if extent is not None else []
            more, made = _rows(d, number, extent, axes["home"], segment)
            there, sent = _rows(segment.route.sent, number, extent, axes["source"], segment)
            more += there
        coordinates += more
        ranges.append(made)
    return coordinates, tuple(ranges), sent


def _segment(routed: RouteWord | ExpertsWord | None, axes: dict[str, Expr]) -> Segment:
    """The segment that the rows of a tile lie in, by the axes of its space."""
    assert routed is not None
    return Segment(routed.route, axes["home"], axes[EXPERT], axes.get("source"))


def _rows(dim: str, number: Expr, t: int | None, part: Expr, segment: Segment) -> tuple[Coordinates, Range]:
    """The coordinates and the range of a tile of rows, on one side of a route. The first two coordinates say where the
    rows of the piece begin and end."""
    begin, end = of_dim(dim, "from"), of_dim(dim, "to")
    ends = zip((begin.name, end.name), segment.bounds(dim), strict=True)
    lo, rows = tile_of(dim, begin, end, number, t, part, segment)
    return [*ends, *lo], rows


def _rows_of_expert(
    segment: Segment, turn: Expr | None, t: int | None, pieces: _Pieces
) -> tuple[Coordinates, Range]:
    """The coordinates and the range of a tile of an expert's rows. A worker begins where the rows from its first source
    begin, and goes round. In COMET (arXiv 2502.19811, section 3), the rows of the own rank come first."""
    dim = segment.route.rows
    begin, end, number = (of_dim(dim, name) for name in ("from", "to", "tile"))
    coordinates, rows = _rows(dim, number, t, segment.home, segment)
    if turn is not None and pieces.by_source:
        source, before = own("source"), of_dim(dim, "before")
        coordinates.insert(2, (source.name, pieces.place(TURN, RANK)[1]))
        coordinates.insert(3, (before.name, pieces.tiles_before(segment.expert, RANK, source)))
        coordinates.insert(4, (number.name, turn + before))
    elif turn is not None and t is not None:
        first = pieces.first(RANK)
        begins = segments(segment.route, dim).begin(segment.home, segment.expert * WORLD + first)
        tiles = larger(1, ceil_div(natural(end - begin), t))
        coordinates.insert(2, (number.name, modulo(turn + floor_div(natural(begins - begin), t), tiles)))
    return coordinates, rows
