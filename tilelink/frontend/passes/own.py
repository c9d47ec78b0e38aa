"""Takes what stays on a rank out of roles with own="stored": a rewriting of the tile program.

Such a role brings what an earlier role makes to the ranks that need it. The earlier role stores what stays on its rank
where the copy would go, as in an epilogue (`fold.py`); the role copies only what goes to other ranks:

    partial[t].store(acc)                      if home == rank:
    notify(partial[t])                             inbox[rank, t].at(home).store(acc), and its notification
                                    becomes    else:
                                                   partial[t].store(acc), and its notification
    mine = wait(partial[t])
    copy mine -> inbox[rank, t].at(home)       if home != rank: the same as before
"""

from __future__ import annotations

from dataclasses import replace

import sympy

from tilelink.errors import ScheduleError, Site
from tilelink.frontend import ir
from tilelink.frontend.expressions import RANK, Expr, axis
from tilelink.frontend.passes.elaborate import Binding
from tilelink.frontend.passes.fold import from_registers, in_tiles_of, keeping
from tilelink.frontend.schedule import SMs


def store_own(program: ir.TileProgram, binding: Binding) -> ir.TileProgram:
    """The program with what stays on a rank stored by the roles that make it. Raises ScheduleError."""
    notified = {v.tensor for r in program.roles for v in r.notified}
    for role in (r for r in program.roles if r.resource.own == "stored"):
        if any(v.tensor not in notified for v in role.awaited):
            continue  # `derive_signals` refuses this wait, whatever the schedule
        producer = _maker(role, program)
        try:
            program, folded = in_tiles_of(producer, program, binding, binding.launch(role.name))
        except ScheduleError as e:
            why = f'{role.name} has own="stored", so {producer.name} stores what stays on a rank in its epilogue'
            raise type(e)(f'{why}; but {e.message}. Leave out own="stored"', e.site) from None
        _check(role, producer, folded, program)
        (maker,) = {v.home for v in role.awaited}
        others = copying_others(role, maker)  # first: it refuses a role in words of the role's own schedule
        made = {producer.name: _storing_own(producer, folded, program), role.name: others}
        program = replace(program, roles=tuple(made.get(r.name, r) for r in program.roles))
    return program


def refused(role: ir.Role, why: str, site: Site | None = None) -> ScheduleError:
    own = role.resource.own
    return ScheduleError(f'{role.name} has own="{own}", and {why}. Leave out own="{own}"', site or role.site)


def _maker(role: ir.Role, program: ir.TileProgram) -> ir.Role:
    """The role on SMs that makes what a role waits for. Raises ScheduleError."""
    if computes := next((s for s in ir.walk(role.body) if s.codes), None):
        raise refused(role, 'it computes; own="stored" is for roles that only wait, copy and notify', computes.site)
    if not role.awaited:
        raise refused(role, 'it waits for nothing; own="stored" is for a role that copies what an earlier role makes, '
                      'and own="read" for one that copies an input')  # fmt: skip
    awaited, earlier = {v.tensor for v in role.awaited}, program.roles[: program.roles.index(role)]
    makers = [r for r in earlier if isinstance(r.resource, SMs) and awaited & {v.tensor for v in r.notified}]
    if len(makers) != 1:
        makes = f"{' and '.join(r.name for r in makers)} make" if makers else "no earlier role on SMs makes"
        raise refused(role, f'{makes} what it waits for; own="stored" is for copies of what one such role makes')
    return makers[0]


def _check(role: ir.Role, producer: ir.Role, folded: ir.Role, program: ir.TileProgram) -> None:
    """Raises ScheduleError if what stays on a rank is not the role's alone, or if the role as it is scheduled does not
    copy from the rank that makes it."""
    for view in folded.awaited:
        kind = program.tensor(view.tensor).kind
        if kind != "buffer":
            raise refused(role, f"every element of the {kind} {view.tensor} must be written")
        for other in (r for r in program.roles if r.name not in (role.name, producer.name)):
            if view.tensor in {v.tensor for v in other.touched}:
                raise refused(role, f"{other.name} needs {view.tensor}, too, which would lack what stays on a rank")
    maker = folded.resource.at
    if maker is None:
        raise refused(role, f"all that it copies stays on its rank; tk.Epilogue({producer.name!r}) stores all of that")
    home = axis(maker) if axis(maker).name in dict(role.walk.axes) else RANK
    for wait in ir.every(ir.Wait, role.body):
        if wrong := next((v for v in wait.views if v.home != home), None):
            whose = "its own rank" if wrong.home == RANK else wrong.home_text
            of = f"memory of {whose}, and {maker} is the rank that makes it"
            raise refused(role, f"it waits for {wrong}, {of}: write .at(t.{maker})", wait.site)


def _storing_own(producer: ir.Role, folded: ir.Role, program: ir.TileProgram) -> ir.Role:
    """The producer with what `folded` would copy from a rank to itself stored to its place instead."""
    stays = sympy.Eq(_receiver(folded), RANK)
    body: list[ir.Statement] = []
    stores: list[ir.Statement] = []
    missing = set(folded.awaited)
    for s in keeping(producer, folded, program):
        match s:
            case ir.Store() if s.target in folded.awaited:
                stores.append(s)
            case ir.Notify() if missing & set(s.views):
                missing -= set(s.views)
                kept = tuple(v for v in s.views if v not in folded.awaited)
                body += [replace(s, views=kept)] if kept else []
                stores.append(replace(s, views=tuple(v for v in s.views if v in folded.awaited)))
                own = from_registers(folded.body)
                body += () if missing else [ir.If(of_no_line(s), stays, own, tuple(stores))]
            case _:
                body.append(s)
    return replace(producer, body=tuple(body))


def copying_others(role: ir.Role, maker: Expr | str | None) -> ir.Role:
    """The role without what it copies from a rank to itself. Raises ScheduleError."""
    goes = sympy.Ne(_receiver(role), maker)
    return replace(role, body=(ir.If(of_no_line(role.body[0]), goes, role.body, ()),))


def _receiver(role: ir.Role) -> Expr:
    """The rank to whose memory a tile of a role copies. Raises ScheduleError if this is not one rank."""
    home, *others = {s.target.home for s in ir.every(ir.Copy, role.body)} | {v.home for v in role.notified}
    if others or not isinstance(home, Expr):
        raise refused(role, "a tile of it copies to several ranks, or to all, so no part of it stays on one rank")
    return home


def of_no_line(s: ir.Statement) -> Site:
    """The site of a branch that TileLink adds: without text."""
    return replace(s.site, text="")
