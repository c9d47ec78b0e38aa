"""The mapping f_S of a role: from the number of a tile to its ranges, symbolically.

The paper's static mappings (TileLink, section 4) with one correction: a dimension that is spread over the ranks is
cut at the boundaries of the parts first and into tiles second, so that each tile has one home whatever the sizes.
"""

from __future__ import annotations

import sympy

from tilelink.errors import NotUnderstoodError, ScheduleError, Site, TileSizeError, similar
from tilelink.frontend.arithmetic import to_text
from tilelink.frontend.expressions import (
    PER_NODE,
    RANK,
    WORLD,
    Expr,
    axis,
    begin_of,
    ceil_div,
    first_of,
    floor_div,
    larger,
    modulo,
    natural,
    node_of,
    of_dim,
    own,
    place_of,
    smaller,
    symbol,
    whole,
)
from tilelink.frontend.ir import Range, Walk
from tilelink.frontend.routes import EXPERT, SEGMENT, Segment
from tilelink.frontend.schedule import STEP, CopyEngine, SMs
from tilelink.language import ExpertsWord, RanksWord, RouteWord, Space, nodes, ranks

NUMBER, TILE = own("i"), own("tile")
"""The number of a tile on its rank; and among those that have the same values of the rank axes."""


def longest_part(dim: str) -> sympy.Symbol:
    """The length of the longest part of a dimension that is cut over the ranks."""
    return of_dim(dim, "part")


def make_walk(
    role: str, space: Space, resource: SMs | CopyEngine, cut: frozenset[str], site: Site
) -> tuple[Walk, dict[str, Expr]]:
    """The walk over a space, and the values of its rank axes. Raises ScheduleError, TileSizeError, and
    NotUnderstoodError for an axis that is called like one that the tiles have."""
    sizes = dict(zip(space.dims, tile_sizes(role, space, resource, site), strict=True))
    tiled = [d for d, t in sizes.items() if t is not None]
    spread = [d for d in space.dims if d in cut]
    homes = home_names(space, cut)
    for name in space.axes.keys() & homes.values():
        raise NotUnderstoodError(f"{role}: its tiles have a {name} already: give the rank axis another name", site)
    values = {a: axis_values(word) for a, word in rank_axes(space, cut).items()}
    if space.route:  # outermost: all ranks go through their experts together
        values = {EXPERT: (symbol(space.route.per_rank), sympy.S.Zero), **values}
    expert = EXPERT if space.route else ""
    executor = _executor(role, space, resource, tuple(a for a in values if a != expert), site)
    free = {a: count for a, (count, _) in values.items() if a != executor}
    counts = {d: of_dim(d, "tiles") for d in tiled}
    inner = sympy.prod(counts.values())
    ordered = next((a for a in free if a != expert), None)
    coordinates = _rank_coordinates(values, list(free), ordered, inner, resource, site)
    axes = ({executor: values[executor][1]} if executor else {}) | {a: axis(a) for a in free}
    indices = _indices(TILE if free else NUMBER, list(counts.items()), resource.order.group)
    ranges, sent = [], None
    for d, t in sizes.items():
        number = of_dim(d, "tile")
        part = axes[homes[d]] if d in spread else None
        if isinstance(space.routed, ExpertsWord) and d == space.routed.route.rows:
            first = _part_at(resource, sympy.S.Zero, RANK, WORLD, site)
            more, rows = _rows_of_expert(space.routed.route, axes, indices.get(d), t, first)
        elif isinstance(space.routed, RouteWord) and d == space.routed.rows:
            segment = Segment(space.routed, axes["home"], axes[EXPERT], axes["source"])
            more, rows = _rows(d, number, t, part, segment)
            there, sent = _rows(space.routed.sent, number, t, axes["source"], segment)
            more += there
        else:
            more, rows = _tile(d, *_bounds(d, part), number, t, part)
        by_turns = rows.segment is not None and rows.segment.source is None
        coordinates += more if t is None or by_turns else [(number.name, indices[d]), *more]
        ranges.append(rows)
    lengths = {d: _longest(space, d) if d in spread else symbol(d) for d in tiled}
    walk = Walk(
        sizes=tuple((count.name, ceil_div(lengths[d], sizes[d])) for d, count in counts.items()),
        count=inner * sympy.prod(free.values()),
        axes=tuple((axis(a).name, count) for a, count in free.items()),
        coordinates=tuple(coordinates),
        exists=sympy.And(*[_exists(r) for r in ranges if r.part is not None]),
        ranges=tuple(ranges),
        sent=sent,
        expert=axis(expert).name if expert else "",
        homes=tuple((d, axes[name]) for d, name in homes.items()),
    )
    return walk, axes


