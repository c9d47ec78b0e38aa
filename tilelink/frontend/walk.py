"""The mapping f_S of a role: from the number of a tile to its ranges, symbolically.

These are the paper's static mappings (TileLink, section 4) with one correction: a dimension that is spread over the
ranks is cut at the boundaries of the parts first and into tiles second, so that each tile has one home whatever the
sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from tilelink.errors import NotUnderstoodError, ScheduleError, Site, TileSizeError, counted, similar
from tilelink.frontend.arithmetic import to_text
from tilelink.frontend.expressions import (
    PER_NODE,
    RANK,
    WORLD,
    Expr,
    axis,
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
from tilelink.frontend.orders import STEP
from tilelink.frontend.routes import Segment
from tilelink.frontend.schedule import CopyEngine, SMs
from tilelink.language import RanksWord, RouteWord, Space, nodes, ranks

NUMBER, TILE = own("i"), own("tile")
"""The number of a tile on its rank; and its number among the tiles with the same values of the rank axes."""


def longest_part(dim: str) -> sympy.Symbol:
    """The length of the longest part of a dimension that is cut over the ranks."""
    return of_dim(dim, "part")


def make_walk(
    role: str,
    space: Space,
    resource: SMs | CopyEngine,
    cut: frozenset[str],
    site: Site,
    ends: Mapping[str, Expr] | None = None,
    steps: bool = True,
) -> tuple[Walk, dict[str, Expr]]:
    """The walk over a space, and the values of its rank axes. `ends`: where the rank's own part ends along a dimension,
    if that is data. `steps`: whether loops of the role take their step from the schedule. Raises ScheduleError,
    TileSizeError, and NotUnderstoodError for a rank axis with the name of an axis that the tiles already have."""
    cut = frozenset() if resource.order.parts is None else cut
    sizes = dict(zip(space.dims, tile_sizes(role, space, resource, site, steps), strict=True))
    tiled = [d for d, t in sizes.items() if t is not None]
    spread = [d for d in space.dims if d in cut]
    homes = home_names(space, cut)
    for name in space.axes.keys() & homes.values():
        raise NotUnderstoodError(f"{role}: its tiles have a {name} already: give the rank axis another name", site)
    values = {a: axis_values(word) for a, word in rank_axes(space, cut).items()}
    executor = executor_of(role, space, resource, tuple(values), site)
    free = {a: count for a, (count, _) in values.items() if a != executor}
    counts = {d: of_dim(d, "tiles") for d in tiled}
    inner = sympy.prod(counts.values())
    number, rows = NUMBER, counts
    if resource.order.columns:
        columns = columns_of(role, space, resource, site)
        rows = {d: n for d, n in counts.items() if d != columns}
        inner = sympy.prod(rows.values())
        number, column = by_columns(inner * sympy.prod(free.values()), counts[columns], resource.order.columns)
    coordinates = _rank_coordinates(values, list(free), inner, resource, site, number)
    axes = ({executor: values[executor][1]} if executor else {}) | {a: axis(a) for a in free}
    indices = indices_of(TILE if free else number, list(rows.items()), resource.order.group)
    if rows is not counts:
        indices[columns] = column
    ranges, exists = [], []
    for d, t in sizes.items():
        along = of_dim(d, "tile")
        part = axes[homes[d]] if d in spread else None
        begin, end = bounds_of(d, part)
        end = (ends or {}).get(d, end)
        more, made = tile_of(d, begin, end, along, t, part)
        coordinates += more if t is None else [(along.name, indices[d]), *more]
        ranges.append(made)
        exists += [] if part is None else [made.start < end]
    lengths = {d: longest_part(d) if d in spread else symbol(d) for d in tiled}
    walk = Walk(
        sizes=tuple((count.name, ceil_div(lengths[d], sizes[d])) for d, count in counts.items()),
        count=sympy.prod([*counts.values(), *free.values()]),
        axes=tuple((axis(a).name, count) for a, count in free.items()),
        coordinates=tuple(coordinates),
        exists=sympy.And(*exists),
        ranges=tuple(ranges),
        homes=tuple((d, axes[name]) for d, name in homes.items()),
    )
    return walk, axes


Coordinates = list[tuple[str, Expr]]


def tile_of(
    dim: str, begin: Expr, end: Expr, number: Expr, t: int | None, part: Expr | None, segment: Segment | None = None
) -> tuple[Coordinates, Range]:
    """(coordinates, range) of a tile of a piece of a dimension, or of the whole piece if `t` is None."""
    if t is None:
        return [], Range(dim, begin, end, None, part, whole=part is None, segment=segment)
    lo = of_dim(dim, "lo")
    return [(lo.name, begin + number * t)], Range(dim, lo, smaller(lo + t, end), t, part, number * t, segment=segment)


def bounds_of(dim: str, part: Expr | None) -> tuple[Expr, Expr]:
    """Where a part, or the whole dimension, begins and ends."""
    whole = symbol(dim)
    return (sympy.S.Zero, whole) if part is None else (first_of(whole, part), first_of(whole, part + 1))


def home_names(space: Space, cut: frozenset[str]) -> dict[str, str]:
    """The names of the ranks in whose parts a tile lies, by dimension of the space that is cut over the ranks: `home`
    along the first dimension that a tensor of the space is cut along, `D_home` along another dimension D."""
    names = {d: f"{d}_home" for d in space.dims if d in cut}
    if names:
        names[space.sharded or next(iter(names))] = "home"
    return names


def rank_axes(space: Space, cut: frozenset[str]) -> dict[str, RanksWord]:
    """The rank axes of a space: the named ones, the homes of its tiles, and for a route the sources of its rows."""
    sources = {"source": ranks} if isinstance(space.routed, RouteWord) else {}
    return {**space.axes, **dict.fromkeys(home_names(space, cut).values(), ranks), **sources}


def axis_values(word: RanksWord) -> tuple[Expr, Expr]:
    """How many values a rank axis has, and the value for the executing rank."""
    if word == ranks:
        return WORLD, RANK
    return (floor_div(WORLD, PER_NODE), node_of(RANK)) if word == nodes else (PER_NODE, place_of(RANK))


def _rank_coordinates(
    values: dict[str, tuple[Expr, Expr]], free: list[str], inner: Expr, resource: SMs | CopyEngine, site: Site,
    number: Expr,
) -> list[tuple[str, Expr]]:  # fmt: skip
    """The coordinates of the axes that are walked on a rank, outermost first, and of the tile inside them, by its
    `number` among all tiles. The first axis goes in the schedule's order. `values`: of each axis, how many values it
    has, and the value for the executing rank."""
    coordinates: list[tuple[str, Expr]] = []
    for k, name in enumerate(free):
        count, here = values[name]
        step = floor_div(number, inner * sympy.prod(values[a][0] for a in free[k + 1 :]))
        step = modulo(step, count) if k else step
        value = step if k else part_at(resource, step, here, count, site)
        coordinates.append((axis(name).name, value))
    return [(TILE.name, modulo(number, inner)), *coordinates] if free else []


def check_across_parts(role: str, space: Space, resource: SMs | CopyEngine, site: Site) -> None:
    """Raises ScheduleError for a role whose tiles have a home or a rank axis, or are copied by an engine: its tiles
    can't go across parts."""
    has = [f"its space is cut over the ranks along {space.sharded}, so a tile has one home"] if space.sharded else []
    has += [f"its space has the rank axis {name}, whose order this is" for name in space.axes]
    has += ["a copy engine covers the signals of one rank"] if isinstance(resource, CopyEngine) else []
    if has:
        raise ScheduleError(
            f"{role}: order={resource.order} is for tiles of local tensors on SMs, and {has[0]}; use an order of "
            "ranks, such as tk.own_rank_first",
            site,
        )


