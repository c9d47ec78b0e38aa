"""The mapping f_S of a role over the rows of a route, or over its experts: the paper's dynamic mappings.

How many tiles a piece has (the rows of one expert from one source, or of one expert) is data. A running table says
where the tiles of each piece begin, in the order in which a worker goes through them; so a worker walks the tiles that
there are, whatever the routing.
"""

from __future__ import annotations

import sympy

from tilelink.errors import Site
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
"""The number of a piece in the order in which a rank goes through them."""


def make_routed_walk(
    role: str, space: Space, resource: SMs | CopyEngine, site: Site
) -> tuple[Walk, dict[str, Expr]]:
    """As `make_walk`, over a route or its experts. Experts are outermost: all ranks go through theirs together."""
    route = space.route
    assert route is not None
    sizes = dict(zip(space.dims, tile_sizes(role, space, resource, site), strict=True))
    ranks = {a: axis_values(word) for a, word in rank_axes(space, frozenset([route.rows])).items()}
    executor = executor_of(role, space, resource, tuple(ranks), site)
    assert executor is not None
    other = next((a for a in ranks if a != executor), None)
    side = route.sent if executor == "source" else route.rows
    experts, pieces = symbol(route.per_rank), symbol(route.per_rank) * (1 if other is None else WORLD)

    def piece(turn: Expr, rank: Expr) -> dict[str, Expr]:
        """The axes of the piece that a rank comes to in a turn."""
        found = {executor: rank, EXPERT: turn if other is None else floor_div(turn, WORLD)}
        return found if other is None else found | {other: part_at(resource, modulo(turn, WORLD), rank, WORLD, site)}

    t = sizes[route.rows]
    begin, end = _segment(space.routed, piece(ENTRY, ROW)).bounds(side)
    length = natural(end - begin)
    # where a tile is of all rows of an expert, one without rows has a tile, too
    tiles = ceil_div(length, t) if t is not None else sympy.S.One if other is None else sympy.Min(1, length)
    table = Table(own(f"tiles.{role}"), pieces, tiles)
    room = pieces + (0 if t is None else floor_div(longest_part(side), t))
    axes = {executor: RANK} | {a: axis(a) for a in (EXPERT, other) if a is not None}
    counts = {d: of_dim(d, "tiles") for d, extent in sizes.items() if extent is not None}
    across = sympy.prod(n for d, n in counts.items() if d != route.rows)
    columns = columns_of(role, space, resource, site) if resource.order.columns else None
    begun = floor_div(NUMBER, across)
    if columns is not None:  # the tiles of all rows, for the first columns, then for the next ones
        begun, column = by_columns(table.begin(RANK, pieces), counts[columns], resource.order.columns)
    coordinates: Coordinates = [(TURN.name, table.find(RANK, begun))]
    first = table.begin(RANK, TURN)
    coordinates.append((TILE.name, natural(begun - first if columns else NUMBER - first * across)))
    coordinates += [(axis(a).name, value) for a, value in piece(TURN, RANK).items() if a != executor]
    if t is not None:
        coordinates.append((counts[route.rows].name, natural(table.begin(RANK, TURN + 1) - first)))
    indices = indices_of(TILE, list(counts.items()), resource.order.group)
    if columns is not None:
        indices = {route.rows: TILE, columns: column}
    ranges, sent = [], None
    segment = _segment(space.routed, axes)
    for d, extent in sizes.items():
        number = of_dim(d, "tile")
        if d != route.rows:
            more, made = tile_of(d, sympy.S.Zero, symbol(d), number, extent, None)
            coordinates += [(number.name, indices[d])] if extent is not None else []
        elif isinstance(space.routed, ExpertsWord):
            start = part_at(resource, sympy.S.Zero, RANK, WORLD, site)
            more, made = _rows_of_expert(segment, indices.get(d), extent, start)
        else:
            coordinates += [(number.name, indices[d])] if extent is not None else []
            more, made = _rows(d, number, extent, axes["home"], segment)
            there, sent = _rows(route.sent, number, extent, axes["source"], segment)
            more += there
        coordinates += more
        ranges.append(made)
    walk = Walk(
        sizes=tuple((n.name, ceil_div(symbol(d), sizes[d])) for d, n in counts.items() if d != route.rows),
        count=table.begin(RANK, pieces) * across,
        axes=tuple((axis(a).name, experts if a == EXPERT else WORLD) for a in (EXPERT, other) if a is not None),
        coordinates=tuple(coordinates),
        exists=sympy.true,
        ranges=tuple(ranges),
        sent=sent,
        expert=axis(EXPERT).name,
        homes=((route.rows, axes["home"]),),
        table=table,
        room=room * across,
    )
    return walk, axes


def _segment(routed: RouteWord | ExpertsWord | None, axes: dict[str, Expr]) -> Segment:
    """What the rows of a tile have in common, by the axes of its space."""
    assert routed is not None
    return Segment(routed.route, axes["home"], axes[EXPERT], axes.get("source"))


def _rows(dim: str, number: Expr, t: int | None, part: Expr, segment: Segment) -> tuple[Coordinates, Range]:
    """A tile of rows of a route on one of its sides; its coordinates begin with where the rows of the piece do, and
    where they end."""
    begin, end = of_dim(dim, "from"), of_dim(dim, "to")
    ends = zip((begin.name, end.name), segment.bounds(dim), strict=True)
    lo, rows = tile_of(dim, begin, end, number, t, part, segment)
    return [*ends, *lo], rows


def _rows_of_expert(segment: Segment, turn: Expr | None, t: int | None, first: Expr) -> tuple[Coordinates, Range]:
    """The rows of a tile of an expert, and the coordinates that say where they are. A worker begins where the rows from
    source `first` do, and goes round: COMET (arXiv 2502.19811, section 3) has those of the own rank first."""
    dim = segment.route.rows
    begin, end, number = (of_dim(dim, name) for name in ("from", "to", "tile"))
    coordinates, rows = _rows(dim, number, t, segment.home, segment)
    if turn is not None and t is not None:
        begins = segments(segment.route, dim).begin(segment.home, segment.expert * WORLD + first)
        tiles = larger(1, ceil_div(natural(end - begin), t))
        coordinates.insert(2, (number.name, modulo(turn + floor_div(natural(begins - begin), t), tiles)))
    return coordinates, rows