Coordinates = list[tuple[str, Expr]]


def _tile(
    dim: str, begin: Expr, end: Expr, number: Expr, t: int | None, part: Expr | None, segment: Segment | None = None
) -> tuple[Coordinates, Range]:
    """A tile of a piece of a dimension, or the whole of the piece, and the coordinate that says where the tile is."""
    if t is None:
        return [], Range(dim, begin, end, None, part, whole=part is None, segment=segment)
    lo = of_dim(dim, "lo")
    return [(lo.name, begin + number * t)], Range(dim, lo, smaller(lo + t, end), t, part, number * t, segment=segment)


def _rows(dim: str, number: Expr, t: int | None, part: Expr | None, segment: Segment) -> tuple[Coordinates, Range]:
    """A tile of rows of a route on one of its sides; its coordinates begin with where the rows of the piece do, and
    where they end."""
    begin, end = of_dim(dim, "from"), of_dim(dim, "to")
    ends = zip((begin.name, end.name), segment.bounds(dim), strict=True)
    lo, rows = _tile(dim, begin, end, number, t, part, segment)
    return [*ends, *lo], rows


def _rows_of_expert(
    route: RouteWord, axes: dict[str, Expr], turn: Expr | None, t: int | None, first: Expr
) -> tuple[Coordinates, Range]:
    """The rows of a tile of an expert, and the coordinates that say where they are. A worker begins where the rows from
    source `first` do, and goes round: COMET (arXiv 2502.19811, section 3) has those of the own rank first."""
    dim, segment = route.rows, Segment(route, axes["home"], axes[EXPERT], None)
    begin, end, count, number = (of_dim(dim, name) for name in ("from", "to", "turn", "tile"))
    coordinates, rows = _rows(dim, number, t, axes["home"], segment)
    if turn is not None and t is not None:
        start = natural(begin_of(symbol(dim), segment.number(dim) + first) - begin)
        tiles = larger(1, ceil_div(natural(end - begin), t))
        coordinates[2:2] = [(count.name, turn), (number.name, modulo(count + floor_div(start, t), tiles))]
    return coordinates, rows


def _longest(space: Space, dim: str) -> sympy.Symbol:
    """The length of the longest piece that tiles of a dimension are cut from which is spread over the ranks."""
    if space.route is None or dim != space.route.rows:
        return longest_part(dim)
    return of_dim(dim, SEGMENT if isinstance(space.routed, RouteWord) else EXPERT)


def _exists(r: Range) -> sympy.logic.boolalg.Boolean:
    """Whether there is such a tile along a dimension that is spread over the ranks, whose parts and pieces are not of
    one length."""
    if r.segment is None:
        return r.start < _bounds(r.dim, r.part)[1]
    begin, end = of_dim(r.dim, "from"), of_dim(r.dim, "to")
    if r.extent is None or r.segment.source is not None:
        return r.start < end
    return begin + of_dim(r.dim, "turn") * r.extent < end  # its number is that after going round


def _bounds(dim: str, part: Expr | None) -> tuple[Expr, Expr]:
    """Where a part, or the whole dimension, begins and ends."""
    whole = symbol(dim)
    return (sympy.S.Zero, whole) if part is None else (first_of(whole, part), first_of(whole, part + 1))


def home_names(space: Space, cut: frozenset[str]) -> dict[str, str]:
    """What the rank in whose part a tile lies is called, by dimension of the space that is cut over the ranks: `home`
    along the first one that a tensor of the space is cut along, `D_home` along another dimension D."""
    names = {d: f"{d}_home" for d in space.dims if d in cut}
    if names:
        names[space.sharded or next(iter(names))] = "home"
    return names


def rank_axes(space: Space, cut: frozenset[str]) -> dict[str, RanksWord]:
    """The rank axes of a space: those with a name, and the homes of its tiles; of a route, the sources of them."""
    sources = {"source": ranks} if isinstance(space.routed, RouteWord) else {}
    return {**space.axes, **dict.fromkeys(home_names(space, cut).values(), ranks), **sources}