def columns_of(role: str, space: Space, resource: SMs | CopyEngine, site: Site) -> str:
    """The dimension of the columns, for an order that walks some columns first. Raises ScheduleError."""
    dims = [d for d, t in zip(space.dims, resource.tile, strict=False) if t is not None]
    if len(space.dims) != 2 or len(dims) != 2:
        tile = ", ".join(map(str, resource.tile[: len(space.dims)]))
        raise ScheduleError(
            f"{role}: order={resource.order} is for tiles of rows and columns, both with a size; its space is "
            f"{', '.join(space.dims)}, and its tile ({tile})",
            site,
        )
    if space.route is not None and space.dims[1] == space.route.rows:
        raise ScheduleError(
            f"{role}: order={resource.order} is for spaces with columns behind the rows of a route; its space is "
            f"{', '.join(space.dims)}: name the route first in tk.tiles(...)",
            site,
        )
    return space.dims[1]


def by_columns(rows: Expr, columns: Expr, together: int) -> tuple[Expr, Expr]:
    """The number of a tile's rows among all rows, and of its columns among all columns. `rows`, `columns`: how many
    there are. `together`: how many columns are walked together, row by row."""
    group = floor_div(NUMBER, larger(1, rows * together))
    inside, here = natural(NUMBER - group * rows * together), larger(1, smaller(together, columns - group * together))
    return floor_div(inside, here), group * together + modulo(inside, here)


