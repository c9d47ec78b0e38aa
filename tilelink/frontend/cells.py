"""The cells of a signal grid: how many a rank has, which of them a view lies in (the mapping f_C), where a cell lies,
and how often it is notified. All in symbols, of sizes, parts and ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    of_dim,
    own,
    segment_of,
    smaller,
    symbol,
)
from tilelink.frontend.ir import RANKS_DIM, Cell, Notifier, Range, Signals, View
from tilelink.frontend.kept import kept
from tilelink.frontend.routes import EXPERT, SEGMENT, Segment, segments_of_rank
from tilelink.frontend.walk import longest_part

Equations = list[tuple[Expr, Expr]]
CELL, WAITER = own("cell"), own("waiter")
"""The flat number of a cell on its rank; and a rank that waits, in the condition of which ranks do."""


@kept()
def cells_along(cell: Cell) -> Expr:
    """How many cells a rank has along a dimension."""
    if cell.dim == RANKS_DIM:
        return WORLD
    inside = cells_in_part(cell)
    if cell.route:
        return inside * pieces_of_rank(cell)
    return inside * WORLD if cell.cut and not cell.local else inside


def cells_in_part(cell: Cell) -> Expr:
    """How many cells the longest part (or piece of a route, or the dimension, where it is not cut) has."""
    if cell.size is None:
        return sympy.S.One
    if cell.route:
        return ceil_div(of_dim(cell.dim, cell.pieces), cell.size)
    return ceil_div(longest_part(cell.dim) if cell.cut else symbol(cell.dim), cell.size)


def pieces_of_rank(cell: Cell) -> Expr:
    """How many pieces a rank has that cells of the rows of a route do not cross."""
    assert cell.route is not None
    return segments_of_rank(cell.route) if cell.pieces == SEGMENT else symbol(cell.route.per_rank)


@kept()
def cell_count(signals: Signals) -> Expr:
    """How many signals a rank has for the tensor."""
    return sympy.prod([cells_along(c) for c in signals.grid])


@kept()
def cells_of(cell: Cell, index: Range | Expr) -> tuple[Expr, Expr]:
    """The cells along one dimension that a range intersects: (first, how many)."""
    if not isinstance(index, Range):
        return index, sympy.S.One
    if cell.route:
        return _cells_of_rows(cell, index)
    if cell.size is None:
        if not cell.cut or cell.local:
            return sympy.S.Zero, sympy.S.One
        return (index.part, sympy.S.One) if index.part is not None else (sympy.S.Zero, WORLD)
    if index.part is None and cell.cut:
        return sympy.S.Zero, cells_along(cell)
    before = cells_in_part(cell) * index.part if cell.cut and not cell.local else sympy.S.Zero
    offset = index.offset
    if index.segment:
        offset = natural(index.start - first_of(symbol(cell.dim), index.part))
    first = floor_div(offset, cell.size)
    if index.extent is not None and cell.size % index.extent == 0 and not index.segment:
        return before + first, sympy.S.One
    return before + first, ceil_div(offset + natural(index.stop - index.start), cell.size) - first


def _cells_of_rows(cell: Cell, rows: Range) -> tuple[Expr, Expr]:
    """The cells that rows of a route lie in: those of one piece, or, where they may lie in several, the cells of all
    pieces that they touch, each of which is one then."""
    segment, route = rows.segment, cell.route
    assert route is not None
    if rows.whole:
        return sympy.S.Zero, cells_along(cell)
    if segment is None or (segment.source is None and cell.pieces == SEGMENT):
        assert cell.size is None, "a cell a piece where rows cross pieces"
        every, before = (segments_of_rank(route), sympy.S.Zero) if segment is None else (WORLD, segment.expert * WORLD)
        home = RANK if rows.part is None else rows.part
        pieces = symbol(cell.dim), home * segments_of_rank(route) + before, every
        one, other = (segment_of(pieces[0], row, *pieces[1:]) for row in (rows.start, rows.stop - 1))
        if cell.pieces == EXPERT:  # which is of one expert after the other
            one, other = floor_div(one, WORLD), floor_div(other, WORLD)
        return before + one, other - one + 1
    piece, offset = segment.expert, rows.offset
    if cell.pieces == SEGMENT and segment.source is not None:
        piece = segment.expert * WORLD + segment.source
        piece = piece if cell.dim == route.rows else segment.home * symbol(route.per_rank) + segment.expert
    elif segment.source is not None:
        offset = natural(rows.start - replace(segment, source=None).bounds(cell.dim)[0])
    if cell.size is None:
        return piece, sympy.S.One
    first = piece * cells_in_part(cell) + floor_div(offset, cell.size)
    if (segment.source is None) == (cell.pieces == EXPERT) and rows.extent and cell.size % rows.extent == 0:
        return first, sympy.S.One
    length = natural(rows.stop - rows.start)
    return first, ceil_div(offset + length, cell.size) - floor_div(offset, cell.size)


@kept()
def position(signals: Signals) -> tuple[tuple[str, Expr], ...]:
    """Where a cell lies, from its flat number `cell`: keys with their values, in order.

    `part_D` and `cell_D` (`of_cell`) are the part and the number inside the part along D; `index_k` the entry of
    dimension k.
    """
    made: list[tuple[str, Expr]] = []
    rest: Expr = CELL
    for k, c in reversed(list(enumerate(signals.grid))):
        along = cells_along(c)
        here = rest if k == 0 else modulo(rest, along)
        if along != 1:
            if c.dim == RANKS_DIM:
                made.append((of_cell("index", k).name, here))
            elif c.route or (c.cut and not c.local):
                piece = floor_div(here, cells_in_part(c))
                made += piece_place(c, piece) if c.route else [(of_cell("part", c.dim).name, piece)]
                made.append((of_cell("cell", c.dim).name, modulo(here, cells_in_part(c))))
            else:
                made.append((of_cell("cell", c.dim).name, here))
        rest = floor_div(rest, along)
    return tuple(made)


def of_cell(what: str, along: str | int) -> sympy.Symbol:
    """A part of where a cell lies: `part_D`, `cell_D`, `index_k`."""
    return own(f"{what}.{along}")


def piece_place(cell: Cell, piece: Expr) -> list[tuple[str, Expr]]:
    """What `expert_D`, `source_D` and `home_D` are for a piece of the rows of a route, by its number on its rank."""
    assert cell.route is not None
    expert = of_cell(EXPERT, cell.dim).name
    if cell.pieces == EXPERT:
        return [(expert, piece)]
    if cell.dim == cell.route.rows:
        return [(expert, floor_div(piece, WORLD)), (of_cell("source", cell.dim).name, modulo(piece, WORLD))]
    experts = symbol(cell.route.per_rank)
    return [(of_cell("home", cell.dim).name, floor_div(piece, experts)), (expert, modulo(piece, experts))]


def piece_of(cell: Cell, rank: Expr) -> Segment:
    """The piece that `piece_place` names, in memory of a rank."""
    assert cell.route is not None
    expert = of_cell(EXPERT, cell.dim)
    if cell.dim == cell.route.sent:
        return Segment(cell.route, of_cell("home", cell.dim), expert, rank)
    return Segment(cell.route, rank, expert, of_cell("source", cell.dim) if cell.pieces == SEGMENT else None)


def place_equations(grid: Sequence[Cell], index: Sequence[Range | Expr]) -> Equations:
    """What has to hold so that a view of this index lies in the cell that the names of `position` say: values of the
    view with the names that they equal."""
    equations: Equations = []
    for k, (cell, i) in enumerate(zip(grid, index, strict=True)):
        if not isinstance(i, Range):
            equations.append((i, of_cell("index", k)))
        elif cell.route and i.segment is not None:
            piece = piece_of(cell, RANK)
            equations.append((i.segment.expert, piece.expert))
            if cell.pieces == SEGMENT and i.segment.source is not None:
                of_rows = cell.dim == cell.route.rows
                equations.append((i.segment.source, piece.source) if of_rows else (i.segment.home, piece.home))
        elif not cell.route and cell.cut and not cell.local and i.part is not None:
            equations.append((i.part, of_cell("part", cell.dim)))
    return equations


@kept()
def recipient(signals: Signals, view: View, home: Expr) -> tuple[Expr | None, sympy.Basic]:
    """Who gets a notification of a view at `home`: a rank, or every rank `waiter` for which the condition holds."""
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
    """What a notifier adds to a cell, for each value of its `sums` where its `condition` holds, in the names of
    `position`. `inside`: the cell is known to hold elements, as one that a view lies in."""
    home = of_cell("index", 0) if signals.by_home else RANK
    cells = [(c, t) for c, t in zip(signals.grid, notifier.tiles, strict=True) if c.dim != RANKS_DIM]
    return notifier.times * sympy.prod([_tiles_in_cell(c, t, inside, home) for c, t in cells])


@kept()
def cell_filled(signals: Signals) -> Expr:
    """1 where a cell holds elements, 0 where it does not, in the names of `position`."""
    home = of_cell("index", 0) if signals.by_home else RANK
    return sympy.prod([_tiles_in_cell(c, c.size, False, home) for c in signals.grid if c.dim != RANKS_DIM])


def _tiles_in_cell(cell: Cell, tile: int | None, inside: bool, home: Expr) -> Expr:
    """How many tiles of this size lie in a cell of memory of rank `home`; 0 where the cell is empty."""
    begin, end = sympy.S.Zero, symbol(cell.dim)
    if cell.route:
        begin, end = piece_of(cell, home).bounds(cell.dim)
    elif cell.cut:
        part = home if cell.local else of_cell("part", cell.dim) if cells_along(cell) != 1 else sympy.S.Zero
        begin, end = first_of(symbol(cell.dim), part), first_of(symbol(cell.dim), part + 1)
    if cell.size is None:
        length = natural(end - begin) if cell.route else end - begin
        if tile is None:  # the whole of it in one tile, which an empty part has not
            return sympy.S.One if inside or not cell.cut else sympy.Min(1, length)
        return ceil_div(length, tile)
    if inside and tile == cell.size:
        return sympy.S.One
    start = begin + (of_cell("cell", cell.dim) if cells_along(cell) != 1 else 0) * cell.size
    return ceil_div(smaller(cell.size, larger(0, end - start)), tile)
