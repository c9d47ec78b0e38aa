"""The mapping f_S of a role: from the number of a tile to its ranges, symbolically.

The paper's static mappings (TileLink, section 4) with one correction: a dimension that is spread over the ranks is
cut at the boundaries of the parts first and into tiles second, so that each tile has one home whatever the sizes.
"""

from __future__ import annotations

import sympy

from tilelink.errors import ScheduleError, Site, TileSizeError
from tilelink.frontend.expressions import RANK, WORLD, Expr, ceil_div, first_of, floor_div, symbol
from tilelink.frontend.ir import Range, Walk
from tilelink.frontend.schedule import SMs
from tilelink.language import Space


def longest_part(dim: str) -> sympy.Symbol:
    """The length of the longest part of a dimension that is cut over the ranks."""
    return symbol(f"{dim}_part")


def make_walk(role: str, space: Space, resource: SMs, cut: frozenset[str], site: Site) -> tuple[Walk, dict[str, Expr]]:
    """The walk over a space, and the values of its rank axes. Raises ScheduleError, TileSizeError."""
    sizes = tile_sizes(role, space, resource, site)
    spread = [d for d in space.dims if d in cut]
    if len(spread) > 1:
        raise ScheduleError(f"{role} runs over {spread}, which are both cut over the ranks: at most one can be", site)
    ranks = (*space.axes, *(["home"] if spread else []))
    executor = _executor(role, space, resource, ranks, site)
    free = [a for a in ranks if a != executor]

    counts = {d: symbol(f"{d}_tiles") for d in space.dims}
    lengths = {d: longest_part(d) if d in spread else symbol(d) for d in space.dims}
    inner = sympy.prod([counts[d] for d, t in zip(space.dims, sizes, strict=True) if t is not None])
    coordinates: list[tuple[str, Expr]] = []
    axes: dict[str, Expr] = {executor: RANK} if executor else {}
    number, tile = symbol("i"), symbol("tile")
    if free:
        coordinates.append(("tile", number % inner))
        for k, axis in enumerate(free):
            step = floor_div(number, inner * WORLD ** (len(free) - 1 - k))
            step = step % WORLD if k else step
            coordinates.append((axis, _part_at(resource, step, site) if k == 0 else step))
            axes[axis] = symbol(axis)
    else:
        tile = number
    home = axes.get("home")
    ranges = []
    cutting = [(d, t) for d, t in zip(space.dims, sizes, strict=True) if t is not None]
    indices = _indices(tile, [(d, counts[d]) for d, _ in cutting], resource.order.group)
    for d, t in zip(space.dims, sizes, strict=True):
        begin, end = (first_of(symbol(d), home), first_of(symbol(d), home + 1)) if d in spread else (sympy.S.Zero, symbol(d))
        part = home if d in spread else None
        if t is None:
            ranges.append(Range(d, begin, end, None, part, whole=d not in spread))
            continue
        number, lo = symbol(f"{d}_tile"), symbol(f"{d}_lo")
        coordinates += [(f"{d}_tile", indices[d]), (f"{d}_lo", begin + number * t)]
        ranges.append(Range(d, lo, sympy.Min(lo + t, end), t, part, number * t))
    exists = sympy.And(*[r.start < first_of(symbol(r.dim), home + 1) for r in ranges if r.dim in spread])
    walk = Walk(
        sizes=tuple((f"{d}_tiles", ceil_div(lengths[d], t)) for d, t in cutting),
        count=inner * WORLD ** len(free),
        coordinates=tuple(coordinates),
        exists=exists,
        ranges=tuple(ranges),
        home=home,
    )
    return walk, axes


def tile_sizes(role: str, space: Space, resource: SMs, site: Site) -> tuple[int | None, ...]:
    """Tile sizes along the space's dimensions (what follows them in the schedule is the step)."""
    n = len(space.dims)
    if len(resource.tile) not in (n, n + 1):
        raise TileSizeError(
            f"{role} runs over the dimensions {', '.join(space.dims)}: its schedule needs a tile of {n} sizes, and one "
            f"more for the step of its loops; this one has {resource.tile}",
            site,
        )
    return resource.tile[:n]


def step_size(resource: SMs, space: Space) -> int | None:
    """The step of the role's loops, if the schedule gives one."""
    return resource.tile[len(space.dims)] if len(resource.tile) > len(space.dims) else None


def _executor(role: str, space: Space, resource: SMs, ranks: tuple[str, ...], site: Site) -> str | None:
    at = resource.at
    if at is None:
        if space.sharded and "home" in ranks:
            return "home"
        if space.axes:
            raise ScheduleError(f"{role}: who executes a tile? at= has to be one of {', '.join(ranks)}", site)
        return None
    if at not in ranks:
        known = f"one of {', '.join(ranks)}" if ranks else "left out, every rank executes the tiles of a local tensor"
        raise ScheduleError(f"{role}: at={at!r} is no rank axis of its space; it can be {known}", site)
    return at


def _part_at(resource: SMs, step: Expr, site: Site) -> Expr:
    try:
        return sympy.sympify(resource.order.part_at(step))
    except (TypeError, ValueError) as e:
        raise ScheduleError(
            f"order {resource.order.name} is not integer arithmetic of (step, rank, world), so it can't be printed into a "
            f"kernel: {e}",
            site,
        ) from e


def _indices(tile: Expr, counts: list[tuple[str, sympy.Symbol]], group: int) -> dict[str, Expr]:
    """Tile number -> index along each dimension: row by row, or column by column in groups of `group` rows."""
    indices: dict[str, Expr] = {}
    rest = tile
    outer = counts
    if group > 1 and len(counts) > 1:
        (rows, n_rows), (cols, n_cols) = counts[-2:]
        outer = counts[:-2]
        block = tile % (n_rows * n_cols) if outer else tile
        first = floor_div(block, group * n_cols) * group
        here = sympy.Min(n_rows - first, group)
        inside = block % (group * n_cols)
        indices[rows], indices[cols] = first + inside % here, floor_div(inside, here)
        rest = floor_div(tile, n_rows * n_cols)
    for k, (d, n) in reversed(list(enumerate(outer))):
        indices[d] = rest % n if k else rest
        rest = floor_div(rest, n)
    return indices
