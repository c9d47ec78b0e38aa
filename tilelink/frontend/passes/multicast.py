"""Roles that multicast: what goes to every reader in turn goes to all ranks at once. A rewriting of the tile program.

A rank axis that does nothing but name whose memory copies, stores and notifications go to is taken out of the role's
space, and `.at(t.reader)` becomes `.at(tk.ranks)`. Of that the lowering makes stores to a multicast address, where the
target's fabric has them, and loops over the ranks elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

import sympy

from tilelink.errors import ScheduleError
from tilelink.frontend.expressions import axis
from tilelink.frontend.ir import ALL_RANKS, Body, Role, TileProgram, rewritten, walk
from tilelink.frontend.passes.elaborate import Binding
from tilelink.frontend.schedule import SMs
from tilelink.frontend.walk import make_walk
from tilelink.language import Space, ranks


def multicast(program: TileProgram, binding: Binding) -> TileProgram:
    """The program with its roles multicast of which the schedule says so. Raises ScheduleError."""
    cut = frozenset(program.cut)
    roles = (
        _multicast(r, binding.launch(r.name).space, cut)
        if isinstance(r.resource, SMs) and r.resource.via == "multicast" else r
        for r in program.roles
    )
    return replace(program, roles=tuple(roles))


def _multicast(role: Role, space: Space, cut: frozenset[str]) -> Role:
    """The role with views of all ranks instead of its first rank axis that only names where things go. A role without
    such an axis stays as it is if it has views of all ranks already. Raises ScheduleError."""
    assert isinstance(role.resource, SMs)
    for reader in (a for a, word in space.axes.items() if word == ranks and a != role.resource.at):
        body = _to_all(role.body, axis(reader))
        if not any(axis(reader) in s.symbols for s in walk(body)):
            rest = replace(space, axes={a: word for a, word in space.axes.items() if a != reader})
            found, _ = make_walk(role.name, rest, role.resource, cut, role.site)
            return replace(role, walk=found, body=body)
    if not any(v.home == ALL_RANKS for s in walk(role.body) for v in s.given):
        raise ScheduleError(
            f"{role.name} can't multicast: nothing of it goes to all ranks alike; it needs a rank axis that it does "
            "not execute at and that only names whose memory copies, stores and notifications go to, as reader does in "
            "tk.copy(x[t], full[t].at(t.reader)) with at='home', or views .at(tk.ranks)",
            role.site,
        )
    return role


def _to_all(body: Body, reader: sympy.Symbol) -> Body:
    """The statements with what goes to the rank `reader` going to all ranks."""
    return rewritten(body, lambda s: (s.giving(lambda v: replace(v, home=ALL_RANKS) if v.home == reader else v),))
