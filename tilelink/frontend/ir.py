"""The tile program: what a program with its schedule says, typed, immutable, comparable and printable.

Everything that follows (unroll, check, lowering, drawing) reads this and nothing else. Integers are symbolic
(`expressions.py`): sizes of dimensions (`M`), the executing `rank`, the `world`, and the coordinates of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import sympy

from tilelink.errors import Site
from tilelink.frontend.expressions import RANK, WORLD, Expr, symbol, to_text
from tilelink.frontend.schedule import CopyEngine, SMs, launched
from tilelink.language import RANKS_DIM as RANKS_DIM

ALL_RANKS = "all ranks"


@dataclass(frozen=True)
class Tensor:
    """A tensor of the program; `dims` are names of dimensions, or "ranks" for one entry a rank.

    `sharded` is the position of the dimension that is cut over the ranks (each element has one home), or None where
    every rank has its own. `kind` is "input", "output" or "buffer"; or "token", of which there are signals only: those
    with which regions of a tensor with `buffers` are released. `buffers`: the entries of the first dimension take turns
    in so many, entry e in buffer e % buffers.
    """

    name: str
    dims: tuple[str, ...]
    sharded: int | None
    kind: str
    dtype: str
    buffers: int | None = None

    @property
    def token(self) -> Tensor:
        """What the entries of this tensor are released with."""
        return Tensor(token_name(self.name), self.dims, None, "token", self.dtype)

    def __str__(self) -> str:
        dims = ", ".join(f"{d}/world" if k == self.sharded else d for k, d in enumerate(self.dims))
        if self.kind == "token":
            return f"token {self.name}[{dims}]"
        turns = f" in {self.buffers} buffers" if self.buffers else ""
        return f"{self.kind} {self.name}: {self.dtype}[{dims}]{turns}"


def token_name(tensor: str) -> str:
    """What the token of a tensor with buffers is called."""
    return f"{tensor}_free"


@dataclass(frozen=True)
class Range:
    """[start, stop) along a named dimension, in global coordinates. Printed as D[start:+extent], cut off at the end.

    `extent`: how many elements a block in registers has along it (a power of two), None where it is the whole
    dimension or part.
    `part`: the rank whose part holds it, None where it may lie in several, or the dimension is not cut.
    `offset`: where it starts, counted from the beginning of its part (of the dimension, where that is not cut).
    `inside`: the extent of the block that it is a step of, None where it is a step or tile of the whole or of a part.
    `bounded`: it may end earlier than all that, at a bound of the user's.
    """

    dim: str
    start: Expr
    stop: Expr
    extent: int | None
    part: Expr | None = None
    offset: Expr = sympy.S.Zero
    whole: bool = False
    inside: int | None = None
    bounded: bool = False

    @property
    def limit(self) -> Expr:
        """Where its elements end, besides at the end of the block itself."""
        bounds = self.stop.args if isinstance(self.stop, sympy.Min) else (self.stop,)
        return sympy.Min(*[b for b in bounds if b != self.start + (self.extent or 0)])

    def __str__(self) -> str:
        if self.whole:
            return self.dim
        return f"{self.dim}[{to_text(self.start)}:{f'+{self.extent}' if self.extent else to_text(self.stop)}]"


@dataclass(frozen=True)
class View:
    """A region of a tensor. `index` has one entry a dimension: a range, or an integer for a dimension that it drops.

    `home` is the rank whose memory it is, ALL_RANKS for every rank's, or None where it lies on several.
    `guard` names the wait that guards it.
    """

    tensor: str
    index: tuple[Range | Expr, ...]
    home: Expr | str | None
    guard: str | None = None

    @property
    def ranges(self) -> tuple[Range, ...]:
        return tuple(i for i in self.index if isinstance(i, Range))

    @property
    def remote(self) -> bool:
        """Whether it can be another rank's memory."""
        return self.home != RANK

    @property
    def shape(self) -> tuple[int | None, ...]:
        return tuple(r.extent for r in self.ranges)

    def __str__(self) -> str:
        index = ", ".join(str(i) if isinstance(i, Range) else to_text(i) for i in self.index)
        where = to_text(self.home) if isinstance(self.home, Expr) else self.home
        home = "" if self.home in (RANK, None) else f".at({where})"
        return f"{self.tensor}[{index}]{home}"


