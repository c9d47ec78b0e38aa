"""What the structure of a program shows for all sizes, worlds and routings: no race and no deadlock inside a run.

It does so where
1. each tensor that tiles write is written by one statement, which no condition guards, and whose view is another
   region or another rank's memory for each tile, and covers the tensor in all;
2. that view is notified in the same place after it is written, if anybody waits for the tensor;
3. what is read of such a tensor lies in what was waited for;
4. roles wait for roles before them in program order only (roles that take turns are one).
By 1 no two tiles write to one place, and all that is waited for is written. By 2 and 3 each read comes after the one
write to what it reads. By 4 the roles end one after the other, whatever the order of their tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sympy

from tilelink.frontend.expressions import RANK, WORLD, Expr, symbol
from tilelink.frontend.ir import (
    Copy,
    DataIf,
    For,
    If,
    Load,
    Notify,
    Range,
    Role,
    Statement,
    Store,
    Tensor,
    TileProgram,
    View,
    Wait,
    loads_of,
)
from tilelink.frontend.turns import members
from tilelink.frontend.views import on_side


@dataclass(frozen=True)
class Place:
    """A statement, what follows it in its block, and the loops and conditions around it."""

    role: Role
    statement: Statement
    rest: tuple[Statement, ...]
    loops: tuple[For, ...]
    conditional: bool


def places(role: Role) -> Iterator[Place]:
    """All statements of a role, in order of the source."""

    def visit(body: tuple[Statement, ...], loops: tuple[For, ...], conditional: bool) -> Iterator[Place]:
        for k, s in enumerate(body):
            yield Place(role, s, body[k + 1 :], loops, conditional)
            if isinstance(s, For):
                yield from visit(s.body, (*loops, s), conditional)
            elif isinstance(s, If | DataIf):
                yield from visit(s.body, loops, True)
                yield from visit(s.orelse, loops, True)

    yield from visit(role.body, (), False)


def why_not_structural(program: TileProgram) -> str:
    """The first thing for which the structure does not suffice, with its line; "" where it does."""
    found = [p for role in program.roles for p in places(role)]
    awaited = {v.tensor for p in found if isinstance(p.statement, Wait) for v in p.statement.views}
    for tensor in program.tensors:
        if tensor.kind in ("buffer", "output"):
            reason = _written_once(tensor, found, tensor.name in awaited)
            if reason:
                return reason
    numbers = {role.name: n for n, together in enumerate(members(program.roles)) for role in together}
    writers = {p.statement.target.tensor: p for p in found if isinstance(p.statement, Store | Copy)}
    waits = {(p.role.name, p.statement.name): p for p in found if isinstance(p.statement, Wait)}
    for p in found:
        if isinstance(p.statement, Wait):
            for view in p.statement.views:
                if numbers[writers[view.tensor].role.name] >= numbers[p.role.name]:
                    return f"{p.role.name} waits for {view.tensor}, which no earlier role writes ({p.statement.site})"
        views = [load.view for load in loads_of(p.statement)]
        views += [p.statement.source] if isinstance(p.statement, Copy) else []
        for view in views:
            if view.guard is not None:
                wait = waits[p.role.name, view.guard].statement
                assert isinstance(wait, Wait)
                if not any(_contained(view, w, p.loops) for w in wait.views):
                    return f"{Load(view)} may read more than was waited for ({p.statement.site})"
    return ""


def _written_once(tensor: Tensor, found: list[Place], awaited: bool) -> str:
    """Why a tensor is not written once by tiles that notify what they wrote; "" where it is."""
    name = tensor.name
    if tensor.buffers:
        return f"entries of {name} take turns in {tensor.buffers} buffers"
    writers = [p for p in found if isinstance(p.statement, Store | Copy) and p.statement.target.tensor == name]
    if len(writers) != 1:
        lines = ", ".join(str(p.statement.site) for p in writers) or "no line"
        return f"{name} is written by {len(writers)} statements ({lines})"
    (place,) = writers
    assert isinstance(place.statement, Store | Copy)
    view, site = place.statement.target, place.statement.site
    if place.conditional:
        return f"whether {view} is written depends on a condition ({site})"
    if not _one_to_one(place, view, tensor):
        return f"that {view} is another place for each tile, and all of them together are {name}, is not seen ({site})"
    told = any(isinstance(s, Notify) and view in s.views for s in place.rest)
    if awaited and not told:
        return f"{view} is not notified after it is written ({site})"
    return ""


def _one_to_one(place: Place, view: View, tensor: Tensor) -> bool:
    """Whether the places that the tiles of a role write to are different, and are all of the tensor's."""
    walk = place.role.walk
    if any(count != WORLD for name, count in walk.axes if name != walk.expert):
        return False
    left = {symbol(name) for name, _ in walk.axes} | {RANK}
    missing = list(on_side(walk.ranges, walk.sent, tensor.dims))
    left |= {symbol(x.name) for x in place.loops if (x.start, x.stop, x.step) == (0, WORLD, 1)}
    loops = [loop for loop in place.loops if symbol(loop.name) not in left]
    for i in view.ranges:
        if i in missing:
            missing.remove(i)
        elif (loop := next((x for x in loops if symbol(x.name) == i.start), None)) is not None:
            if (loop.start, loop.stop, loop.step) != (0, symbol(i.dim), i.extent) or i.bounded:
                return False
            loops.remove(loop)
        elif not i.whole:
            return False
    if missing or loops:
        return False
    left -= {r.part for r in walk.ranges}  # the range of a tile says in whose part it lies
    left -= {e for r in walk.ranges if r.segment for e in vars(r.segment).values()}  # and rows, whose they are
    entries = [i for i in view.index if not isinstance(i, Range)]
    if tensor.sharded is None and isinstance(view.home, Expr):
        entries.append(view.home)
    return _permutes(entries, left)


