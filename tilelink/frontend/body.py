"""The statements of a tile, in order: waits, notifications, copies, stores, computations, loops and branches.

Each kind of statement says which of its fields hold views, code and blocks of statements. Functions over a body
(`walk`, `every`, `places`, `rewritten`) therefore treat all kinds alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar

import sympy

from tilelink.errors import Site
from tilelink.frontend.arithmetic import to_text
from tilelink.frontend.expressions import Boolean, Expr, shown
from tilelink.frontend.views import Range, View


@dataclass(frozen=True)
class Load:
    """A block read from a view. `where`: integers, one a row; a row with -1 is not read, and is zeros."""

    view: View
    where: View | None = None

    def __str__(self) -> str:
        return f"{self.view}.load({'' if self.where is None else f'where={self.where}'})"


@dataclass(frozen=True)
class Variable:
    """A block in registers, by its name. The names that TileLink makes have a dot."""

    name: str

    def __str__(self) -> str:
        return shown(self.name)


@dataclass(frozen=True)
class Called:
    """A Triton function of the user, by its name in the program."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Code:
    """Triton code with holes. `text`: a Python expression in which {0}, {1}... stand for `holes`; other names are of
    Triton's language, `tl`. `dots`: (m, n, k) of each `tl.dot` in it; m counts the rows of all products of a dot."""

    text: str
    holes: tuple[Load | Variable | Called | Expr | Boolean, ...] = ()
    dots: tuple[tuple[int, int, int], ...] = ()

    def reading(self, change: Callable[[View], View]) -> Code:
        """The same code with the views that it loads changed."""
        loads = (replace(h, view=change(h.view)) if isinstance(h, Load) else h for h in self.holes)
        return replace(self, holes=tuple(loads))

    @property
    def loads(self) -> tuple[Load, ...]:
        return tuple(h for h in self.holes if isinstance(h, Load))

    def __str__(self) -> str:
        return self.text.format(*(to_text(h) if isinstance(h, Expr | Boolean) else h for h in self.holes))


Body = tuple["Statement", ...]
S = TypeVar("S", bound="Statement")