@dataclass(frozen=True)
class Load:
    """A block read from a view."""

    view: View

    def __str__(self) -> str:
        return f"{self.view}.load()"


@dataclass(frozen=True)
class Code:
    """Triton code with holes: `text` is a Python expression or statement in which {0}, {1}... stand for `holes`."""

    text: str
    holes: tuple[Load | Expr, ...] = ()
    dots: tuple[tuple[int, int, int], ...] = ()

    @property
    def loads(self) -> tuple[Load, ...]:
        return tuple(h for h in self.holes if isinstance(h, Load))

    def __str__(self) -> str:
        return self.text.format(*(str(h) if isinstance(h, Load) else to_text(h) for h in self.holes))


@dataclass(frozen=True)
class Statement:
    site: Site = field(compare=False)


@dataclass(frozen=True)
class Wait(Statement):
    """Until every tile that notifies a region that intersects the views has done so. `name` names the guard."""

    name: str
    views: tuple[View, ...]


@dataclass(frozen=True)
class Notify(Statement):
    """This tile's stores to the views are visible where the views live."""

    views: tuple[View, ...]


@dataclass(frozen=True)
class Copy(Statement):
    """Memory to memory."""

    source: View
    target: View


@dataclass(frozen=True)
class Store(Statement):
    target: View
    value: Code


@dataclass(frozen=True)
class Compute(Statement):
    """A statement of Triton on blocks in registers (`code` holds the whole statement)."""

    code: Code


@dataclass(frozen=True)
class For(Statement):
    """for name in range(start, stop, step)."""

    name: str
    start: Expr
    stop: Expr
    step: int
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class If(Statement):
    """A branch on integers known before the run."""

    condition: sympy.logic.boolalg.Boolean
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...]


@dataclass(frozen=True)
class DataIf(Statement):
    """A branch on data; its bodies compute only."""

    condition: Code
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...]


