"""Moves notifications to the worker's next tile, behind its main loop.

A notification waits until everything that the tile has stored is visible to others. At the end of a tile this delays
the loads of the next tile; behind the next main loop, the stores have long arrived. Late notifications are always
given, because tiles of such a role wait for nothing: the next tile reaches the end of its main loop, whatever other
workers do. (A read of a peer's input waits until that peer has entered the run, but no notification delays that.)
"""

from __future__ import annotations

from dataclasses import replace

from tilelink.errors import ScheduleError
from tilelink.frontend import ir
from tilelink.frontend.passes.elaborate import Binding


def late_signals(program: ir.TileProgram, _: Binding) -> ir.TileProgram:
    """The program with notifications marked as late in roles whose schedule says signals="late". Raises ScheduleError
    for roles that wait, that have no main loop, or that notify nothing behind it."""
    return replace(program, roles=tuple(_later(r) if r.resource.signals == "late" else r for r in program.roles))


def _later(role: ir.Role) -> ir.Role:
    def fail(why: str) -> ScheduleError:
        return ScheduleError(f"{role.name} can't give its signals late: {why}", role.site)

    if role.awaited:
        raise fail(
            f"its tiles wait for {role.awaited[0]}, and the notifications of the tile before would wait, too. "
            'Leave out signals="late"'
        )
    loops = [k for k, s in enumerate(role.body) if isinstance(s, ir.For) and ir.multiplies(s.body)]
    if not loops:
        inside = next((s for s in ir.every(ir.For, role.body) if ir.multiplies(s.body)), None)
        if inside is not None:
            raise fail(
                f"its main loop stands in a loop or a branch ({inside.site}), and late signals are given behind a main "
                'loop that each tile runs once. Leave out signals="late"'
            )
        raise fail("it has no main loop (a loop that multiplies) to give them behind")
    main, behind = role.body[: loops[-1] + 1], role.body[loops[-1] + 1 :]
    if not any(ir.every(ir.Notify, behind)):
        raise fail("its tiles notify nothing behind their main loop")

    def change(s: ir.Statement) -> ir.Body:
        return (replace(s, late=True) if isinstance(s, ir.Notify) else s,)

    owed = ir.Owed(replace(next(ir.every(ir.Notify, behind)).site, text=""))
    return replace(role, body=(*main, owed, *ir.rewritten(behind, change)))
