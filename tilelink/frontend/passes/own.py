"""Takes what stays on a rank out of roles with own="stored" or own="read": rewritings of the tile program.

A role with own="stored" brings what an earlier role makes to the ranks that need it. The earlier role stores what stays
on its rank where the copy would go, as in an epilogue (`fold.py`); the role copies only what goes to other ranks:

    partial[t].store(acc)                      if home == rank:
    notify(partial[t])                             inbox[rank, t].at(home).store(acc), and its notification
                                    becomes    else:
                                                   partial[t].store(acc), and its notification
    mine = wait(partial[t])
    copy mine -> inbox[rank, t].at(home)       if home != rank: the same as before

A role with own="read" brings an input to the ranks that need it. Those that wait for a copy read what stays on their
rank in the input itself, and the role copies only what goes to other ranks:

    copy x[t] -> full[t].at(reader)            if reader != rank: the same as before
    rows = wait(full[t])            becomes    rows = wait(full[t]) if home != rank
    ... rows.load() ...                        if home == rank: ... x[t].load() ... else: the same as before
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import sympy

from tilelink.errors import ScheduleError, Site
from tilelink.frontend import ir
from tilelink.frontend.expressions import RANK, Expr, axis, symbol
from tilelink.frontend.passes.elaborate import Binding
from tilelink.frontend.passes.fold import from_registers, in_tiles_of, keeping
from tilelink.frontend.schedule import SMs

CURE = 'Leave out own="stored"'


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
            why = f'{role.name} has own="stored", so {producer.name} would do that for what stays on a rank'
            raise type(e)(f"{e.message}; {why}. {CURE}", e.site) from None
        _check(role, producer, folded, program)
        (maker,) = {v.home for v in role.awaited}
        others = _copying_others(role, maker)  # first: it refuses a role in words of the role's own schedule
        made = {producer.name: _storing_own(producer, folded, program), role.name: others}
        program = replace(program, roles=tuple(made.get(r.name, r) for r in program.roles))
    return program


def _refused(role: ir.Role, why: str, site: Site | None = None) -> ScheduleError:
    own = role.resource.own
    return ScheduleError(f'{role.name} has own="{own}", and {why}. Leave out own="{own}"', site or role.site)


def _maker(role: ir.Role, program: ir.TileProgram) -> ir.Role:
    """The role on SMs that makes what a role waits for. Raises ScheduleError."""
    awaited, earlier = {v.tensor for v in role.awaited}, program.roles[: program.roles.index(role)]
    makers = [r for r in earlier if isinstance(r.resource, SMs) and awaited & {v.tensor for v in r.notified}]
    if len(makers) != 1:
        makes = f"{' and '.join(r.name for r in makers)} make" if makers else "no earlier role on SMs makes"
        raise _refused(role, f"{makes} what it waits for; it is for a role that copies what one such role makes")
    return makers[0]


def _check(role: ir.Role, producer: ir.Role, folded: ir.Role, program: ir.TileProgram) -> None:
    """Raises ScheduleError if what stays on a rank is not the role's alone, or if the role as it is scheduled does not
    copy from the rank that makes it."""
    for view in folded.awaited:
        kind = program.tensor(view.tensor).kind
        if kind != "buffer":
            raise _refused(role, f"{view.tensor} is an {kind}, all of which has to be written")
        for other in (r for r in program.roles if r.name not in (role.name, producer.name)):
            if view.tensor in {v.tensor for v in other.touched}:
                raise _refused(role, f"{other.name} needs {view.tensor}, too, which would lack what stays on a rank")
    maker = folded.resource.at
    if maker is None:
        raise _refused(role, f"all that it copies stays on its rank; tk.Epilogue({producer.name!r}) stores all of that")
    home = axis(maker) if axis(maker).name in dict(role.walk.axes) else RANK
    for wait in ir.every(ir.Wait, role.body):
        if wrong := next((v for v in wait.views if v.home != home), None):
            whose = "its own rank" if wrong.home == RANK else wrong.home_text
            of = f"memory of {whose}, and {maker} is the rank that makes it"
            raise _refused(role, f"it waits for {wrong}, {of}: write .at(t.{maker})", wait.site)


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
                body += () if missing else [ir.If(_of_no_line(s), stays, own, tuple(stores))]
            case _:
                body.append(s)
    return replace(producer, body=tuple(body))


def read_own(program: ir.TileProgram, _: Binding) -> ir.TileProgram:
    """The program with what stays on a rank read where it lies, by the roles that wait for copies of it. Raises
    ScheduleError."""
    for role in (r for r in program.roles if r.resource.own == "read"):
        copies = _copies(role, program)
        others = {r.name: replace(r, body=_reading_own(r.body, role, copies, program)) for r in program.roles}
        made = {**others, role.name: _copying_others(role, copies[0].source.home)}
        program = replace(program, roles=tuple(made[r.name] for r in program.roles))
    return program


def _copies(role: ir.Role, program: ir.TileProgram) -> list[ir.Copy]:
    """What a role with own="read" copies. Raises ScheduleError if the role does anything else, if a copy is not the
    same region of a sharded input, or if another role writes to the same buffer."""
    for s in ir.walk(role.body):
        if not isinstance(s, ir.Copy | ir.Notify | ir.For | ir.If):
            does = f"it waits for {s.views[0]}" if isinstance(s, ir.Wait) else "it computes"
            raise _refused(role, f'{does}; own="read" is for roles that only copy inputs and notify', s.site)
    if not (copies := list(ir.every(ir.Copy, role.body))):
        raise _refused(role, 'it copies nothing; own="read" is for roles that copy inputs')
    for s in copies:
        source, target = program.tensor(s.source.tensor), program.tensor(s.target.tensor)
        kinds = (source.kind, target.kind) == ("input", "buffer") and source.sharded is not None
        if not kinds or s.where is not None:
            what = f"it copies {'some rows of ' if s.where else ''}{s.source} to {s.target}"
            raise _refused(role, f'{what}; own="read" is for copies of all rows of a sharded input to a buffer', s.site)
        if s.source.index != s.target.index:
            raise _refused(role, f"it copies {s.source} to another region, {s.target}", s.site)
        if s.source.home != copies[0].source.home:
            homes = f"{copies[0].source.home_text} and of {s.source.home_text}"
            raise _refused(role, f"a tile of it copies memory of {homes}; all of it has to be one rank's", s.site)
        for other in (r for r in program.roles if r.name != role.name):
            if write := next((w for w in ir.every(ir.Write, other.body) if w.target.tensor == target.name), None):
                why = f"{other.name} writes to {target.name}, too; nobody would read what it writes for its own rank"
                raise _refused(role, why, write.site)
    for k, s in enumerate(copies):
        if s.target.tensor in {c.target.tensor for c in copies[:k]}:
            raise _refused(role, f"it copies to {s.target.tensor} in two places", s.site)
    return copies


def _reading_own(body: ir.Body, role: ir.Role, copies: list[ir.Copy], program: ir.TileProgram) -> ir.Body:
    """The body of another role, which reads the copies of its own rank's rows where they were copied from. Each
    statement that reads some stands in a branch. A loop stands there whole if it does not wait, and all are of one
    part."""
    sources = {s.target.tensor: s.source.tensor for s in copies}

    def own(view: ir.View, stays: sympy.Basic, s: ir.Statement) -> ir.View:
        if view.tensor not in sources or _of_part(view, role, sources, program, s) != stays:
            return view
        return replace(view, tensor=sources[view.tensor], guard=None)

    def change(s: ir.Statement) -> ir.Body:
        if isinstance(s, ir.Wait) and any(v.tensor in sources for v in s.views):
            if len(s.views) > 1:
                why = f"this wait is for {s.views[0]} and for other views; write a wait for each view"
                raise _refused(role, why, s.site)
            return (replace(s, when=sympy.Not(_of_part(s.views[0], role, sources, program, s))),)
        read = [v for i in ir.walk((s,)) for v in i.read if v.tensor in sources]
        if not read:
            return (s,)
        for by in (v for i in ir.walk((s,)) for load in i.reads for v in (*load.view.picked_by, load.where) if v):
            if by.tensor in sources:
                why = f"{by} picks or marks rows; copy it to another buffer first, and read that"
                raise _refused(role, why, s.site)
        inside = {symbol(i.name) for i in ir.every(ir.For, (s,))}
        stays = {_of_part(v, role, sources, program, s) for v in read}
        waits = any(v.tensor in sources for w in ir.every(ir.Wait, (s,)) for v in w.views)
        if isinstance(s, ir.If) or waits or any(c.free_symbols & inside for c in stays):
            return (s.around(*(tuple(m for i in block for m in change(i)) for block in s.blocks)),)
        return _in_branches(s, sorted(stays, key=str), own)

    return tuple(made for s in body for made in change(s))


def _in_branches(
    s: ir.Statement, stays: Sequence[sympy.Basic], own: Callable[[ir.View, sympy.Basic, ir.Statement], ir.View]
) -> ir.Body:
    """A statement in a branch for each condition under which rows stay on a rank, with `own` views if they do."""
    if not stays:
        return (s,)
    first, *others = stays
    (here,) = ir.rewritten((s,), lambda i: (i.reading(lambda v: own(v, first, i)),))
    return (ir.If(_of_no_line(s), first, _in_branches(here, others, own), _in_branches(s, others, own)),)


def _of_part(
    view: ir.View, role: ir.Role, sources: dict[str, str], program: ir.TileProgram, s: ir.Statement
) -> sympy.Basic:
    """The condition that a view has rows of the executing rank. Raises ScheduleError if it may have others, too."""
    source = program.tensor(sources[view.tensor])
    assert source.sharded is not None
    rows = view.index[source.sharded]
    if view.home != RANK:
        raise _refused(role, f"{view} is memory of another rank, which lacks that rank's own rows", s.site)
    if not isinstance(rows, ir.Range) or rows.part is None:
        lie = f"its own in {source.name}, the others in {view.tensor}"
        raise _refused(role, f"{view} may have rows of several ranks, which would lie apart: {lie}", s.site)
    return sympy.Eq(rows.part, RANK)


def _copying_others(role: ir.Role, maker: Expr | str | None) -> ir.Role:
    """The role without what it copies from a rank to itself. Raises ScheduleError."""
    goes = sympy.Ne(_receiver(role), maker)
    return replace(role, body=(ir.If(_of_no_line(role.body[0]), goes, role.body, ()),))


def _receiver(role: ir.Role) -> Expr:
    """The rank to whose memory a tile of a role copies. Raises ScheduleError if this is not one rank."""
    home, *others = {s.target.home for s in ir.every(ir.Copy, role.body)} | {v.home for v in role.notified}
    if others or not isinstance(home, Expr):
        raise _refused(role, "a tile of it copies to several ranks, or to all, so no part of it stays on one rank")
    return home


def _of_no_line(s: ir.Statement) -> Site:
    """The place of a branch that no line of the user's stands for."""
    return replace(s.site, text="")