def _permutes(entries: list[Expr], left: set[sympy.Symbol]) -> bool:
    """Whether ranks `left` give the entries, each from 0 to the world, one to one."""
    while entries:
        taken = next(((e, v) for e in entries for v in left if _shifted(e, v, left)), None)
        if taken is None:
            return False
        entries = [e for e in entries if e is not taken[0]]
        left = left - {taken[1]}
    return not left


def _shifted(e: Expr, v: sympy.Symbol, others: set[sympy.Symbol]) -> bool:
    """Whether e is v, or (v + c) % world, where c depends on none of the others."""
    if e == v:
        return True
    if not (isinstance(e, sympy.Mod) and e.args[1] == WORLD):
        return False
    return not (sympy.expand(e.args[0] - v).free_symbols & others)


def _contained(view: View, waited: View, loops: tuple[For, ...]) -> bool:
    """Whether a view lies in one that was waited for, whatever the sizes."""
    if view.tensor != waited.tensor or view.home != waited.home:
        return False
    return all(_within(i, w, loops) for i, w in zip(view.index, waited.index, strict=True))


def _within(i: Range | Expr, w: Range | Expr, loops: tuple[For, ...]) -> bool:
    if i == w:
        return True
    if not isinstance(i, Range) or not isinstance(w, Range):
        return False
    if w.whole:
        return True
    loop = next((x for x in loops if symbol(x.name) == i.start), None)
    stops = i.stop.args if isinstance(i.stop, sympy.Min) else (i.stop,)
    ends = w.stop.args if isinstance(w.stop, sympy.Min) else (w.stop,)
    if loop is None or loop.start != w.start:
        return False
    bounds = loop.stop.args if isinstance(loop.stop, sympy.Min) else (loop.stop,)
    whole = {b for b in bounds if ((b - loop.start) / loop.step).is_Integer}  # no step goes beyond these
    return set(ends) <= set(stops) | whole
