"""The cells of a signal grid: how many a rank has, which of them a view lies in (the mapping f_C), where a cell lies,
and how often it is notified. All results are symbolic, in sizes, parts and ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy

from tilelink.frontend.expressions import (
    RANK,
    WORLD,
    Expr,
    ceil_div,
    first_of,
    floor_div,
    larger,
    modulo,
    natural,
    own,
    part_of,
    smaller,
    symbol,
)
from tilelink.frontend.ir import RANKS_DIM, Cell, Notifier, Range, Signals, View
from tilelink.frontend.kept import kept
from tilelink.frontend.routes import EXPERT, PART, SEGMENT, Segment, end_of_rows, segments, segments_of_rank
from tilelink.frontend.tables import ENTRY, ROW, Table
from tilelink.frontend.walk import longest_part

Equations = list[tuple[Expr, Expr]]
CELL, WAITER = own("cell"), own("waiter")
"""The flat number of a cell on its rank; and a rank, in the condition that says which ranks wait for a cell."""


@kept()
def cells_along(cell: Cell) -> Expr:
    """How many cells a rank has along a dimension; for the rows of a route, how many it has room for."""
    if cell.dim == RANKS_DIM:
        return WORLD
    if cell.pieces == PART:
        return sympy.S.One
    if cell.route:
        filling = sympy.S.Zero if cell.size is None else floor_div(longest_part(cell.dim), cell.size)
        return filling + pieces_of_rank(cell)
    inside = cells_in_part(cell)
    return inside * WORLD if cell.cut and not cell.local else inside


def cells_in_part(cell: Cell) -> Expr:
    """How many cells the longest part has, or the dimension if it is not cut."""
    if cell.size is None:
        return sympy.S.One
    return ceil_div(longest_part(cell.dim) if cell.cut else symbol(cell.dim), cell.size)


def pieces_of_rank(cell: Cell) -> Expr:
    """How many pieces of the rows of a route a rank has. Cells do not cross these pieces."""
    assert cell.route is not None
    return segments_of_rank(cell.route) if cell.pieces == SEGMENT else symbol(cell.route.per_rank)


def cells_of_pieces(cell: Cell) -> Table:
    """The table that says where the cells of each piece begin, on each rank."""
    names = piece_place(cell, ENTRY)
    piece = piece_of(cell, ROW, dict(names))
    begin, end = piece.bounds(cell.dim)
    name = own(f"cells.{cell.dim}.{cell.pieces}.{cell.size or 'whole'}")
    length = natural(end - begin)
    return Table(name, pieces_of_rank(cell), smaller(1, length) if cell.size is None else ceil_div(length, cell.size))


def tiles_of_part(cell: Cell, tile: int | None) -> Table:
    """The table that says where the tiles of segments begin, in a cell of all rows of a rank on a side of a route."""
    return cells_of_pieces(replace(cell, size=tile, pieces=SEGMENT))


@kept()
def cell_count(signals: Signals) -> Expr:
    """How many signals a rank has for the tensor."""
    return sympy.prod([cells_along(c) for c in signals.grid])


@kept()
def cells_of(cell: Cell, index: Range | Expr) -> tuple[Expr, Expr]:
    """(first, count) of the cells along one dimension that a range intersects."""
    if not isinstance(index, Range):
        return index, sympy.S.One
    if cell.dim == RANKS_DIM:
        return index.start, index.stop - index.start
    if cell.route:
        return _cells_of_rows(cell, index)
    if index.across_parts and cell.cut and not cell.local:
        first, last = (_cell_at(cell, at) for at in (index.start, natural(index.stop - 1)))
        return first, last - first + 1
    if cell.size is None:
        if not cell.cut or cell.local:
            return sympy.S.Zero, sympy.S.One
        return (index.part, sympy.S.One) if index.part is not None else (sympy.S.Zero, WORLD)
    if index.part is None and cell.cut:
        return sympy.S.Zero, cells_along(cell)
    before = cells_in_part(cell) * index.part if cell.cut and not cell.local else sympy.S.Zero
    offset, among_parts = index.offset, index.part is not None and not cell.cut
    if index.segment:
        offset = natural(index.start - first_of(symbol(cell.dim), index.part))
    elif among_parts:
        offset = index.start
    first = floor_div(offset, cell.size)
    if index.extent is not None and cell.size % index.extent == 0 and not index.segment and not among_parts:
        return before + first, sympy.S.One
    return before + first, ceil_div(offset + natural(index.stop - index.start), cell.size) - first


def _cell_at(cell: Cell, at: Expr) -> Expr:
    """The cell that holds an element, if cells do not cross parts."""
    part = part_of(symbol(cell.dim), at, WORLD)
    inside = 0 if cell.size is None else floor_div(natural(at - first_of(symbol(cell.dim), part)), cell.size)
    return part * cells_in_part(cell) + inside


def _cells_of_rows(cell: Cell, rows: Range) -> tuple[Expr, Expr]:
    """(first, count) of the cells that hold rows of a route. They are the cells of one piece. If the rows of an expert
    may lie in several segments, each segment is one cell, and the rows have all segments that they touch."""
    segment, route = rows.segment, cell.route
    assert route is not None
    if cell.pieces == PART:
        return sympy.S.Zero, sympy.S.One
    if segment is None:
        return sympy.S.Zero, cells_along(cell)
    if segment.source is None and cell.pieces == SEGMENT:
        assert cell.size is None, "a cell a piece where rows cross pieces"
        before, table = segment.expert * WORLD, segments(route, cell.dim)
        one, other = (table.find(segment.home, row, before, WORLD) for row in (rows.start, rows.stop - 1))
        return before + one, other - one + 1
    piece, offset = segment.expert, rows.offset
    if cell.pieces == SEGMENT:
        assert segment.source is not None
        piece = segment.expert * WORLD + segment.source
        piece = piece if cell.dim == route.rows else segment.home * symbol(route.per_rank) + segment.expert
    elif segment.source is not None:
        offset = natural(rows.start - replace(segment, source=None).bounds(cell.dim)[0])
    if cell.size is None:
        return piece, sympy.S.One
    rank = segment.home if cell.dim == route.rows else segment.source
    assert rank is not None
    first = cells_of_pieces(cell).begin(rank, piece) + floor_div(offset, cell.size)
    if (segment.source is None) == (cell.pieces == EXPERT) and rows.extent and cell.size % rows.extent == 0:
        return first, sympy.S.One
    length = natural(rows.stop - rows.start)
    return first, ceil_div(offset + length, cell.size) - floor_div(offset, cell.size)


@kept()
def position(signals: Signals) -> tuple[tuple[str, Expr], ...]:
    """Where a cell lies, by its flat number `cell`: keys with their values, in order.

    `part_D` is the part along D, `cell_D` the number inside that part, `index_k` the entry of dimension k (see
    `of_cell`).
    """
    made: list[tuple[str, Expr]] = []
    rest: Expr = CELL
    rank = RANK
    if signals.by_home:
        rank = of_cell("index", 0)
        made.append((rank.name, floor_div(CELL, sympy.prod([cells_along(c) for c in signals.grid[1:]]))))
    for k, c in reversed(list(enumerate(signals.grid))):
        along = cells_along(c)
        here = rest if k == 0 else modulo(rest, along)
        if k == 0 and signals.by_home:
            break
        if along != 1:
            if c.dim == RANKS_DIM:
                made.append((of_cell("index", k).name, here))
            elif c.route:
                piece = here if c.size is None else cells_of_pieces(c).find(rank, here)
                before = here if c.size is None else cells_of_pieces(c).begin(rank, piece)
                made += [*piece_place(c, piece), (of_cell("cell", c.dim).name, here - before)]
            elif c.cut and not c.local:
                made.append((of_cell("part", c.dim).name, floor_div(here, cells_in_part(c))))
                made.append((of_cell("cell", c.dim).name, modulo(here, cells_in_part(c))))
            else:
                made.append((of_cell("cell", c.dim).name, here))
        rest = floor_div(rest, along)
    return tuple(made)


def of_cell(what: str, along: str | int) -> sympy.Symbol:
    """The symbol for a part of a cell's place: `part_D`, `cell_D`, `index_k`."""
    return own(f"{what}.{along}")