def tile_sizes(
    role: str, space: Space, resource: SMs | CopyEngine, site: Site, steps: bool
) -> tuple[int | None, ...]:
    """Tile sizes along the space's dimensions (the next size in the schedule is the step). `steps`: whether the role
    has loops that take the step."""
    n = len(space.dims)
    if len(resource.tile) not in (n, n + 1):
        needed = counted(n, "size") + (", and one more for the step of its loops" if steps else "")
        raise TileSizeError(
            f"{role} runs over the dimensions {', '.join(space.dims)}: its schedule needs a tile of {needed}; this one "
            f"has {resource.tile}",
            site,
        )
    return resource.tile[:n]


def step_size(resource: SMs | CopyEngine, space: Space) -> int | None:
    """The step of the role's loops, if the schedule gives one."""
    return resource.tile[len(space.dims)] if len(resource.tile) > len(space.dims) else None


def executor_of(role: str, space: Space, resource: SMs | CopyEngine, ranks: tuple[str, ...], site: Site) -> str | None:
    at = resource.at
    if at is None:
        if space.sharded and "home" in ranks:
            return "home"
        if space.axes:
            asked = f"{role}: who executes a tile? Write {' or '.join(f'at={n!r}' for n in ranks)}"
            if not space.sharded:
                asked += ", if that rank makes its own tiles; if every rank sends its tiles to all ranks, leave the "\
                    "axis out of tk.tiles(...) and write .at(tk.ranks)"
            raise ScheduleError(asked, site)
        return None
    if at not in ranks:
        known = f"it can be {' or '.join(map(repr, ranks))}" if ranks else "leave it out: every rank executes its tiles"
        local = "no tensor of its space is cut over the ranks, so a tile has no home; " if at == "home" else ""
        raise ScheduleError(f"{role}: at={at!r} is no rank axis of its space; {local}{known}{similar(at, ranks)}", site)
    return at


def part_at(resource: SMs | CopyEngine, step: Expr, here: Expr, count: Expr, site: Site) -> Expr:
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


def indices_of(tile: Expr, counts: list[tuple[str, sympy.Symbol]], group: int) -> dict[str, Expr]:
    """The index of a tile along each dimension: row by row, or column by column in groups of `group` rows."""
    indices: dict[str, Expr] = {}
    rest = tile
    outer = counts
    if group > 1 and len(counts) > 1:
        (rows, n_rows), (cols, n_cols) = counts[-2:]
        outer = counts[:-2]
        block = modulo(tile, n_rows * n_cols) if outer else tile
        first = floor_div(block, group * n_cols) * group
        here = smaller(natural(n_rows - first), group)
        inside = modulo(block, group * n_cols)
        indices[rows], indices[cols] = first + modulo(inside, here), floor_div(inside, here)
        rest = floor_div(tile, n_rows * n_cols)
    for k, (d, n) in reversed(list(enumerate(outer))):
        indices[d] = modulo(rest, n) if k else rest
        rest = floor_div(rest, n)
    return indices
