"""Derives the signals of a program: grids, scopes, who notifies and how often. `cells.py` reads the result.

Users write none of this. A grid is as fine as the tiles that notify, and as coarse as the waits allow: if every wait
covers a whole dimension, one cell is enough. Cells cross the parts of the ranks only if the notifying tiles do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from tilelink.errors import (
    DimensionError,
    ScheduleError,
    SignalCountError,
    Site,
    WaitWithoutNotifyError,
    counted,
    listed,
)
from tilelink.frontend import ir
from tilelink.frontend.arithmetic import to_text
from tilelink.frontend.cells import WAITER, Equations, of_cell, piece_place, place_equations
from tilelink.frontend.expressions import PER_NODE, RANK, WORLD, Expr, ceil_div, larger, own, shown, symbol
from tilelink.frontend.passes.elaborate import Binding
from tilelink.frontend.routes import EXPERT, PART, SEGMENT
from tilelink.frontend.schedule import Schedule, SMs
from tilelink.language import RouteWord

_EXECUTOR = own("executor")


@dataclass(frozen=True)
class _Use:
    """A wait or a notify of a view, with its place."""

    role: ir.Role
    view: ir.View
    place: ir.Place

    @property
    def site(self) -> Site:
        return self.place.statement.site

    @property
    def near(self) -> bool:
        """Whether the view is in memory of the executing rank."""
        home = self.view.home
        return home == RANK or (home != ir.ALL_RANKS and sympy.Eq(home, RANK) in self.place.conditions)


def _uses(program: ir.TileProgram, kind: type[ir.Wait] | type[ir.Notify]) -> list[_Use]:
    """All waits, or all notifies, of a program."""
    stand = ((r, p, p.statement) for r in program.roles for p in ir.places(r.body))
    return [_Use(r, view, p) for r, p, s in stand if isinstance(s, kind) for view in s.views]


def derive_signals(program: ir.TileProgram, binding: Binding) -> ir.TileProgram:
    """The program with the signals of every tensor that is notified. The schedule may ask for a grid."""
    waits, notifies = _uses(program, ir.Wait), _uses(program, ir.Notify)
    notified = {u.view.tensor for u in notifies}
    reused = {ir.token_name(t.name): t.name for t in program.tensors if t.buffers}
    for u in (u for u in waits if u.view.tensor not in notified):
        name = reused.get(u.view.tensor)
        raise WaitWithoutNotifyError(
            f"{u.role.name} claims entries of {name}, but no tile of the program releases any: the entry before would "
            f"never be released. tk.release(...) what tk.wait({name}[...]) returned, after its last read"
            if name else
            f"{u.role.name} waits for {u.view}, but no tile of the program notifies {u.view.tensor}"
            + _stored(u.view.tensor, program),
            u.site,
        )
    for name in binding.schedule.cells:
        if name not in notified:
            site = binding.schedule.site
            raise ScheduleError(
                f"the schedule gives {name} a signal grid, but nobody notifies it; notified are: "
                f"{listed(sorted(notified), name) or 'none'}",
                site,
            )
    made = []
    for tensor in (t for t in program.tensors if t.name in notified):
        theirs, mine = ([u for u in uses if u.view.tensor == tensor.name] for uses in (notifies, waits))
        made.append(_signals(tensor, theirs, mine, program, binding.schedule))
    return replace(program, signals=tuple(made))


def _stored(tensor: str, program: ir.TileProgram) -> str:
    """The end of an error about a wait without a notify: where the tensor is stored to, and what to write there."""
    writes = [s for r in program.roles for s in ir.every(ir.Write, r.body) if s.target.tensor == tensor]
    if not writes:
        return f", and no tile stores to it. Store to {tensor}, and call tk.notify(...) on what the store returns"
    what, site = "copy" if isinstance(writes[0], ir.Copy) else "store", writes[0].site
    return f". Write tk.notify(...) around the {what} to {tensor}: {site}: {site.text}"


def _signals(
    tensor: ir.Tensor, notifies: list[_Use], waits: list[_Use], program: ir.TileProgram, schedule: Schedule
) -> ir.Signals:
    """The signals of one tensor. `notifies`, `waits`: who notifies it and who waits for it."""
    grid = _grid(tensor, notifies, waits, program, schedule)
    by_home = any(u.view.home != RANK for u in waits)
    if by_home:
        grid = (ir.Cell(ir.RANKS_DIM, 1, False, False), *grid)
    waiters = sympy.Or(*[_waiters(u, grid) for u in waits]) if by_home else sympy.true
    counted = tuple(_notifier(u, grid, by_home, waiters) for u in notifies)
    on_sms = all(isinstance(u.role.resource, SMs) for u in (*notifies, *waits))
    near = not by_home and on_sms and all(u.near for u in notifies)
    return ir.Signals(tensor.name, grid, counted, "gpu" if near else "sys", by_home, waiters)


def _grid(
    tensor: ir.Tensor, notifies: list[_Use], waits: list[_Use], program: ir.TileProgram, schedule: Schedule
) -> tuple[ir.Cell, ...]:
    """The grid that the tiles and the waits allow, or the grid that the schedule asks for."""
    wanted, site = schedule.cells.get(tensor.name), schedule.site
    if wanted is not None and len(wanted) != len(tensor.dims):
        needed = counted(len(tensor.dims), "size")
        raise DimensionError(f"cells of {tensor.name}: {needed} needed, {len(wanted)} given", site)
    cells = []
    for k, dim in enumerate(tensor.dims):
        if dim == ir.RANKS_DIM:
            cells.append(ir.Cell(dim, 1, False, False))
            continue
        sizes = [_extent(u.view, k) for u in notifies]
        coarse = any(s is None for s in sizes) or all(_extent(u.view, k) is None for u in waits)
        size = None if coarse else max(s for s in sizes if s is not None)
        if wanted is not None and (asked := wanted[k]) != size:
            finest = max((s for s in sizes if s is not None), default=None)
            if asked is not None and (None in sizes or (finest is not None and asked % finest)):
                raise ScheduleError(
                    f"cells of {asked} along {dim} of {tensor.name}: a cell has to hold whole notified tiles, of "
                    f"{finest or 'the whole dimension'}",
                    site,
                )
            size = asked
        cell = ir.Cell(dim, size, dim in program.cut and not _across_parts(k, notifies), k == tensor.sharded)
        cells.append(_of_route(cell, k, tensor, notifies, waits, program.routes))
    for cell, size in zip(cells, wanted or (), strict=False):
        if cell.size != size:
            raise ScheduleError(
                f"cells of {tensor.name}: tiles wait for rows of several pieces along {cell.dim}, and each has one "
                "cell then: say None there",
                site,
            )
    return tuple(cells)


def _across_parts(k: int, notifies: list[_Use]) -> bool:
    """Whether tiles notify a tensor in regions that cross the parts of a dimension. The cells then cross them, too.
    Raises SignalCountError if other tiles notify in regions that do not."""
    ranges = [(u, i) for u in notifies if isinstance(i := u.view.index[k], ir.Range) and i.extent is not None]
    across = [u for u, i in ranges if i.across_parts]
    others = [u for u, i in ranges if not i.across_parts]
    if across and others:
        raise SignalCountError(
            f"notify of {others[0].view}: tiles of {across[0].role.name} notify {across[0].view.tensor} across the "
            "parts of the ranks, and a signal belongs to one kind of tiles; give both roles orders of one kind",
            others[0].site,
        )
    return bool(across)


def _of_route(
    cell: ir.Cell, k: int, tensor: ir.Tensor, notifies: list[_Use], waits: list[_Use], routes: Sequence[RouteWord]
) -> ir.Cell:
    """The cells along a dimension, adapted to the rows of a route. They do not cross the pieces that the tiles are cut
    from. A piece has one cell if some tile waits for rows of several pieces. All rows of a rank have one cell if all
    tiles wait for all of them. Raises SignalCountError."""
    route = next((r for r in routes if cell.dim in r.sides), None)
    ranges = [(u, i) for u in notifies if isinstance(i := u.view.index[k], ir.Range)]
    if route is None or k != tensor.sharded or not any(i.segment for _, i in ranges):
        return cell
    pieces = {EXPERT if i.segment and i.segment.source is None else SEGMENT if i.segment else "" for _, i in ranges}
    if len(pieces) > 1:
        use = ranges[-1][0]
        raise SignalCountError(
            f"notify of {use.view}: others notify {tensor.name} in tiles that are cut from {cell.dim} in another way, "
            "and a signal belongs to one kind of them; let all run over the route, or all over its experts",
            use.site,
        )
    (piece,) = pieces
    several = [u for u in waits if not _inside_piece(u.view.index[k], piece)]
    if piece == SEGMENT and waits and all(isinstance(i := u.view.index[k], ir.Range) and not i.segment for u in waits):
        piece = PART  # all wait for all rows of a rank
    return replace(cell, size=None if several else cell.size, route=route, pieces=piece)


def _inside_piece(rows: ir.Range | Expr, pieces: str) -> bool:
    """Whether rows that are waited for lie in one piece, for any routing."""
    segment = rows.segment if isinstance(rows, ir.Range) else None
    return segment is not None and (pieces == EXPERT or segment.source is not None)


def _extent(view: ir.View, k: int) -> int | None:
    """Elements of a view along a dimension: 1 for an entry, None for a whole range."""
    i = view.index[k]
    return i.extent if isinstance(i, ir.Range) else 1


Bounds = dict[sympy.Symbol, tuple[Expr, Expr]]


def _notifier(use: _Use, grid: tuple[ir.Cell, ...], by_home: bool, waiters: sympy.Basic) -> ir.Notifier:
    """How often a notify counts. It solves "the view is this cell on this rank" for the ranks in the view."""
    _check_regions(use, grid, by_home)
    swap = {RANK: _EXECUTOR}
    equations = [(sympy.sympify(e).xreplace(swap), target) for e, target in _place_equations(use, grid, by_home)]
    variables = {_EXECUTOR: (sympy.S.Zero, WORLD)} | _variables(use, swap)
    condition, variables = _solve(equations, variables, sympy.And(*use.place.conditions).xreplace(swap))
    condition = sympy.And(condition, waiters.xreplace({WAITER: RANK}))
    own_names = {v: symbol(f"their.{v}") for v in variables if v in condition.free_symbols}
    free = [stop - start for v, (start, stop) in variables.items() if v not in own_names]
    times = sympy.sympify(sympy.prod([larger(0, count) for count in free]))
    repeats = sympy.sympify(sympy.prod([ceil_div(symbol(r.dim), r.extent) for r in _repeated(use)]))
    sums = {own_names[v]: b for v, b in variables.items() if v in own_names}
    bounds = {s for b in sums.values() for e in b for s in e.free_symbols}
    unknown = (condition.free_symbols | times.free_symbols) - _place_names(grid) - set(own_names)
    unknown |= bounds - {WORLD, PER_NODE}
    if unknown:
        names = ", ".join(sorted(shown(s.name) for s in unknown))
        where = f" (where {to_text(condition)})" if condition != sympy.true else ""
        raise SignalCountError(
            f"notify of {use.view} depends on {names}{where}, so how often its signal comes in a run is not the same "
            "for all tiles; let it depend on ranks only",
            use.site,
        )
    condition = condition.xreplace(own_names)
    index = (*([RANK] if by_home else []), *use.view.index)
    tiles = tuple(i.extent if isinstance(i, ir.Range) else 1 for i in index)
    named = tuple((str(v), start, stop) for v, (start, stop) in sums.items())
    return ir.Notifier(use.role.name, tiles, times * repeats, named, condition)


def _repeated(use: _Use) -> list[ir.Range]:
    """The ranges of a role's tiles that its notification does not contain: all tiles along them notify the same."""
    named = {s for i in use.view.ranges for s in i.start.free_symbols | i.stop.free_symbols}
    return [
        r for r in use.role.walk.ranges if r.extent is not None and r.part is None and not r.start.free_symbols & named
    ]


