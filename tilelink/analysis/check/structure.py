"""Proof by structure: a run of a program is safe at all sizes, in all worlds and for all routings.

The structure shows this if
1. one statement writes each tensor that tiles write; its view is another region or another rank's memory for each tile,
   and all views cover the tensor. (Two branches that write the same views are one statement.) No condition guards the
   statement, except:
   a. only the tiles that are the first along a dimension write an output, and that dimension is not empty;
   b. one statement writes what stays on the rank that made it, and another one the rest; of a buffer, nobody need write
      one of these halves;
2. the view is notified in the same place after the write, if anybody waits for the tensor;
3. reads of such a tensor lie in what was waited for; nobody reads a half that nobody writes, or waits for it;
4. roles wait only for roles before them in program order; roles that take turns count as one role, but a role with a
   wave may wait for rows of its expert that an earlier one of these roles writes;
5. nothing else is notified, so each tile notifies what it writes once;
6. views lie in their tensors, in the parts that they name, and in memory of ranks of the world;
7. outputs are written by their own rank.
By 1 no two tiles write to one place, and everything that is waited for is written. By 2 and 3 each read comes after the
one write to what it reads. By 4 the roles end one after the other, whatever the order of their tiles. Roles with a wave
do so turn by turn, and one after the other within a turn, since all ranks have as many experts. By 5 a cell gets as
many notifications as it has tiles, as derived. By 6 and 7 unrolling has nothing to refuse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import sympy

from tilelink.frontend import ir
from tilelink.frontend.bounds import below, ends_of
from tilelink.frontend.expressions import RANK, WORLD, Expr, Min, Mod, axis, first_of, symbol
from tilelink.frontend.kept import kept
from tilelink.frontend.routes import EXPERT, SEGMENT, end_of_rows
from tilelink.frontend.sizes import Sizes
from tilelink.frontend.views import on_side
from tilelink.frontend.walk import bounds_of
from tilelink.frontend.workload import members


@dataclass(frozen=True)
class RolePlace(ir.Place):
    """The place of a statement in a role."""

    role: ir.Role

    @property
    def target(self) -> ir.View | None:
        """The view that it writes, if it writes one."""
        return self.statement.target if isinstance(self.statement, ir.Write) else None


def role_places(program: ir.TileProgram) -> list[RolePlace]:
    """The places of all statements of all roles, in order of the source."""
    return [RolePlace(p.statement, p.outer, p.rest, r) for r in program.roles for p in ir.places(r.body)]


def _write_places(program: ir.TileProgram) -> list[RolePlace]:
    """The places of all statements that write or notify; those of two branches that write the same count once."""

    def once(s: ir.Statement) -> ir.Body:
        return s.orelse if isinstance(s, ir.If) and _given(s.body) == _given(s.orelse) else (s,)

    once_each = (replace(r, body=ir.rewritten(r.body, once)) for r in program.roles)
    found = role_places(replace(program, roles=tuple(once_each)))
    return [p for p in found if isinstance(p.statement, ir.Write | ir.Notify)]


def _given(body: ir.Body) -> tuple[object, ...]:
    """What a body writes and notifies, with the loops and branches around that."""
    given = list[object]()
    for s in body:
        inside = tuple(map(_given, s.blocks))
        if isinstance(s, ir.Write | ir.Notify):
            given.append((type(s) is ir.Notify, s.given, s.moved))
        elif any(inside):
            given.append((s.around(*((),) * len(inside)), inside))
    return tuple(given)


def why_not_structural(program: ir.TileProgram, sizes: Sizes | None = None) -> str:
    """The first reason why the structure does not suffice, with its line; "" if it suffices at all sizes. With `sizes`,
    also finds entries that do not exist, and outputs that the first tile along an empty dimension would write."""
    reason = _why_not(program)
    if reason or sizes is None:
        return reason
    found = role_places(program)
    places = (p for p in _write_places(program) if p.target)
    empty = [r.dim for p in places for r in _only_first(p) or () if not sizes.values[r.dim]]
    if empty:
        return f"the first tile along {empty[0]} writes a tensor, and {empty[0]} is 0"
    for view, site in ((v, p.statement.site) for p in found for v in p.statement.touched):
        for dim, i in zip(program.tensor(view.tensor).dims, view.index, strict=True):
            if _numbered(dim, i) and i >= sizes.values[dim]:
                return f"{view} is entry {i} along {dim}, which has {sizes.values[dim]} ({site})"
    return ""


@kept()
def _why_not(program: ir.TileProgram) -> str:
    found, written = role_places(program), _write_places(program)
    awaited = {v.tensor for p in found if isinstance(p.statement, ir.Wait) for v in p.statement.views}
    for tensor in (t for t in program.tensors if t.kind in ("buffer", "output")):
        if reason := _written_once(tensor, written, found, tensor.name in awaited):
            return reason
    turns = members(program.roles)
    numbers = {role.name: n for n, together in enumerate(turns) for role in together}
    writers = {t.name: [p for p in found if p.target and p.target.tensor == t.name] for t in program.tensors}
    waits = {(p.role.name, p.statement.name): p.statement for p in found if isinstance(p.statement, ir.Wait)}
    for p in found:
        for view in p.statement.touched:
            if reason := _misplaced(view, program.tensor(view.tensor), p):
                return f"{reason} ({p.statement.site})"
        if isinstance(p.statement, ir.Wait):
            for view, writer in ((v, w) for v in p.statement.views for w in writers[v.tensor]):
                first, then = numbers[writer.role.name], numbers[p.role.name]
                if first > then or (first == then and not _earlier_in_turn(writer, p.role, view, program)):
                    return f"{p.role.name} waits for {view.tensor}, which no earlier role writes ({p.statement.site})"
        for view in p.statement.read:
            if view.guard is not None and not any(_contained(view, w, p) for w in waits[p.role.name, view.guard].views):
                return f"{ir.Load(view)} may read more than was waited for ({p.statement.site})"
    return ""


def _earlier_in_turn(writer: RolePlace, role: ir.Role, waited: ir.View, program: ir.TileProgram) -> bool:
    """Whether a role waits for rows that a role it takes turns with writes earlier in the same turn: the rows that are
    written, the rows that are waited for and each of their signals belong to the tile's expert."""
    order = [r.name for r in program.roles]
    if not role.wave or order.index(writer.role.name) >= order.index(role.name):
        return False
    assert writer.target is not None
    signals = program.signals_of(waited.tensor)
    cells = signals.grid[1:] if signals.by_home else signals.grid
    along = zip(cells, writer.target.index, waited.index, strict=True)
    return any(
        cell.pieces in (SEGMENT, EXPERT) and _of_tile(written, writer.role) and _of_tile(read, role)
        for cell, written, read in along
    )