def piece_place(cell: Cell, piece: Expr) -> list[tuple[str, Expr]]:
    """The values of `expert_D`, `source_D` and `home_D` for a piece of a route's rows, by its number on its rank."""
    assert cell.route is not None
    expert = of_cell(EXPERT, cell.dim).name
    if cell.pieces == EXPERT:
        return [(expert, piece)]
    if cell.dim == cell.route.rows:
        return [(expert, floor_div(piece, WORLD)), (of_cell("source", cell.dim).name, modulo(piece, WORLD))]
    experts = symbol(cell.route.per_rank)
    return [(of_cell("home", cell.dim).name, floor_div(piece, experts)), (expert, modulo(piece, experts))]


def piece_of(cell: Cell, rank: Expr, named: Mapping[str, Expr] | None = None) -> Segment:
    """The piece that `piece_place` names, in the memory of a rank. `named`: values for its names."""
    assert cell.route is not None

    def name(what: str) -> Expr:
        made = of_cell(what, cell.dim)
        return made if named is None else named[made.name]

    if cell.dim == cell.route.sent:
        return Segment(cell.route, name("home"), name(EXPERT), rank)
    return Segment(cell.route, rank, name(EXPERT), name("source") if cell.pieces != EXPERT else None)


def place_equations(grid: Sequence[Cell], index: Sequence[Range | Expr]) -> Equations:
    """(value, name) pairs that are equal if a view with this index lies in the cell that the names of `position`
    describe."""
    equations: Equations = []
    for k, (cell, i) in enumerate(zip(grid, index, strict=True)):
        if not isinstance(i, Range):
            equations.append((i, of_cell("index", k)))
        elif cell.route and i.segment is not None:
            piece = piece_of(cell, RANK)
            equations.append((i.segment.expert, piece.expert))
            if cell.pieces != EXPERT and i.segment.source is not None:
                of_rows = cell.dim == cell.route.rows
                equations.append((i.segment.source, piece.source) if of_rows else (i.segment.home, piece.home))
        elif not cell.route and cell.cut and not cell.local and i.part is not None:
            equations.append((i.part, of_cell("part", cell.dim)))
    return equations