def _check_regions(use: _Use, grid: tuple[ir.Cell, ...], by_home: bool) -> None:
    """Raises SignalCountError for a notification that crosses parts, or comes in each step of a loop not along it."""
    for cell, i in zip(grid[by_home:], use.view.index, strict=True):
        if isinstance(i, ir.Range) and i.part is None and cell.cut and not cell.local:
            raise SignalCountError(
                f"notify of {use.view} crosses the parts of the ranks along {cell.dim}, and a signal belongs to one "
                f"part: let the tiles of {use.role.name} run along {cell.dim} too",
                use.site,
            )
    regions = {s for i in use.view.index for s in (i.start if isinstance(i, ir.Range) else i).free_symbols}
    for loop in use.place.loops:
        if loop.step != 1 and symbol(loop.name) not in regions:
            raise SignalCountError(
                f"notify of {use.view} comes in every step of a loop that does not go along it ({loop.site}); notify "
                "once, after the loop, or what the step stored",
                use.site,
            )


def _waiters(use: _Use, grid: tuple[ir.Cell, ...]) -> sympy.Basic:
    """The ranks that a wait makes wait for a cell: a condition on `waiter`, in the names of the cell's place.
    Conditions around the wait are left out, so it may hold for ranks that do not wait. These drain what they get."""
    swap = {RANK: WAITER}
    equations = [(sympy.sympify(e).xreplace(swap), target) for e, target in _place_equations(use, grid, True)]
    condition, _ = _solve(equations, _variables(use, swap), sympy.true)
    known = _place_names(grid) | {WAITER}
    return sympy.And(*[c for c in sympy.And.make_args(condition) if c.free_symbols <= known])


