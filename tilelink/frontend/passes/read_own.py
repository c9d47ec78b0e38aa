"""Lets tiles read what stays on a rank where it lies, for roles with own="read": a rewriting of the tile program.

Such a role brings an input to the ranks that need it. Those that wait for a copy read what stays on their rank in the
input itself, and the role copies only what goes to other ranks:

    copy x[t] -> full[t].at(reader)            if reader != rank: the same as before
    rows = wait(full[t])            becomes    rows = wait(full[t]), for no copy if home == rank
    ... rows.load() ...                        if home == rank: ... x[t].load() ... else: the same as before
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy

from tilelink.frontend import ir
from tilelink.frontend.expressions import RANK, symbol
from tilelink.frontend.passes.elaborate import Binding
from tilelink.frontend.passes.own import copying_others, of_no_line, refused


def read_own(program: ir.TileProgram, _: Binding) -> ir.TileProgram:
    """The program with what stays on a rank read where it lies, by the roles that wait for copies of it. Raises
    ScheduleError."""
    for role in (r for r in program.roles if r.resource.own == "read"):
        copies = _copies(role, program)
        readers = {r.name: replace(r, body=_reading_own(r.body, role, copies, program)) for r in program.roles}
        made = {**readers, role.name: copying_others(role, copies[0].source.home)}
        program = replace(program, roles=tuple(made[r.name] for r in program.roles))
    return program


def _copies(role: ir.Role, program: ir.TileProgram) -> list[ir.Copy]:
    """What a role with own="read" copies. Raises ScheduleError if the role does anything else, if a copy is not the
    same region of a sharded input, or if another role writes to the same buffer."""
    for s in ir.walk(role.body):
        if not isinstance(s, ir.Copy | ir.Notify | ir.For | ir.If):
            does = f"it waits for {s.views[0]}" if isinstance(s, ir.Wait) else "it computes"
            raise refused(role, f'{does}; own="read" is for roles that only copy inputs and notify', s.site)
    if not (copies := list(ir.every(ir.Copy, role.body))):
        raise refused(role, 'it copies nothing; own="read" is for roles that copy inputs')
    for k, s in enumerate(copies):
        source, target = program.tensor(s.source.tensor), program.tensor(s.target.tensor)
        kinds = (source.kind, target.kind) == ("input", "buffer") and source.sharded is not None
        if not kinds or s.where is not None:
            what = f"it copies {'some rows of ' if s.where else ''}{s.source} to {s.target}"
            raise refused(role, f'{what}; own="read" is for copies of all rows of a sharded input to a buffer', s.site)
        if s.source.index != s.target.index:
            raise refused(role, f"it copies {s.source} to another region, {s.target}", s.site)
        if s.source.home != copies[0].source.home:
            homes = f"{copies[0].source.home_text} and of {s.source.home_text}"
            raise refused(role, f"a tile of it copies memory of {homes}; a tile copies memory of one rank only", s.site)
        if target.name in {c.target.tensor for c in copies[:k]}:
            raise refused(role, f"it copies to {target.name} in two places", s.site)
        for other in (r for r in program.roles if r.name != role.name):
            if write := next((w for w in ir.every(ir.Write, other.body) if w.target.tensor == target.name), None):
                why = f"{other.name} writes to {target.name}, too; nobody would read what it writes for its own rank"
                raise refused(role, why, write.site)
    return copies


def _reading_own(body: ir.Body, role: ir.Role, copies: list[ir.Copy], program: ir.TileProgram) -> ir.Body:
    """The body of another role, which reads the copies of its own rank's rows where they were copied from. Each
    statement that reads some stands in a branch. A loop stands there whole if it does not wait, and all are of one
    part."""
    sources = {s.target.tensor: s.source.tensor for s in copies}

    def change(s: ir.Statement) -> ir.Body:
        if isinstance(s, ir.Wait) and any(v.tensor in sources for v in s.views):
            if len(s.views) > 1:
                why = f"this wait is for {s.views[0]} and for other views; write a wait for each view"
                raise refused(role, why, s.site)
            return (replace(s, when=sympy.Not(_of_part(s.views[0], role, sources, program, s))),)
        read = [v for i in ir.walk((s,)) for v in i.read if v.tensor in sources]
        if not read:
            return (s,)
        for by in (v for i in ir.walk((s,)) for load in i.reads for v in (*load.view.picked_by, load.where) if v):
            if by.tensor in sources:
                why = f"{by} picks or marks rows; copy it to another buffer first, and read that"
                raise refused(role, why, s.site)
        inside = {symbol(i.name) for i in ir.every(ir.For, (s,))}
        stays = {v: _of_part(v, role, sources, program, s) for v in read}
        waits = any(v.tensor in sources for w in ir.every(ir.Wait, (s,)) for v in w.views)
        if isinstance(s, ir.If) or waits or any(c.free_symbols & inside for c in stays.values()):
            return (s.around(*(tuple(m for i in block for m in change(i)) for block in s.blocks)),)
        return _in_branches(s, stays, sources)

    return tuple(made for s in body for made in change(s))


def _in_branches(s: ir.Statement, stays: Mapping[ir.View, sympy.Basic], sources: Mapping[str, str]) -> ir.Body:
    """A statement in a branch for each condition of `stays`, under which it reads a view's rows in their source."""
    if not stays:
        return (s,)
    first = min(stays.values(), key=str)
    later = {v: condition for v, condition in stays.items() if condition != first}

    def own(view: ir.View) -> ir.View:
        return replace(view, tensor=sources[view.tensor], guard=None) if stays.get(view) == first else view

    (here,) = ir.rewritten((s,), lambda i: (i.reading(own),))
    return (ir.If(of_no_line(s), first, _in_branches(here, later, sources), _in_branches(s, later, sources)),)


def _of_part(
    view: ir.View, role: ir.Role, sources: dict[str, str], program: ir.TileProgram, s: ir.Statement
) -> sympy.Basic:
    """The condition that a view has rows of the executing rank. Raises ScheduleError if it may have others, too."""
    source = program.tensor(sources[view.tensor])
    assert source.sharded is not None
    rows = view.index[source.sharded]
    if view.home != RANK:
        raise refused(role, f"{view} is memory of another rank, which lacks that rank's own rows", s.site)
    if not isinstance(rows, ir.Range) or rows.part is None:
        lie = f"its own in {source.name}, the others in {view.tensor}"
        raise refused(role, f"{view} may have rows of several ranks, which would lie apart: {lie}", s.site)
    return sympy.Eq(rows.part, RANK)
