"""Signals in a kernel: the cell of a view, and how often each cell is notified."""

from __future__ import annotations

from collections.abc import Set
from contextlib import ExitStack
from dataclasses import replace

import sympy

from tilelink.backend.addresses import Addresses
from tilelink.backend.kernel import ZERO, Source, Writer, call, grouped
from tilelink.backend.targets import Target
from tilelink.frontend.cells import (
    cells_along,
    cells_in_part,
    cells_of,
    cells_of_pieces,
    of_cell,
    piece_place,
    times_notified,
)
from tilelink.frontend.expressions import RANK, Expr, floor_div, of_dim, symbol, with_values
from tilelink.frontend.ir import RANKS_DIM, Cell, Range, Signals, View
from tilelink.frontend.routes import EXPERT, PART


def cell_of(signals: Signals, view: View, home: Expr) -> Expr:
    """The number of the signal of a view that a tile notifies."""
    cell: Expr = sympy.S.Zero
    for c, i in zip(signals.grid, signals.index(view, home), strict=True):
        cell = cell * cells_along(c) + cells_of(c, i)[0]
    return cell


def words_of(cell: Source, target: Target) -> Source:
    """Where the signal of a cell begins, in words from the first signal."""
    return cell if target.signal_words == 1 else f"{target.signal_words}*{grouped(cell)}"


def cells_awaited(signals: Signals, view: View) -> tuple[Expr, dict[Expr, Expr], list[tuple[str, Expr, Expr]]]:
    """The number of the signal that a tile waits for; its place, in the names of `signals.position`; and the loops over
    the cells that the view spans, each with its counter, first cell and end."""
    cell: Expr = sympy.S.Zero
    known: dict[Expr, Expr] = {}
    loops: list[tuple[str, Expr, Expr]] = []
    home = RANK
    if signals.by_home:
        home = view.home if isinstance(view.home, Expr) else of_dim(RANKS_DIM, "cell")
    for k, (c, i) in enumerate(zip(signals.grid, signals.index(view), strict=True)):
        first, count = cells_of(c, i)
        if count != 1:
            counter = of_dim(c.dim, "cell")
            loops.append((counter.name, first, first + count))
            first = counter
        known |= _place(c, k, i, first, home)
        cell = cell * cells_along(c) + first
    return cell, known, loops


def write_expected(
    write: Writer,
    addresses: Addresses,
    signals: Signals,
    known: dict[Expr, Expr],
    *,
    inside: bool,
    start: Source | None = None,
    holds: Set[sympy.Basic] = frozenset(),
) -> Source:
    """How often a cell is notified, in the names of `signals.position`, replaced by `known`. A sum over ranks needs a
    loop, which is written first and adds to `start` (a block of zeros, for blocks of cells). `holds`: conditions that
    hold here."""
    terms, loops, values = [], [], frozenset(known.items())
    either_way = {c.reversed for c in holds if isinstance(c, sympy.Eq | sympy.Ne)}
    for n in signals.notifiers:
        times = addresses.text(with_values(times_notified(signals, n, inside=inside), values))
        condition = with_values(n.condition, values).xreplace(dict.fromkeys(holds | either_way, sympy.true))
        condition = addresses.resolve(condition)
        if condition != sympy.true:
            times = call("tl.where", addresses.text(condition), times, 0)
        if n.sums:
            loops.append((n.sums, times))
        else:
            terms.append(times)
    if not loops:
        return " + ".join(terms)
    first = [start, *terms] if start else terms
    expected = write.set(addresses.made("expected"), " + ".join(first) if first else ZERO)
    for sums, times in loops:
        with ExitStack() as opened:
            for variable, begin, end in sums:
                bounds = addresses.text(begin), addresses.text(end)
                opened.enter_context(write.loop(addresses.local(variable), *bounds))
            # tables of parts have 64 bits, and a variable of a loop keeps its type
            write.set(expected, f"{times}.to(tl.int32)", operator="+=")
    return expected


def _place(c: Cell, k: int, i: Range | Expr, at: Expr, home: Expr) -> dict[Expr, Expr]:
    """The values of `part_D`, `cell_D` and `index_k` for the cell number `at` along a dimension."""
    if c.dim == RANKS_DIM:
        return {of_cell("index", k): at}
    if c.route:
        return _place_of_rows(c, i, at, home)
    if not c.cut or c.local:
        return {of_cell("cell", c.dim): at}
    inside = cells_in_part(c)
    part = i.part if isinstance(i, Range) and i.part is not None else floor_div(at, inside)
    return {of_cell("part", c.dim): part, of_cell("cell", c.dim): at - part * inside}


def _place_of_rows(c: Cell, i: Range | Expr, at: Expr, home: Expr) -> dict[Expr, Expr]:
    """The same as `_place`, for cells of the rows of a route, in the memory of a rank."""
    if c.pieces == PART:
        return {of_cell("cell", c.dim): at}
    one = isinstance(i, Range) and i.segment is not None and (i.segment.source is not None or c.pieces == EXPERT)
    if one:
        piece = cells_of(replace(c, size=None), i)[0]
    else:
        piece = at if c.size is None else cells_of_pieces(c).find(home, at)
    before = at if c.size is None else cells_of_pieces(c).begin(home, piece)
    place = {symbol(n): value for n, value in piece_place(c, piece)}
    return {**place, of_cell("cell", c.dim): at - before}