@dataclass(frozen=True)
class Statement:
    """One statement of a tile, with its line of the user's source. Each kind says which of its fields hold views
    (READS, AWAITS, GIVES), code, integers or conditions, and blocks of statements."""

    READS: ClassVar[tuple[str, ...]] = ()
    AWAITS: ClassVar[tuple[str, ...]] = ()
    GIVES: ClassVar[tuple[str, ...]] = ()
    CODES: ClassVar[tuple[str, ...]] = ()
    INTEGERS: ClassVar[tuple[str, ...]] = ()
    BLOCKS: ClassVar[tuple[str, ...]] = ()

    site: Site = field(compare=False)

    @property
    def codes(self) -> tuple[Code, ...]:
        """Its Triton code, if it has any."""
        return tuple(getattr(self, name) for name in self.CODES)

    @property
    def loads(self) -> tuple[Load, ...]:
        """The blocks that it reads itself, without the statements in it."""
        return tuple(load for code in self.codes for load in code.loads)

    @property
    def reads(self) -> tuple[Load, ...]:
        """Everything that it reads itself. Integers that pick or mark rows stand before the load that needs them."""
        loads = (*(Load(view, self.moved) for view in self._views(self.READS)), *self.loads)
        alone = () if self.moved is None or self.READS else (Load(self.moved),)
        return (*alone, *(one for load in loads for one in _with_integers(load)))

    @property
    def read(self) -> tuple[View, ...]:
        """The views that it reads itself, including integers."""
        return tuple(load.view for load in self.reads)

    @property
    def moved(self) -> View | None:
        """The integers that say which rows of its views are moved, or None if all are."""
        return None

    @property
    def wheres(self) -> tuple[View, ...]:
        """All integers that say which rows are moved, including the `where` of its loads."""
        return tuple(v for v in (self.moved, *(load.where for load in self.loads)) if v is not None)

    @property
    def given(self) -> tuple[View, ...]:
        """The views that it writes or notifies."""
        return self._views(self.GIVES)

    @cached_property
    def touched(self) -> tuple[View, ...]:
        """All views that it names itself."""
        return (*self.read, *self._views(self.AWAITS + self.GIVES))

    @property
    def blocks(self) -> tuple[Body, ...]:
        """The statements in it: one block for a loop, two for a branch."""
        return tuple(getattr(self, name) for name in self.BLOCKS)

    @property
    def integers(self) -> tuple[sympy.Basic, ...]:
        """The integers and conditions that it names itself, outside of views."""
        holes = (hole for code in self.codes for hole in code.holes if isinstance(hole, Expr | Boolean))
        return (*(getattr(self, name) for name in self.INTEGERS), *holes)

    @property
    def named(self) -> Iterator[sympy.Basic]:
        """The integers and conditions that it names itself, also in views."""
        yield from self.integers
        for view in self.touched:
            if isinstance(view.home, Expr):
                yield view.home
            for i in view.index:
                yield from (i.start, i.stop) if isinstance(i, Range) else (i,)

    @cached_property
    def symbols(self) -> frozenset[sympy.Basic]:
        """The symbols in its integers and views, without the statements in it."""
        named = frozenset[sympy.Basic]().union(*(e.free_symbols for e in self.integers))
        return named.union(*(view.symbols for view in self.touched))

    def around(self, *blocks: Body) -> Self:
        """The same statement with other blocks."""
        made: dict[str, Any] = dict(zip(self.BLOCKS, blocks, strict=True))
        return replace(self, **made) if made else self

    def giving(self, change: Callable[[View], View]) -> Self:
        """The same statement with the views that it writes or notifies changed."""
        old = {name: getattr(self, name) for name in self.GIVES}
        new: dict[str, Any] = {n: tuple(map(change, v)) if isinstance(v, tuple) else change(v) for n, v in old.items()}
        return replace(self, **new) if new else self

    def reading(self, change: Callable[[View], View]) -> Self:
        """The same statement with the views that it reads itself changed."""
        made: dict[str, Any] = {name: change(getattr(self, name)) for name in self.READS}
        made |= {name: getattr(self, name).reading(change) for name in self.CODES}
        return replace(self, **made) if made else self

    def _views(self, fields: tuple[str, ...]) -> tuple[View, ...]:
        values = (getattr(self, name) for name in fields)
        return tuple(view for value in values for view in (value if isinstance(value, tuple) else (value,)))


def _with_integers(load: Load) -> tuple[Load, ...]:
    integers = (*load.view.picked_by, *([] if load.where is None else [load.where]))
    return (*map(Load, integers), load)


@dataclass(frozen=True)
class Wait(Statement):
    """Waits until every tile that notifies a region intersecting the views has done so. `name` names the guard. `when`:
    the condition under which it waits. Where it does not hold, no tile notifies the views, and nobody reads them."""

    AWAITS, INTEGERS = ("views",), ("when",)
    name: str
    views: tuple[View, ...]
    when: Boolean = sympy.true

    def __str__(self) -> str:
        condition = "" if self.when == sympy.true else f" if {to_text(self.when)}"
        return f"{self.name} = wait({', '.join(map(str, self.views))}){condition}"


@dataclass(frozen=True)
class Notify(Statement):
    """Notifies the views: this tile's stores to them are visible at their home. `late`: the notification is given
    later, at the `Owed` of the worker's next tile, or after the worker's last tile."""

    GIVES = ("views",)
    views: tuple[View, ...]
    late: bool = False

    def __str__(self) -> str:
        return f"notify({', '.join(map(str, self.views))}){' later' if self.late else ''}"


@dataclass(frozen=True)
class Owed(Statement):
    """Gives the late notifications of the worker's previous tile."""

    def __str__(self) -> str:
        return "notify what the tile before left for later"


@dataclass(frozen=True, kw_only=True)
class Write(Statement):
    """A statement that writes to memory. `where`: integers, one for each row; rows with -1 are not written."""

    GIVES = ("target",)
    target: View
    where: View | None = None

    @property
    def moved(self) -> View | None:
        return self.where

    @property
    def where_text(self) -> str:
        return "" if self.where is None else f" where {self.where}"


