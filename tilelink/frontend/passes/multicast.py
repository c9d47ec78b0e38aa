"""Makes roles multicast: they write to all ranks at once, and read the sum over all ranks at once. A rewriting of the
tile program.

Writes: a rank axis that only names whose memory copies, stores and notifications go to is taken out of the role's
space, and `.at(t.reader)` becomes `.at(tk.ranks)`. Reads: a loop over all ranks that adds up the same view of each rank
becomes one load of that view `.at(tk.ranks)`, which is the sum:

    for r in ranks:                                    s = wait(partial[t].at(all ranks))
        s = wait(partial[t].at(r))       becomes       acc = acc + s.load()
        acc = acc + s.load()

If the target's fabric has multicast addresses, the lowering accesses these; otherwise it makes loops over the ranks.
"""

from __future__ import annotations

from dataclasses import replace

import sympy

from tilelink.errors import ScheduleError
from tilelink.frontend import ir
from tilelink.frontend.expressions import WORLD, axis, symbol
from tilelink.frontend.passes.elaborate import Binding
from tilelink.frontend.schedule import SMs
from tilelink.frontend.walk import make_walk
from tilelink.language import Space, ranks

SUMMED = ("float32", "float16", "bfloat16")
"""The dtypes that fabrics add up. They add in float32."""


def multicast(program: ir.TileProgram, binding: Binding) -> ir.TileProgram:
    """The program with those roles multicast whose schedule says via="multicast". Raises ScheduleError."""
    roles = (
        _multicast(r, binding.launch(r.name).space, program)
        if r.resource.via == "multicast" else r
        for r in program.roles
    )
    return replace(program, roles=tuple(roles))


def _multicast(role: ir.Role, space: Space, program: ir.TileProgram) -> ir.Role:
    """The role with loads of sums, and with views of all ranks instead of its first rank axis that only names where
    things go. A role that has neither, but has views of all ranks already, stays unchanged. Raises ScheduleError."""
    assert isinstance(role.resource, SMs)
    cut, why = frozenset(program.cut), list[str]()
    role = replace(role, body=ir.rewritten(role.body, lambda s: _sum_of_all(s, program, why)))
    for reader in (a for a, word in space.axes.items() if word == ranks):
        body = _to_all(role.body, axis(reader))
        differs = _why_not_alike(reader, body, role.resource.at)
        if not differs:
            rest = replace(space, axes={a: word for a, word in space.axes.items() if a != reader})
            found, _ = make_walk(role.name, rest, role.resource, cut, role.site)
            return replace(role, walk=found, body=body)
        why.append(differs)
    if not any(v.home == ir.ALL_RANKS for v in role.touched):
        needed = (
            "it writes nothing to all ranks alike, and reads no sum over them. It needs a rank axis that only names "
            "where copies, stores and notifications go, as reader does in tk.copy(x[t], full[t].at(t.reader)) with "
            "at='home'; or views .at(tk.ranks); or a loop that only adds up, for r in tk.ranks(): acc += "
            "tk.wait(partial[t].at(r)).load()"
        )
        raise ScheduleError(f"{role.name} can't multicast: {'; '.join(why) or needed}", role.site)
    return role


def _why_not_alike(reader: str, body: ir.Body, at: str | None) -> str:
    """Why what goes to the ranks of an axis is not the same for all of them; "" if it is. `body`: the statements of the
    role, with views of all ranks instead of these ranks. `at`: the axis that executes."""
    if reader == at:
        return f"at={reader!r} gives each {reader} tiles of its own; what goes to all ranks is sent from the home"
    differing = next((s for s in ir.walk(body) if axis(reader) in s.symbols), None)
    if differing is None:
        return ""
    for where in differing.wheres:
        if axis(reader) in where.symbols:
            return f"where={where} ({differing.site}) moves other rows for each {reader}, and all ranks get the same"
    return f"`{differing.site.text}` ({differing.site}) depends on {reader}, and all ranks get the same"


def _sum_of_all(s: ir.Statement, program: ir.TileProgram, why: list[str]) -> ir.Body:
    """A loop over all ranks that only adds up the same view of each, as one load of the sum. Others stay unchanged; of
    loops over all ranks, `why` gets the reason."""
    if not isinstance(s, ir.For) or (s.start, s.stop, s.step) != (0, WORLD, 1):
        return (s,)
    reason = "it does more than wait for a view and add it up"
    match s.body:
        case (
            ir.Wait(views=(waited,)) as wait,
            ir.Compute(targets=(total,), code=ir.Code(loads=(load,)) as code) as add,
        ):
            awaited, loaded = (_of_all(view, symbol(s.name)) for view in (waited, load.view))
            dtype = program.tensor(load.view.tensor).dtype
            if load.where is not None:
                reason = f"where={load.where} leaves rows out"
            elif code.text not in ("{0} + {1}", "{1} + {0}") or ir.Variable(total) not in code.holes:
                reason = f"{total} = {code} does more than add up"
            elif not awaited or not loaded or loaded.tensor != awaited.tensor:
                reason = f"{load.view} is not the same region of each rank, or not what {waited} waits for"
            elif dtype not in SUMMED:
                reason = f"{loaded.tensor} is {dtype}, and fabrics add up {', '.join(SUMMED)}"
            else:
                code = replace(code, holes=tuple(ir.Load(loaded) if h == load else h for h in code.holes))
                return (replace(wait, views=(awaited,)), replace(add, code=code))
    why.append(f"the loop over the ranks ({s.site}) is no sum that a fabric makes: {reason}")
    return (s,)


def _of_all(view: ir.View, rank: sympy.Symbol) -> ir.View | None:
    """A view of the memory of `rank` as a view of all ranks; None if more of it than its home depends on `rank`."""
    found = replace(view, home=ir.ALL_RANKS)
    return found if view.home == rank and rank not in found.symbols else None


def _to_all(body: ir.Body, reader: sympy.Symbol) -> ir.Body:
    """The statements with everything that goes to the rank `reader` going to all ranks."""
    return ir.rewritten(body, lambda s: (s.giving(lambda v: replace(v, home=ir.ALL_RANKS) if v.home == reader else v),))