def walk(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """All statements, in order of the source."""
    for s in body:
        yield s
        if isinstance(s, For):
            yield from walk(s.body)
        elif isinstance(s, If | DataIf):
            yield from walk(s.body)
            yield from walk(s.orelse)


def loads_of(s: Statement) -> tuple[Load, ...]:
    """The blocks that a statement reads itself (not those of the statements in it)."""
    match s:
        case Store(value=code) | Compute(code=code) | DataIf(condition=code):
            return code.loads
    return ()


@dataclass(frozen=True)
class Walk:
    """How a worker finds its tiles: the mapping f_S of a role.

    Tile number i, of `count` on each rank, has `coordinates`: (name, value) in order, each in terms of `i`, the
    names before it, `rank`, `world` and sizes; `axes` are the rank axes among them, each with the number of its values,
    outermost first. A number is passed over where `exists` does not hold (parts of
    different length). `f_R`: `homes`, the rank in whose part the tile lies along each dimension that is cut over the
    ranks.
    """

    sizes: tuple[tuple[str, Expr], ...]
    count: Expr
    coordinates: tuple[tuple[str, Expr], ...]
    axes: tuple[tuple[str, Expr], ...]
    exists: sympy.logic.boolalg.Boolean
    ranges: tuple[Range, ...]
    homes: tuple[tuple[str, Expr], ...]


@dataclass(frozen=True)
class Role:
    """A tile function over a tile space, with its schedule. `folded`: the roles in its epilogue; `scheduled`: its name
    in schedules, `matmul[1]` for the second member of a list."""

    name: str
    resource: SMs | CopyEngine
    walk: Walk
    body: tuple[Statement, ...]
    site: Site = field(compare=False)
    folded: tuple[str, ...] = ()
    scheduled: str = ""

    @property
    def launched(self) -> str:
        """The role that it is, or is a member of: members share workers."""
        return launched(self.scheduled or self.name)


@dataclass(frozen=True)
class Cell:
    """The signal grid along one dimension. `size`: elements a cell, None for the whole dimension or part.

    `cut`: cells do not cross the parts of the ranks. `local`: only this rank's part has cells here (sharded tensors).
    """

    dim: str
    size: int | None
    cut: bool
    local: bool


@dataclass(frozen=True)
class Notifier:
    """One notify of a role, and how often it counts in a cell of rank `rank` in a run.

    That is: the sum over `sums` (name, start, stop) of `times` where `condition` holds, times the tiles of size
    `tiles[k]` (None: the whole) that a cell has along each dimension k of the grid. `part_D` stands for the part a cell
    lies in along dimension D, `index_k` for its index along a dimension k of the grid with an entry a rank.
    """

    role: str
    tiles: tuple[int | None, ...]
    times: Expr
    sums: tuple[tuple[str, Expr, Expr], ...]
    condition: sympy.logic.boolalg.Boolean


@dataclass(frozen=True)
class Signals:
    """The signals of a tensor, derived: the grid (the mapping f_C), who notifies, and the scope of their order.

    Signals live with the ranks that wait, so a wait polls its own memory. `by_home`: ranks wait for regions of other
    ranks' memory, so the grid begins with an entry a home, and a notification goes to every rank `waiter` of which
    `waiters` holds (in the names of `Notifier`); else it goes to the home of the region, which is who waits.
    """

    tensor: str
    grid: tuple[Cell, ...]
    notifiers: tuple[Notifier, ...]
    scope: str
    by_home: bool
    waiters: sympy.logic.boolalg.Boolean

    def index(self, view: View, home: Expr | None = None) -> tuple[Range | Expr, ...]:
        """A view's index in the grid; `home` instead of its own where it is a view of all ranks."""
        if not self.by_home:
            return view.index
        where = view.home if home is None else home
        assert isinstance(where, Expr)
        return (where, *view.index)


@dataclass(frozen=True)
class TileProgram:
    """A program with its schedule and dtypes. World and sizes are symbols still: one tile program serves all.

    `cut`: dimensions that are spread over the ranks. `published`: inputs that peers read, copied to the heap first.
    `functions`: Triton functions of the user that roles call, by name. `schedule_site`: where its schedule stands.
    """

    name: str
    tensors: tuple[Tensor, ...]
    cut: tuple[str, ...]
    roles: tuple[Role, ...]
    signals: tuple[Signals, ...]
    published: tuple[str, ...]
    functions: tuple[tuple[str, Any], ...]
    slots: int
    site: Site = field(compare=False)
    schedule_site: Site = field(compare=False)

    def tensor(self, name: str) -> Tensor:
        return next(t for t in self.tensors if t.name == name)

    def signals_of(self, tensor: str) -> Signals:
        return next(s for s in self.signals if s.tensor == tensor)

    def role(self, name: str) -> Role:
        return next(r for r in self.roles if r.name == name)

    @property
    def in_kernel(self) -> tuple[Role, ...]:
        """The roles on SMs: those of the persistent kernel."""
        return tuple(r for r in self.roles if isinstance(r.resource, SMs))

    @property
    def on_engine(self) -> tuple[Role, ...]:
        """The roles on the copy engine."""
        return tuple(r for r in self.roles if isinstance(r.resource, CopyEngine))

    @property
    def awaited_by_engines(self) -> tuple[str, ...]:
        """Names of the tensors whose tiles, made on the same rank, roles on the copy engine wait for."""
        waits = (s for r in self.on_engine for s in walk(r.body) if isinstance(s, Wait))
        return tuple(dict.fromkeys(v.tensor for s in waits for v in s.views))

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions, in the order in which the tensors name them."""
        return tuple(dict.fromkeys(d for t in self.tensors for d in t.dims if d != RANKS_DIM))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.kind == "input")

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.kind == "output")

    @property
    def on_heap(self) -> tuple[Tensor, ...]:
        """What lives in a slot of the symmetric heap: buffers, and inputs that are published."""
        return tuple(t for t in self.tensors if t.kind == "buffer" or t.name in self.published)

    def size_of(self, dim: str) -> Expr:
        return WORLD if dim == RANKS_DIM else symbol(dim)

    def __str__(self) -> str:
        from tilelink.frontend.printing import program_text

        return program_text(self)
