"""Turns waits for whole rows into waits for one piece at a time, where a schedule says waits="pieces".

    rows = wait(full[rows])               for k in steps:
    for k in steps:             becomes       rows = wait(full[rows, k])
        ... rows[:, k].load() ...              ... rows[:, k].load() ...

A tile then begins when the first piece of its rows is there. The tiles that bring the rows decide how long a piece is,
because a later pass derives the signals. TileLink (MLSys 2025) and FLUX (arXiv 2406.06858) wait for whole rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilelink.errors import ScheduleError
from tilelink.frontend import ir
from tilelink.frontend.expressions import Expr, symbol
from tilelink.frontend.passes.elaborate import Binding


def wait_in_pieces(program: ir.TileProgram, _: Binding) -> ir.TileProgram:
    """The program with waits moved into main loops, where the schedule says so. Raises ScheduleError for such a role if
    no wait of it can be moved into a main loop."""
    return replace(program, roles=tuple(_in_pieces(r) if r.resource.waits == "pieces" else r for r in program.roles))


def _in_pieces(role: ir.Role) -> ir.Role:
    body = role.body
    read = {v.guard for s in ir.walk(body) for v in s.read}
    for wait in [s for s in body if isinstance(s, ir.Wait) and s.name in read]:  # others order what stands behind them
        body = tuple(_moved(wait, body, [wait.name]))
    if not any(isinstance(inner, ir.Wait) for loop in ir.every(ir.For, body) for inner in loop.body):
        raise ScheduleError(
            f'{role.name} has waits="pieces", and no main loop goes step by step through one view that its tiles wait '
            "for: leave it out",
            role.site,
        )
    return replace(role, body=body)


def _moved(wait: ir.Wait, body: ir.Body, names: list[str]) -> Iterator[ir.Statement]:
    """The body with a wait moved to its readers: into each main loop, and before each other statement. Each moved wait
    gets a name. `names`: the names so far; the last of them is the next to use."""
    for s in body:
        if s is wait or not any(v.guard == wait.name for inner in ir.walk((s,)) for v in inner.read):
            yield from () if s is wait else (s,)
        elif isinstance(s, ir.If):
            yield s.around(*(tuple(_moved(wait, block, names)) for block in s.blocks))
        else:
            name, view = names[-1], _piece(s, wait)
            names.append(f"{wait.name}_{len(names)}")
            then = _renamed(s, wait.name, name)
            if view is None:
                yield from (replace(wait, name=name), then)
            else:
                yield then.around((ir.Wait(wait.site, name, (view,)), *then.blocks[0]))


def _renamed(s: ir.Statement, old: str, new: str) -> ir.Statement:
    """The statement with the guard `new` in place of `old`."""

    def change(view: ir.View) -> ir.View:
        return replace(view, guard=new) if view.guard == old else view

    (made,) = ir.rewritten((s,), lambda inner: (inner.reading(change),))
    return made


def _piece(s: ir.Statement, wait: ir.Wait) -> ir.View | None:
    """The view that each step of a main loop needs: its part of the one view that the wait is for, or None."""
    if not isinstance(s, ir.For) or len(wait.views) > 1 or not ir.multiplies(s.body):
        return None
    (whole,), steps = wait.views, set()
    for view in (v for inner in ir.walk(s.body) for v in inner.read if v.guard == wait.name):
        pairs = enumerate(zip(whole.index, view.index, strict=True))
        steps.add(next(((k, i) for k, (w, i) in pairs if _step_of(i, w, s)), None))
    if len(steps) != 1 or (found := steps.pop()) is None:
        return None
    at, step = found
    return replace(whole, index=(*whole.index[:at], step, *whole.index[at + 1 :]))


def _step_of(i: ir.Range | Expr, whole: ir.Range | Expr, loop: ir.For) -> bool:
    """Whether `i` is the step of a loop, over a whole dimension."""
    if not isinstance(i, ir.Range) or not isinstance(whole, ir.Range):
        return False
    return whole.whole and i.start == symbol(loop.name) and i.extent == loop.step