def axis_values(word: RanksWord) -> tuple[Expr, Expr]:
    """How many values a rank axis has, and which of them the executing rank is."""
    if word == ranks:
        return WORLD, RANK
    return (floor_div(WORLD, PER_NODE), node_of(RANK)) if word == nodes else (PER_NODE, place_of(RANK))


def _rank_coordinates(
    values: dict[str, tuple[Expr, Expr]],
    free: list[str],
    ordered: str | None,
    inner: Expr,
    resource: SMs | CopyEngine,
    site: Site,
) -> list[tuple[str, Expr]]:
    """The axes that are walked on a rank, outermost first, and the tile inside them; `ordered`, the first rank axis,
    goes in the schedule's order. `values`: how many values an axis has, and which of them the executing rank is."""
    number = NUMBER
    coordinates: list[tuple[str, Expr]] = []
    for k, name in enumerate(free):
        count, here = values[name]
        step = floor_div(number, inner * sympy.prod(values[a][0] for a in free[k + 1 :]))
        step = modulo(step, count) if k else step
        value = _part_at(resource, step, here, count, site) if name == ordered else step
        coordinates.append((axis(name).name, value))
    return [(TILE.name, modulo(number, inner)), *coordinates] if free else []


def tile_sizes(role: str, space: Space, resource: SMs | CopyEngine, site: Site) -> tuple[int | None, ...]:
    """Tile sizes along the space's dimensions (what follows them in the schedule is the step)."""
    n = len(space.dims)
    if len(resource.tile) not in (n, n + 1):
        raise TileSizeError(
            f"{role} runs over the dimensions {', '.join(space.dims)}: its schedule needs a tile of {n} sizes, and one "
            f"more for the step of its loops; this one has {resource.tile}",
            site,
        )
    return resource.tile[:n]


def step_size(resource: SMs | CopyEngine, space: Space) -> int | None:
    """The step of the role's loops, if the schedule gives one."""
    return resource.tile[len(space.dims)] if len(resource.tile) > len(space.dims) else None


def _executor(role: str, space: Space, resource: SMs | CopyEngine, ranks: tuple[str, ...], site: Site) -> str | None:
    at = resource.at
    if at is None:
        if space.sharded and "home" in ranks:
            return "home"
        if space.axes:
            raise ScheduleError(f"{role}: who executes a tile? at= has to be one of {', '.join(ranks)}", site)
        return None
    if at not in ranks:
        known = f"one of {', '.join(ranks)}" if ranks else "left out, every rank executes the tiles of a local tensor"
        known += similar(at, ranks)
        raise ScheduleError(f"{role}: at={at!r} is no rank axis of its space; it can be {known}", site)
    return at


def _part_at(resource: SMs | CopyEngine, step: Expr, here: Expr, count: Expr, site: Site) -> Expr:
    try:
        given = sympy.sympify(resource.order.part_at(STEP))
        wrong = None if isinstance(given, Expr) and whole(given) else f"it gives {to_text(given)}"
        part = resource.order.part_at(step, here, count)
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as e:
        wrong = str(e)
    if wrong is not None:
        raise ScheduleError(
            f"order {resource.order.name} is not integer arithmetic of (step, rank, world), so it can't be printed "
            f"into a kernel: {wrong}",
            site,
        )
    return sympy.sympify(part)


def _indices(tile: Expr, counts: list[tuple[str, sympy.Symbol]], group: int) -> dict[str, Expr]:
    """Tile number -> index along each dimension: row by row, or column by column in groups of `group` rows."""
    indices: dict[str, Expr] = {}
    rest = tile
    outer = counts
    if group > 1 and len(counts) > 1:
        (rows, n_rows), (cols, n_cols) = counts[-2:]
        outer = counts[:-2]
        block = modulo(tile, n_rows * n_cols) if outer else tile
        first = floor_div(block, group * n_cols) * group
        here = smaller(n_rows - first, group)
        inside = modulo(block, group * n_cols)
        indices[rows], indices[cols] = first + modulo(inside, here), floor_div(inside, here)
        rest = floor_div(tile, n_rows * n_cols)
    for k, (d, n) in reversed(list(enumerate(outer))):
        indices[d] = modulo(rest, n) if k else rest
        rest = floor_div(rest, n)
    return indices
