"""What a tile does: waits, notifications, copies, stores, computations, loops and branches, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import sympy

from tilelink.errors import Site
from tilelink.frontend.expressions import Expr, to_text
from tilelink.frontend.views import View


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