def _place_equations(use: _Use, grid: tuple[ir.Cell, ...], by_home: bool) -> Equations:
    """Equations that hold if a view lies in the cell that `index_k` and `part_D` name (on the rank `rank`)."""
    home, index = use.view.home, use.view.index
    if by_home:
        return place_equations(grid, (of_cell("index", 0) if home == ir.ALL_RANKS else home, *index))
    return [*([] if home == ir.ALL_RANKS else [(home, RANK)]), *place_equations(grid, index)]


def _place_names(grid: tuple[ir.Cell, ...]) -> set[sympy.Symbol]:
    names = {of_cell("part", c.dim) for c in grid} | {of_cell("index", k) for k in range(len(grid))}
    names |= {symbol(n) for c in grid if c.route for n, _ in piece_place(c, sympy.S.Zero)}
    return {RANK, WORLD, PER_NODE, *names}


def _variables(use: _Use, swap: dict[Expr, Expr]) -> Bounds:
    """The ranks and counters that vary where a wait or notify stands, except the executing rank, with their bounds.
    `swap`: names to replace in the bounds."""
    variables: Bounds = {symbol(n): (sympy.S.Zero, count) for n, count in use.role.walk.axes}
    counters = {symbol(loop.name): (loop.start, loop.stop) for loop in use.place.loops if loop.step == 1}
    return variables | {v: (a.xreplace(swap), b.xreplace(swap)) for v, (a, b) in counters.items()}


def _solve(equations: Equations, variables: Bounds, condition: sympy.Basic) -> tuple[sympy.Basic, Bounds]:
    """Solves equations for variables, and removes these; the equations that are left join the condition."""
    left, variables = list(equations), dict(variables)
    unsolved: Equations = []
    while left:
        e, target = left.pop(0)
        if e in variables:
            found = {e: target}
            start, stop = variables.pop(e)
            is_expert = str(target).startswith(f"{EXPERT}.")  # all ranks have as many, so all values are taken
            if (start, stop) != (0, WORLD) and not is_expert:
                condition = sympy.And(condition, start <= target, target < stop)
            variables = {v: (a.xreplace(found), b.xreplace(found)) for v, (a, b) in variables.items()}
            left = [(a.xreplace(found), t) for a, t in left]
            unsolved = [(a.xreplace(found), t) for a, t in unsolved]
            condition = condition.xreplace(found)
        elif e != target:
            unsolved.append((e, target))
    return sympy.And(condition, *[sympy.Eq(e, t) for e, t in unsolved]), variables
