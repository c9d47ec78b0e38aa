"""The tile program: a program with its schedule, typed, immutable, comparable and printable.

Its parts are tensors and views (`views.py`), statements (`body.py`), and roles and signals, here. All later steps
(unrolling, check, lowering, drawing) read the tile program and nothing else. Integers are symbolic (`expressions.py`):
sizes of dimensions (`M`), the executing `rank`, the `world`, and the coordinates of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sympy

from tilelink.errors import Site
from tilelink.frontend.body import *  # noqa: F403  # statements and views have their names here, too
from tilelink.frontend.body import Body, Notify, Place, Wait, every, multiplies, places, walk
from tilelink.frontend.expressions import WORLD, Boolean, Expr, symbol
from tilelink.frontend.kept import hashed_once
from tilelink.frontend.schedule import CopyEngine, SMs
from tilelink.frontend.tables import Table
from tilelink.frontend.views import *  # noqa: F403
from tilelink.frontend.views import ALL_RANKS, Range, Tensor, View
from tilelink.language import RANKS_DIM as RANKS_DIM
from tilelink.language import RouteWord, launched


@dataclass(frozen=True)
class Walk:
    """How a worker finds its tiles: the mapping f_S of a role.

    Tile number i, of `count` on each rank, has `coordinates`: (name, value) in order, each in terms of `i`, the names
    before it, `rank`, `world` and sizes. `axes` are the rank axes among them, each with the number of its values,
    outermost first. A number is passed over if `exists` does not hold (parts of different length). `homes` is f_R: the
    rank in whose part the tile lies, along each dimension that is cut over the ranks. `sent`: where the rows of a tile
    of a route lie at their source. `expert`: the axis of the experts of a rank. For a route, `count` is read from
    `table`, which says where the tiles of each piece begin, and is at most `room`.
    """

    sizes: tuple[tuple[str, Expr], ...]
    count: Expr
    coordinates: tuple[tuple[str, Expr], ...]
    axes: tuple[tuple[str, Expr], ...]
    exists: Boolean
    ranges: tuple[Range, ...]
    homes: tuple[tuple[str, Expr], ...]
    sent: Range | None = None
    expert: str = ""
    table: Table | None = None
    room: Expr | None = None

    @property
    def most(self) -> Expr:
        """An upper bound of `count`, in terms of sizes alone."""
        return self.count if self.room is None else self.room


@hashed_once
@dataclass(frozen=True)
class Role:
    """A tile function over a tile space, with its schedule. `folded`: the roles in its epilogue; `scheduled`: its name
    in schedules, `matmul[1]` for the second member of a list."""

    name: str
    resource: SMs | CopyEngine
    walk: Walk
    body: Body
    site: Site = field(compare=False)
    folded: tuple[str, ...] = ()
    scheduled: str = ""

    @property
    def launched(self) -> str:
        """The name of the launch. Roles for the members of a list have one launch, and share workers."""
        return launched(self.scheduled or self.name)

    @property
    def wave(self) -> int | None:
        """Experts in a turn that it takes with the other roles that have a wave; None if it has no wave."""
        return self.resource.wave

    @cached_property
    def computed(self) -> tuple[tuple[Place, sympy.Basic], ...]:
        """The integers and conditions that its tiles compute, also in views, with the places of their statements. Those
        that are single symbols or numbers are left out."""
        found: dict[tuple[Any, ...], tuple[Place, sympy.Basic]] = {}
        for place in places(self.body):
            for e in (e for e in place.statement.named if e.args):
                found.setdefault((e, place.loops, place.conditions), (place, e))
        return tuple(found.values())

    @cached_property
    def awaited(self) -> tuple[View, ...]:
        """The views that its tiles wait for."""
        return tuple(v for s in every(Wait, self.body) for v in s.views)

    @cached_property
    def touched(self) -> tuple[View, ...]:
        """All views that its tiles name."""
        return tuple(v for s in walk(self.body) for v in s.touched)

    @property
    def multiplies(self) -> bool:
        """Whether its tiles have a dot."""
        return multiplies(self.body)

    @cached_property
    def notified(self) -> tuple[View, ...]:
        """The views that its tiles notify."""
        return tuple(v for s in every(Notify, self.body) for v in s.views)


@hashed_once
@dataclass(frozen=True)
class Cell:
    """The signal grid along one dimension. `size`: elements of a cell, None for the whole dimension or part.

    `cut`: cells do not cross the parts of the ranks. `local`: only this rank's part has cells here (sharded tensors).
    `pieces`, for the rows of a route: cells do not cross a "segment", or the rows of an "expert"; or one cell has all
    rows of a rank on that side, its "part".
    """

    dim: str
    size: int | None
    cut: bool
    local: bool
    route: RouteWord | None = None
    pieces: str = ""


@hashed_once
@dataclass(frozen=True)
class Notifier:
    """One notify of a role, and how often it counts in a cell of rank `rank` in a run.

    The count is the sum over `sums` (name, start, stop) of `times` where `condition` holds, multiplied by the tiles of
    size `tiles[k]` (None: the whole) that a cell has along each dimension k of the grid. `part_D` is the cell's part
    along dimension D, `index_k` its index along a dimension k with an entry for each rank.
    """

    role: str
    tiles: tuple[int | None, ...]
    times: Expr
    sums: tuple[tuple[str, Expr, Expr], ...]
    condition: Boolean


@hashed_once
@dataclass(frozen=True)
class Signals:
    """The derived signals of a tensor: the grid (the mapping f_C), the notifiers, and the scope of their order.

    Signals live with the ranks that wait, so a wait polls its own memory. `by_home`: ranks wait for regions in other
    ranks' memory. The grid then begins with an entry for each home, and a notification goes to every rank `waiter` that
    meets `waiters` (in the names of `Notifier`). Otherwise it goes to the region's home, which waits.
    """

    tensor: str
    grid: tuple[Cell, ...]
    notifiers: tuple[Notifier, ...]
    scope: str
    by_home: bool
    waiters: Boolean

    def index(self, view: View, home: Expr | None = None) -> tuple[Range | Expr, ...]:
        """The view's index in the grid. `home`: the home to take instead of the view's own, if that is all ranks."""
        if not self.by_home:
            return view.index
        if view.home == ALL_RANKS and home is None:
            return (Range(RANKS_DIM, sympy.S.Zero, WORLD, None, whole=True), *view.index)
        where = view.home if home is None else home
        assert isinstance(where, Expr)
        return (where, *view.index)


@hashed_once
@dataclass(frozen=True)
class TileProgram:
    """A program with its schedule and dtypes. The world and the sizes are still symbols, so one tile program serves
    all. Passes (`frontend/passes/`) fill the fields that are empty by default.

    `cut`: dimensions that are spread over the ranks. `published`: inputs that peers read, copied to the heap first.
    `functions`: Triton functions of the user that roles call, by name. `schedule_site`: the place of its schedule.
    `routes`: the routes of rows that go to experts.
    """

    name: str
    tensors: tuple[Tensor, ...]
    cut: tuple[str, ...]
    slots: int
    site: Site = field(compare=False)
    schedule_site: Site = field(compare=False)
    routes: tuple[RouteWord, ...]
    roles: tuple[Role, ...] = ()
    signals: tuple[Signals, ...] = ()
    published: tuple[str, ...] = ()
    functions: tuple[tuple[str, Any], ...] = ()

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each tensor, by name."""
        return {t.name: k for k, t in enumerate(self.tensors)}

    def tensor(self, name: str) -> Tensor:
        return self.tensors[self.numbers[name]]

    def signals_of(self, tensor: str) -> Signals:
        return next(s for s in self.signals if s.tensor == tensor)

    def role(self, name: str) -> Role:
        return next(r for r in self.roles if r.name == name)

    @cached_property
    def in_kernel(self) -> tuple[Role, ...]:
        """The roles on SMs, which make up the persistent kernel."""
        return tuple(r for r in self.roles if isinstance(r.resource, SMs))

    @cached_property
    def on_engine(self) -> tuple[Role, ...]:
        """The roles on the copy engine."""
        return tuple(r for r in self.roles if isinstance(r.resource, CopyEngine))

    @cached_property
    def awaited_by_engines(self) -> tuple[str, ...]:
        """Names of the tensors that roles on the copy engine wait for. Tiles of the same rank make these."""
        return tuple(dict.fromkeys(v.tensor for r in self.on_engine for v in r.awaited))

    @cached_property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions, in the order in which the tensors name them."""
        routed = [d for route in self.routes for d in (*route.sides, route.per_rank)]
        other = {RANKS_DIM, *(route.everywhere for route in self.routes)}
        return tuple(dict.fromkeys(d for d in (*(d for t in self.tensors for d in t.dims), *routed) if d not in other))

    @cached_property
    def routed(self) -> tuple[str, ...]:
        """The dimensions of rows that are routed. How many rows there are is data."""
        return tuple(d for route in self.routes for d in route.sides)

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.kind == "input")

    @cached_property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.kind == "output")

    @cached_property
    def on_heap(self) -> tuple[Tensor, ...]:
        """The tensors in a slot of the symmetric heap: buffers, and inputs that are published."""
        return tuple(t for t in self.tensors if t.kind == "buffer" or t.name in self.published)

    def size_of(self, dim: str) -> Expr:
        return WORLD if dim == RANKS_DIM else symbol(dim)

    def __str__(self) -> str:
        from tilelink.frontend.printing import program_text

        return program_text(self)
