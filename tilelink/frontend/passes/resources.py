"""Refuses roles that their resource can't do.

A role on the copy engine makes copies between two ranks, notifies each copy, and waits for tiles of its own rank's
kernel. Conditions that depend on sizes are checked when the program is unrolled.
"""

from __future__ import annotations

from typing import NoReturn

from tilelink.errors import ScheduleError, Site
from tilelink.frontend.expressions import RANK, shown, symbol
from tilelink.frontend.ir import ALL_RANKS, Copy, For, If, Notify, Role, TileProgram, Wait, walk
from tilelink.frontend.passes.elaborate import Binding
from tilelink.frontend.schedule import COMPUTES, SMs
from tilelink.frontend.workload import members, turns

CURE = "Give it SMs, or put it into the epilogue of the role that it waits for"


def check_resources(program: TileProgram, _: Binding) -> TileProgram:
    """The program, unchanged. Raises ScheduleError for a role on the copy engine that does what an engine can't, and
    for members that can't take turns."""
    for together in members(program.roles):
        turns(together)
    for role in program.on_engine:
        touched = {v.tensor for v in role.touched}
        if {d for name in touched for d in program.tensor(name).dims} & {*program.routed}:
            _fail(role, role.site, "the host enqueues its copies, and only the device knows how many rows go where. "
                  "Give it SMs")
        for s in walk(role.body):
            match s:
                case Wait():
                    _check_wait(role, s, program)
                case Copy() if s.target.home == ALL_RANKS:
                    _fail(role, s.site, "it copies to all ranks at once, and a copy of an engine is between two. Give "
                          "its space a rank axis, reader=tk.ranks, and copy to .at(t.reader)")
                case Copy() if s.source.picked_by:
                    _fail(role, s.site, f"it copies {s.source}, rows that integers pick, and the host that enqueues "
                          "the copy does not know them. Give it SMs")
                case Copy() if s.where is not None:
                    _fail(role, s.site, f"it copies rows where {s.where} says so, and the host that enqueues the copy "
                          "does not know those integers. Give it SMs, or copy all rows")
                case Copy() if s.target not in role.notified:
                    _fail(role, s.site, f"it notifies nobody of its copy to {s.target}, so nobody would know when that "
                          "is done. Notify what tk.copy returns")
                case Copy() | Notify() | For() | If():
                    pass
                case _:
                    _fail(role, s.site, COMPUTES)
    return program


def _fail(role: Role, site: Site, why: str) -> NoReturn:
    raise ScheduleError(f"{role.name} can't be on the copy engine: {why}", site)


def _check_wait(role: Role, wait: Wait, program: TileProgram) -> None:
    """Raises ScheduleError for a wait that an engine can't do. It waits only for tiles of its own rank's kernel,
    because the host lets go of all their signals when the kernel has ended, however it did. Only earlier roles make
    these tiles, so that one stream may be enough for a rank."""
    site, its_own = wait.site, "an engine waits only for what the kernel of its own rank makes"
    for view in wait.views:
        if view.home != RANK:
            maker = next((f": at={shown(n)!r}" for n, _ in role.walk.axes if symbol(n) == view.home), "")
            _fail(role, site, f"it waits for {view}, which another rank makes, and {its_own}. Give it SMs, or let the "
                  f"rank that makes {view.tensor} execute it{maker}")
        for other, v in ((r, v) for r in program.roles for v in r.notified if v.tensor == view.tensor):
            engine = not isinstance(other.resource, SMs)
            if engine or v.home != RANK:
                brings = "brings on the copy engine" if engine else f"notifies at {v.home_text}"
                _fail(role, site, f"it waits for {view}, which {other.name} {brings}, and {its_own}. {CURE}")
        for other, v in ((r, v) for r in program.roles for v in r.awaited if v.tensor == view.tensor):
            if v.home != RANK:
                _fail(role, site, f"it waits for {view}, and {other.name} does for tiles of {view.tensor} at "
                      f"{v.home_text}: their signals come from other ranks, and {its_own}. {CURE}")
    order, needed = [r.name for r in program.roles], _needed(role.name, program)
    if role.name in needed:
        _fail(role, site, f"it is in a cycle of roles, {' -> '.join([*needed[role.name], role.name])}. {CURE}")
    for name, way in needed.items():
        if order.index(name) > order.index(role.name):
            _fail(role, site, f"it needs {name} ({' -> '.join([*way, role.name])}), which is launched after it, and "
                  f"what an engine waits for comes before it. Launch {role.name} behind {name}")


def _needed(role: str, program: TileProgram) -> dict[str, list[str]]:
    """The roles that `role` needs before it can go on, each with the shortest way from it to `role`. On a way, each
    role waits for what the role before it notifies, or for its SMs."""
    roles = program.roles
    before = {role.name: [other.name for other in roles if _comes_before(other, role, program)] for role in roles}
    found: dict[str, list[str]] = {}
    ways: list[list[str]] = [[]]
    for way in ways:
        for name in (n for n in before[(way or [role])[0]] if n not in found):
            found[name] = [name, *way]
            ways.append(found[name])
    return found


def _comes_before(other: Role, role: Role, program: TileProgram) -> bool:
    """Whether a role may have to wait for another: for its tiles, or for its SMs. Roles without a count share SMs, and
    so do roles that take turns."""
    if {v.tensor for v in other.notified} & {v.tensor for v in role.awaited}:
        return True
    in_kernel = program.in_kernel
    if role not in in_kernel or other not in in_kernel or role == other:
        return False
    shared = all(r.resource.count is None for r in (other, role))
    in_turns = any(role in alike and other in alike for alike in members(in_kernel))
    return in_turns or (shared and in_kernel.index(other) < in_kernel.index(role))