def _of_tile(i: ir.Range | Expr, role: ir.Role) -> bool:
    """Whether a range is the rows of a tile, which belong to the tile's expert."""
    return isinstance(i, ir.Range) and i.segment is not None and i in (*role.walk.ranges, role.walk.sent)


def _written_once(tensor: ir.Tensor, written: list[RolePlace], found: list[RolePlace], awaited: bool) -> str:
    """Why a tensor is not written once by tiles that notify what they wrote; "" if it is. `written`: the places of what
    writes or notifies; `found`: of everything."""
    name = tensor.name
    if tensor.buffers:
        return f"entries of {name} take turns in {tensor.buffers} buffers"
    writers = [(p, p.target) for p in written if p.target and p.target.tensor == name]
    halves = [_half(view, tensor, p) if len(p.conditions) == 1 else None for p, view in writers]
    if len(writers) != 1 and (len(writers) != 2 or None in halves or _other_half(halves[0]) != halves[1]):
        lines = ", ".join(str(p.statement.site) for p, _ in writers) or "no line"
        return f"{name} is written by {len(writers)} statements ({lines})"
    told = [p for p in written if isinstance(p.statement, ir.Notify) for v in p.statement.views if v.tensor == name]
    half = None not in halves and (len(halves) == 2 or tensor.kind == "buffer")
    for place, view in writers:
        site = place.statement.site
        if not half and (_only_first(place) is None or (place.conditional and told)):
            return f"whether {view} is written depends on a condition ({site})"
        if not _one_to_one(place, view, tensor):
            return f"tiles are not known to write to different places of {view}, and together to all of {name} ({site})"
        after = [v for s in place.rest if isinstance(s, ir.Notify) for v in s.views if v == view]
        if awaited and not after:
            return f"{view} is not notified after it is written ({site})"
        if told and (len(told) > len(writers) or not after):
            lines = ", ".join(str(p.statement.site) for p in told)
            return f"{name} is notified elsewhere than after the write, or in several places ({lines})"
    for p in found if half and len(halves) == 1 else ():
        for touched in (v for v in p.statement.touched if v.tensor == name):
            if _half(touched, tensor, p) != halves[0]:
                return f"{touched} may be a part of {name} that nobody writes ({p.statement.site})"
    return ""