@kept()
def recipient(signals: Signals, view: View, home: Expr) -> tuple[Expr | None, sympy.Basic]:
    """The recipients of a notification of a view at `home`: (rank, true), or (None, a condition on the rank
    `waiter`)."""
    if not signals.by_home:
        return home, sympy.true
    equations = place_equations(signals.grid, signals.index(view, home))
    condition = signals.waiters.xreplace({name: value for value, name in equations})
    if isinstance(condition, sympy.Eq) and WAITER in condition.args:
        other = condition.rhs if condition.lhs == WAITER else condition.lhs
        if WAITER not in other.free_symbols:
            return other, sympy.true
    return None, condition


@kept()
def times_notified(signals: Signals, notifier: Notifier, *, inside: bool = False) -> Expr:
    """How much a notifier adds to a cell for each value of its `sums`, if its `condition` holds; in the names of
    `position`. `inside`: the cell is known to hold elements, because a view lies in it."""
    home = of_cell("index", 0) if signals.by_home else RANK
    cells = [(c, t) for c, t in zip(signals.grid, notifier.tiles, strict=True) if c.dim != RANKS_DIM]
    return notifier.times * sympy.prod([_tiles_in_cell(c, t, inside, home) for c, t in cells])


@kept()
def cell_filled(signals: Signals) -> Expr:
    """0 for a cell without elements, else a larger number; in the names of `position`."""
    home = of_cell("index", 0) if signals.by_home else RANK
    parts = [_rows_of_part(c, home) for c in signals.grid if c.pieces == PART]
    others = [c for c in signals.grid if c.dim != RANKS_DIM and c.pieces != PART]
    return sympy.prod([*parts, *(_tiles_in_cell(c, c.size or 1, False, home) for c in others)])


def _rows_of_part(cell: Cell, home: Expr) -> Expr:
    """How many rows of a route a rank has on a side."""
    assert cell.route is not None
    return natural(end_of_rows(cell.route, cell.dim, home) - first_of(symbol(cell.dim), home))


def _tiles_in_cell(cell: Cell, tile: int | None, inside: bool, home: Expr) -> Expr:
    """How many tiles of this size lie in a cell in the memory of rank `home`; 0 for an empty cell."""
    begin, end = sympy.S.Zero, symbol(cell.dim)
    if cell.route and cell.pieces == PART:
        table = tiles_of_part(cell, tile)
        return table.begin(home, table.steps)
    if cell.route:
        begin, end = piece_of(cell, home).bounds(cell.dim)
    elif cell.cut:
        part = home if cell.local else of_cell("part", cell.dim) if cells_along(cell) != 1 else sympy.S.Zero
        begin, end = first_of(symbol(cell.dim), part), first_of(symbol(cell.dim), part + 1)
    if cell.size is None and cell.route and cell.pieces == EXPERT and tile is None:
        return sympy.S.One  # an expert without rows has one, too
    if cell.size is None:
        length = natural(end - begin) if cell.route else end - begin
        if tile is None:  # one tile for the whole part; an empty part has none
            return sympy.S.One if inside or not cell.cut else smaller(1, length)
        return ceil_div(length, tile)
    if inside and tile == cell.size:
        return sympy.S.One
    start = begin + (of_cell("cell", cell.dim) if cells_along(cell) != 1 else 0) * cell.size
    return ceil_div(smaller(cell.size, larger(0, end - start)), tile)
