"""Tile programs as text for a person."""

from __future__ import annotations

from collections.abc import Iterator

import sympy

from tilelink.frontend.arithmetic import to_text
from tilelink.frontend.cells import cell_count
from tilelink.frontend.expressions import shown
from tilelink.frontend.ir import Body, Role, Signals, TileProgram


def program_text(program: TileProgram) -> str:
    """The whole program as text: tensors, signals, and each role with its walk and its body."""
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
        yield f"    {shown(name)} = {to_text(value)}"
    yield f"    tiles on each rank: i in 0..{to_text(walk.count)}"
    for name, value in walk.coordinates:
        yield f"    {shown(name)} = {to_text(value)}"
    if walk.exists != sympy.true:
        yield f"    where {to_text(walk.exists)}"
    yield from _body(role.body, 1)


def _body(body: Body, depth: int) -> Iterator[str]:
    indent = "    " * depth
    for s in body:
        yield f"{indent}{s}"
        for number, block in enumerate(s.blocks):
            if number and block:
                yield f"{indent}else:"
            yield from _body(block, depth + 1)