Half = tuple[str, bool]


def _half(view: ir.View, tensor: ir.Tensor, place: RolePlace) -> Half | None:
    """Which half of a tensor a condition lets tiles reach at a place, by a dimension: what stays on the rank that made
    it (True), or the rest (False). None if no condition says that. In a tensor with an entry for each maker, what stays
    is the maker's own entry in its own memory; in a tensor that each rank has, it is the rank's own part."""
    index = list(zip(tensor.dims, view.index, strict=True))
    makers = [(dim, i) for dim, i in index if dim == ir.RANKS_DIM and isinstance(i, Expr)]
    if tensor.sharded is None:
        makers = [(dim, i.part) for dim, i in index if isinstance(i, ir.Range) and i.part is not None]
    if len(makers) != 1:
        return None
    ((along, maker),) = makers
    said = (c for c in place.conditions if isinstance(c, sympy.Eq | sympy.Ne) and {*c.args} == {maker, view.home})
    return next(((along, isinstance(c, sympy.Eq)) for c in said), None)


def _other_half(half: Half | None) -> Half | None:
    return half and (half[0], not half[1])


def _only_first(place: RolePlace) -> list[ir.Range] | None:
    """The ranges along which only the first tile reaches a place, by all of its conditions; None if a condition says
    something else."""
    ranges = [r for r in place.role.walk.ranges if r.part is None and r.segment is None]
    only = [next((r for r in ranges if c == sympy.Eq(r.start, 0)), None) for c in place.conditions]
    known = all(not isinstance(s, ir.DataIf) for s, _ in place.outer)
    return [r for r in only if r is not None] if known and None not in only else None


def _one_to_one(place: RolePlace, view: ir.View, tensor: ir.Tensor) -> bool:
    """Whether the tiles of a role write to different places, which together are all of the tensor."""
    walk = place.role.walk
    if any(count != WORLD for name, count in walk.axes if name != walk.expert):
        return False
    left = {symbol(name) for name, _ in walk.axes} | {RANK}
    missing = [r for r in on_side(walk.ranges, walk.sent, tensor.dims) if r not in (_only_first(place) or ())]
    left |= {symbol(x.name) for x in place.loops if (x.start, x.stop, x.step) == (0, WORLD, 1)}
    loops = [loop for loop in place.loops if symbol(loop.name) not in left]
    entries = [i for i in view.index if not isinstance(i, ir.Range)]
    by_entry = [r for r in missing if r not in view.ranges and _all_of_expert(r) in entries]
    if by_entry:  # tiles of all rows of an expert, and an entry for each expert
        missing.remove(by_entry[0])
        entries.remove(axis(EXPERT))
        left.remove(axis(EXPERT))
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
    told = [r for r in walk.ranges if r not in by_entry]
    left -= {r.part for r in told}  # the range of a tile says in whose part it lies
    left -= {e for r in told if r.segment for e in vars(r.segment).values()}  # and its segment whose rows it has
    if tensor.sharded is None and isinstance(view.home, Expr):
        entries.append(view.home)
    return _permutes(entries, left)


def _all_of_expert(r: ir.Range) -> Expr | None:
    """The expert whose rows a range covers completely; None if there is none."""
    return r.segment.expert if r.segment and r.segment.source is None and r.extent is None else None


def _permutes(entries: list[Expr], left: set[sympy.Symbol]) -> bool:
    """Whether the ranks in `left` give the entries one to one, where each entry takes all values below the world. Two
    entries that are always equal need a rank each, so they are not shown to be."""
    while entries:
        taken = next(((k, v) for k, e in enumerate(entries) for v in left if _shifted(e, v, left)), None)
        if taken is None:
            return False
        at, rank = taken
        entries, left = [*entries[:at], *entries[at + 1 :]], left - {rank}
    return not left


def _shifted(e: Expr, v: sympy.Symbol, others: set[sympy.Symbol]) -> bool:
    """Whether e is v, or (v + c) % world, where c depends on none of the others."""
    if e == v:
        return True
    if not (isinstance(e, Mod) and e.args[1] == WORLD):
        return False
    return not (sympy.expand(e.args[0] - v).free_symbols & others)


def _contained(view: ir.View, waited: ir.View, place: RolePlace) -> bool:
    """Whether a view lies in a view that was waited for, at all sizes."""
    if view.tensor != waited.tensor or view.home != waited.home:
        return False
    pairs = zip(view.index, waited.index, strict=True)
    return all(
        i == w
        or (isinstance(w, ir.Range) and (w.whole or (isinstance(i, Expr) and _begins(w, i, place))))
        or (isinstance(i, ir.Range) and isinstance(w, ir.Range) and _lies(i, w.start, w.stop, place))
        for i, w in pairs
    )


