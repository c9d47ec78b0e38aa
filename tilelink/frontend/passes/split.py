"""Splits loops that wait, so that what they load can be loaded together.

A loop is split at the boundaries of cells: an outer loop waits for a cell, and an inner loop goes through it.

    for s in steps:                        for s_cell in cells of the signals:
        k = wait(keys[s])       becomes        k = wait(keys[s_cell])
        ... k.load() ...                       for s in steps of s_cell:
                                                   ... k.load() ...

A loop with a wait in it can't be pipelined, because its loads would be issued before the wait. The inner loop can. No
wait comes earlier than before, so a tile may notify in such a loop what a later step of another tile waits for.

A loop that adds up what all ranks have sent waits for all of it first, and loads then:

    for r in ranks:                        k = wait(keys[all ranks])
        k = wait(keys[r])       becomes    for r in ranks:
        ... k.load() ...                       ... k.load() ...

Nobody waits for what this loop makes, so it may wait earlier. A loop that multiplies is not changed like this: it would
be idle until the last rank has sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import takewhile
from math import gcd

import sympy

from tilelink.frontend import ir
from tilelink.frontend.expressions import WORLD, Expr, smaller, symbol
from tilelink.frontend.passes.elaborate import Binding

Grids = Mapping[str, ir.Signals]


def split_waits(program: ir.TileProgram, _: Binding) -> ir.TileProgram:
    """The program with loops split, if the wait stands before everything that the loop's body stores or notifies, and
    the cells it looks at hold whole steps."""
    grids = {s.tensor: s for s in program.signals}

    def change(s: ir.Statement) -> ir.Body:
        if not isinstance(s, ir.For):
            return (s,)
        return _for_all_ranks(s, program) or (_split(s, grids),)

    return replace(program, roles=tuple(replace(r, body=ir.rewritten(r.body, change)) for r in program.roles))


def _for_all_ranks(s: ir.For, program: ir.TileProgram) -> ir.Body:
    """For a loop over all ranks that only loads and adds: a wait for all ranks, then the loop. () for another loop."""
    waits = [w for w in takewhile(lambda b: isinstance(b, ir.Wait), s.body) if isinstance(w, ir.Wait)]
    rest = s.body[len(waits) :]
    loads_alone = all(isinstance(b, ir.Compute) and not b.code.dots for b in rest)
    if not waits or not loads_alone or (s.start, s.stop, s.step) != (0, WORLD, 1):
        return ()
    name, everybody = symbol(s.name), ir.Range(ir.RANKS_DIM, sympy.S.Zero, WORLD, None, whole=True)
    gathered = []
    for w in waits:
        views = []
        for v in w.views:
            tensor = program.tensor(v.tensor)
            entries = [i == name and d == ir.RANKS_DIM for d, i in zip(tensor.dims, v.index, strict=True)]
            index = (everybody if of_rank else i for of_rank, i in zip(entries, v.index, strict=True))
            whole = replace(v, index=tuple(index))
            if sum(entries) != 1 or name in whole.symbols or tensor.buffers:
                return ()
            views.append(whole)
        gathered.append(replace(w, views=tuple(views)))
    return (*gathered, replace(s, body=rest))


def _split(s: ir.For, grids: Grids) -> ir.Statement:
    """The loop, or what it is split into."""
    head = takewhile(lambda b: isinstance(b, ir.Wait | ir.Compute), s.body)
    waits = [w for w in head if isinstance(w, ir.Wait)]
    if not waits or len(list(ir.every(ir.Wait, s.body))) > len(waits):
        return s
    chunks = [_chunk(s, v, grids) for w in waits for v in w.views]
    if any(c == 0 for c in chunks):
        return s
    sizes = [c for c in chunks if c is not None]
    inner = replace(s, body=tuple(b for b in s.body if b not in waits))
    if not sizes:  # all steps wait for the same cells
        whole = [_along(w, s, lambda r: replace(r, start=s.start, stop=s.stop, extent=None)) for w in waits]
        return ir.If(s.site, sympy.Lt(s.start, s.stop), (*whole, inner), ())
    chunk = gcd(*sizes)
    spread = any(r.part is not None for w in waits for v in w.views for r in v.ranges if r.start == symbol(s.name))
    if chunk < s.step or (chunk == s.step and spread):
        return s
    lo = symbol(f"{s.name}.cell")

    def cell(r: ir.Range) -> ir.Range:
        offset = r.offset.xreplace({symbol(s.name): lo})
        return replace(r, start=lo, stop=smaller(lo + chunk, s.stop), extent=chunk, offset=offset)

    inner = replace(inner, start=lo, stop=smaller(lo + chunk, s.stop))
    outer = [_along(w, s, cell) for w in waits]
    return ir.For(s.site, str(lo), s.start, s.stop, chunk, (*outer, inner))


def _chunk(s: ir.For, view: ir.View, grids: Grids) -> int | None:
    """How many elements of the loop one cell of a waited view holds: None for all, 0 if a cell does not hold whole
    steps."""
    name, cells = symbol(s.name), grids[view.tensor].grid[-len(view.index) :]
    if isinstance(view.home, Expr) and name in view.home.free_symbols:
        return 0
    found: int | None = None
    for cell, i in zip(cells, view.index, strict=True):
        if not isinstance(i, ir.Range):
            if name in i.free_symbols:
                return 0
        elif i.start == name and i.extent == s.step:
            if cell.size is None and i.part is None and cell.cut and not cell.local:
                return 0
            if cell.size is not None and (cell.size % s.step or not _aligned(s, i, cell.size)):
                return 0
            found = cell.size
        elif name in i.start.free_symbols | i.stop.free_symbols:
            return 0
    return found


def _aligned(s: ir.For, r: ir.Range, size: int) -> bool:
    """Whether the loop begins where a cell of this size begins, or lies in one cell."""
    if r.offset.xreplace({symbol(s.name): s.start}) == 0:
        return True
    return r.inside is not None and (r.inside % size == 0 or size % r.inside == 0)


def _along(w: ir.Wait, s: ir.For, change: Callable[[ir.Range], ir.Range]) -> ir.Wait:
    """The wait with the ranges changed that follow the loop."""
    name = symbol(s.name)
    views = []
    for v in w.views:
        index = tuple(change(i) if isinstance(i, ir.Range) and i.start == name else i for i in v.index)
        views.append(replace(v, index=index))
    return replace(w, views=tuple(views))
