"""A tile program for a person to read."""

from __future__ import annotations

from collections.abc import Iterator

import sympy

from tilelink.frontend.cells import cell_count
from tilelink.frontend.expressions import to_text
from tilelink.frontend.ir import (
    Compute,
    Copy,
    DataIf,
    For,
    If,
    Notify,
    Role,
    Signals,
    Statement,
    Store,
    TileProgram,
    Wait,
)


def program_text(program: TileProgram) -> str:
    """The whole program: tensors, signals, and each role with its walk and its body."""
    lines = [f"program {program.name}"]
    for t in program.tensors:
        where = " (published to peers)" if t.name in program.published else ""
        lines.append(f"    {t}{where}")
    lines += [_signals(s) for s in program.signals]
    for role in program.roles:
        lines += ["", *_role(role)]
    return "\n".join(lines) + "\n"


def _signals(signals: Signals) -> str:
    grid = " x ".join(f"{c.dim}:{c.size or ('a part' if c.cut else 'whole')}" for c in signals.grid)
    given = ", ".join(f"{n.role} in tiles of {_tile(n.tiles)}" for n in signals.notifiers)
    return (
        f"    signals of {signals.tensor}: a cell for {grid} ({to_text(cell_count(signals))} on each rank), "
        f"scope {signals.scope}, notified by {given}"
    )


def _tile(sizes: tuple[int | None, ...]) -> str:
    return "x".join("whole" if s is None else str(s) for s in sizes)


def _role(role: Role) -> Iterator[str]:
    walk = role.walk
    folded = f", with {', '.join(role.folded)} in its epilogue" if role.folded else ""
    yield f"role {role.name} on {role.resource}{folded}"
    for name, value in walk.sizes:
        yield f"    {name} = {to_text(value)}"
    yield f"    tiles on each rank: i in 0..{to_text(walk.count)}"
    for name, value in walk.coordinates:
        yield f"    {name} = {to_text(value)}"
    if walk.exists != sympy.true:
        yield f"    where {to_text(walk.exists)}"
    yield from _body(role.body, 1)


def _body(body: tuple[Statement, ...], depth: int) -> Iterator[str]:
    indent = "    " * depth
    for s in body:
        match s:
            case Wait():
                yield f"{indent}{s.name} = wait({', '.join(map(str, s.views))})"
            case Notify():
                yield f"{indent}notify({', '.join(map(str, s.views))})"
            case Copy():
                yield f"{indent}copy {s.source} -> {s.target}"
            case Store():
                yield f"{indent}{s.target}.store({s.value})"
            case Compute():
                yield f"{indent}{s}"
            case For():
                yield f"{indent}for {s.name} in range({to_text(s.start)}, {to_text(s.stop)}, {s.step}):"
                yield from _body(s.body, depth + 1)
            case If() | DataIf():
                condition = to_text(s.condition) if isinstance(s, If) else str(s.condition)
                yield f"{indent}if {condition}:"
                yield from _body(s.body, depth + 1)
                if s.orelse:
                    yield f"{indent}else:"
                    yield from _body(s.orelse, depth + 1)