@dataclass(frozen=True)
class Copy(Write):
    """Copies from memory to memory."""

    READS = ("source",)
    source: View

    def __str__(self) -> str:
        return f"copy {self.source} -> {self.target}{self.where_text}"


@dataclass(frozen=True)
class Store(Write):
    """Stores a block in registers to memory."""

    CODES = ("value",)
    value: Code

    def __str__(self) -> str:
        return f"{self.target}.store({self.value}){self.where_text}"


@dataclass(frozen=True)
class Compute(Statement):
    """Computes on blocks in registers, by Triton. `targets`: the variables that get the results."""

    CODES = ("code",)
    code: Code
    targets: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{', '.join(map(shown, self.targets))} = {self.code}" if self.targets else str(self.code)


@dataclass(frozen=True)
class For(Statement):
    """for name in range(start, stop, step)."""

    INTEGERS, BLOCKS = ("start", "stop"), ("body",)
    name: str
    start: Expr
    stop: Expr
    step: int
    body: Body

    def __str__(self) -> str:
        return f"for {shown(self.name)} in range({to_text(self.start)}, {to_text(self.stop)}, {self.step}):"


@dataclass(frozen=True)
class If(Statement):
    """A branch on integers known before the run."""

    INTEGERS, BLOCKS = ("condition",), ("body", "orelse")
    condition: Boolean
    body: Body
    orelse: Body

    def __str__(self) -> str:
        return f"if {to_text(self.condition)}:"


@dataclass(frozen=True)
class DataIf(Statement):
    """A branch on data. Its blocks only compute."""

    CODES, BLOCKS = ("condition",), ("body", "orelse")
    condition: Code
    body: Body
    orelse: Body

    def __str__(self) -> str:
        return f"if {self.condition}:"


@dataclass(frozen=True)
class Place:
    """The place of a statement. `outer`: the loops and branches around it, outermost first, each with the number of its
    block that holds the statement. `rest`: the statements that follow it in its own block."""

    statement: Statement
    outer: tuple[tuple[Statement, int], ...]
    rest: Body

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops around it."""
        return tuple(s for s, _ in self.outer if isinstance(s, For))

    @property
    def conditions(self) -> tuple[sympy.Basic, ...]:
        """The conditions known before the run that hold where it is reached, and the condition of a wait. (Branches on
        data are left out.)"""
        branches = ((s.condition, number) for s, number in self.outer if isinstance(s, If))
        around = tuple(sympy.Not(condition) if number else condition for condition, number in branches)
        when = self.statement.when if isinstance(self.statement, Wait) else sympy.true
        return around if when == sympy.true else (*around, when)

    @property
    def conditional(self) -> bool:
        """Whether it stands in a branch."""
        return any(isinstance(s, If | DataIf) for s, _ in self.outer)


def places(body: Body, outer: tuple[tuple[Statement, int], ...] = ()) -> Iterator[Place]:
    """All statements with their places, in the order of the source."""
    for k, s in enumerate(body):
        yield Place(s, outer, body[k + 1 :])
        for number, block in enumerate(s.blocks):
            yield from places(block, (*outer, (s, number)))


def walk(body: Body) -> Iterator[Statement]:
    """All statements, in the order of the source."""
    return (place.statement for place in places(body))


def every(kind: type[S], body: Body) -> Iterator[S]:
    """All statements of a kind, in the order of the source."""
    return (s for s in walk(body) if isinstance(s, kind))


def multiplies(body: Body) -> bool:
    """Whether it has a dot."""
    return any(code.dots for s in walk(body) for code in s.codes)


def rewritten(body: Body, change: Callable[[Statement], Body]) -> Body:
    """The body with each statement replaced by what `change` returns for it. Inner statements are changed first."""
    return tuple(
        made for s in body for made in change(s.around(*(rewritten(block, change) for block in s.blocks)))
    )
