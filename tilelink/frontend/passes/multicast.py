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
    cut = frozenset(program.cut)
    role = replace(role, body=ir.rewritten(role.body, lambda s: _sum_of_all(s, program)))
    for reader in (a for a, word in space.axes.items() if word == ranks and a != role.resource.at):
        body = _to_all(role.body, axis(reader))
        if not any(axis(reader) in s.symbols for s in ir.walk(body)):
            rest = replace(space, axes={a: word for a, word in space.axes.items() if a != reader})
            found, _ = make_walk(role.name, rest, role.resource, cut, role.site)
            return replace(role, walk=found, body=body)
    if not any(v.home == ir.ALL_RANKS for s in ir.walk(role.body) for v in s.touched):
        raise ScheduleError(
            f"{role.name} can't multicast: it writes nothing to all ranks alike, and reads no sum over them. It needs "
            "a rank axis that only names where copies, stores and notifications go, as reader does in "
            "tk.copy(x[t], full[t].at(t.reader)) with at='home'; or views .at(tk.ranks); or a loop that only adds up, "
            "for r in tk.ranks(): acc += tk.wait(partial[t].at(r)).load()",
            role.site,
        )
    return role


def _sum_of_all(s: ir.Statement, program: ir.TileProgram) -> ir.Body:
    """A loop over all ranks that only adds up the same view of each, as one load of the sum. Others stay unchanged."""
    over_ranks = isinstance(s, ir.For) and (s.start, s.stop, s.step) == (0, WORLD, 1)
    match s:
        case ir.For(body=(ir.Wait(views=(waited,)) as wait, ir.Compute(targets=(total,), code=code) as add)):
            adds = code.text in ("{0} + {1}", "{1} + {0}") and ir.Variable(total) in code.holes
            if not over_ranks or not adds or len(code.loads) != 1 or code.loads[0].where is not None:
                return (s,)
            (load,), rank = code.loads, symbol(s.name)
            awaited, loaded = _of_all(waited, rank), _of_all(load.view, rank)
            if awaited and loaded and loaded.tensor == awaited.tensor and program.tensor(loaded.tensor).dtype in SUMMED:
                code = replace(code, holes=tuple(ir.Load(loaded) if h == load else h for h in code.holes))
                return (replace(wait, views=(awaited,)), replace(add, code=code))
    return (s,)


def _of_all(view: ir.View, rank: sympy.Symbol) -> ir.View | None:
    """A view of the memory of `rank` as a view of all ranks; None if more of it than its home depends on `rank`."""
    found = replace(view, home=ir.ALL_RANKS)
    return found if view.home == rank and rank not in found.symbols else None


def _to_all(body: ir.Body, reader: sympy.Symbol) -> ir.Body:
    """The statements with everything that goes to the rank `reader` going to all ranks."""
    return ir.rewritten(body, lambda s: (s.giving(lambda v: replace(v, home=ir.ALL_RANKS) if v.home == reader else v),))