def _misplaced(view: ir.View, tensor: ir.Tensor, place: RolePlace) -> str:
    """Why a view may leave its tensor, its part or the world, or be another rank's output; "" if it does not."""
    writes = isinstance(place.statement, ir.Write) and view == place.statement.target
    if writes and tensor.kind == "output" and view.home != RANK:
        return (
            f"{view} may be memory of another rank than the one that stores it; at='home' in the schedule lets its "
            "home store it"
        )
    if view.home != ir.ALL_RANKS and not (isinstance(view.home, Expr) and _below(view.home, WORLD, place)):
        return f"{view} may be on a rank outside the world"
    for k, (dim, i) in enumerate(zip(tensor.dims, view.index, strict=True)):
        size = WORLD if dim == ir.RANKS_DIM else symbol(dim)
        if isinstance(i, Expr):
            inside = _numbered(dim, i) or _below(i, size, place)
            inside = inside or any(r.dim == dim and _begins(r, i, place) for r in place.role.walk.ranges)
        elif i.part is not None:
            if not _below(i.part, WORLD, place):
                return f"{view} may be in the part of a rank outside the world"
            inside = _lies(i, first_of(size, i.part), first_of(size, i.part + 1), place)
            inside = inside and (k != tensor.sharded or _one_rank(view.home, i.part, place))
        else:
            inside = _lies(i, sympy.S.Zero, size, place)
        if not inside:
            return f"{view} may lie outside {tensor.name} along {dim}"
    return ""


def _one_rank(home: Expr | str | None, part: Expr, place: RolePlace) -> bool:
    """Whether a home is the rank of a part, by itself or by a condition."""
    return home == part or any(isinstance(c, sympy.Eq) and {*c.args} == {home, part} for c in place.conditions)


def _begins(r: ir.Range, i: Expr, place: RolePlace) -> bool:
    """Whether an entry is where a range of a tile begins. The range holds it: no tile is empty along what it cuts."""
    return r.start == i and r.extent is not None and r.part is None and r in place.role.walk.ranges


def _numbered(dim: str, i: ir.Range | Expr) -> bool:
    """Whether an index is a constant entry, which exists if the dimension is large enough."""
    return isinstance(i, sympy.Integer) and i >= 0 and dim != ir.RANKS_DIM


def _lies(i: ir.Range, begin: Expr, end: Expr, place: RolePlace) -> bool:
    """Whether a range lies in [begin, end), at all sizes. It is followed outwards, through the loops whose steps it is,
    to the tile, its part and the dimension."""
    start, stops, ends = i.start, _least_of(i.stop), _least_of(end)
    loops = {symbol(x.name): x for x in place.loops}
    walk = place.role.walk
    tiles = {r.start: r for r in (*walk.ranges, walk.sent) if r is not None and r.dim == i.dim}
    while start != begin or not ends <= stops:
        if start in loops:
            loop = loops.pop(start)
            bounds = _least_of(loop.stop)
            if start + loop.step in stops:  # no step goes beyond a bound that steps fill
                stops |= {b for b in bounds if ((b - loop.start) / loop.step).is_Integer}
            start = loop.start
        elif start in tiles:
            tile = tiles.pop(start)
            first, last = bounds_of(tile.dim, tile.part)
            stops |= _ends(tile, last) if _least_of(tile.limit) <= stops else set()
            start = first
        elif isinstance(start, first_of) and _below(part := start.args[1], WORLD, place):
            stops |= {symbol(i.dim)} if first_of(symbol(i.dim), part + 1) in stops else set()
            start = sympy.S.Zero
        else:
            return False
    return True


def _ends(tile: ir.Range, last: Expr) -> set[Expr]:
    """Where a tile ends at the latest: at the end of its part and, for rows of a route, at the end of the rows in that
    part."""
    rows = tile.segment and tile.part is not None
    return {last, end_of_rows(tile.segment.route, tile.dim, tile.part)} if rows and tile.segment else {last}


def _least_of(e: Expr) -> set[Expr]:
    """The expressions whose minimum `e` is."""
    return set(e.args) if isinstance(e, Min) else {e}


def _below(e: Expr, size: Expr, place: RolePlace) -> bool:
    """Whether an integer is in [0, size), at all sizes."""
    return below(e, size, ends_of(place.role.walk, place.loops))
