"""Roles that multicast: what goes to every reader in turn goes to all ranks at once. A rewriting of the tile program.

A rank axis that does nothing but name whose memory copies, stores and notifications go to is taken out of the role's
space, and `.at(t.reader)` becomes `.at(tk.ranks)`. Of that the lowering makes stores to a multicast address, where the
target's fabric has them, and loops over the ranks elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

import sympy

from tilelink.errors import ScheduleError
from tilelink.frontend.expressions import symbol
from tilelink.frontend.ir import ALL_RANKS, Copy, Notify, Role, Statement, Store, View, rewritten, walk
from tilelink.frontend.schedule import SMs
from tilelink.frontend.walk import make_walk
from tilelink.language import Space, ranks


def multicast(role: Role, space: Space, cut: frozenset[str]) -> Role:
    """The role with views of all ranks instead of its first rank axis that only names where things go. A role without
    such an axis stays as it is if it has views of all ranks already. Raises ScheduleError."""
    assert isinstance(role.resource, SMs)
    for axis in (a for a, word in space.axes.items() if word == ranks and a != role.resource.at):
        body = _to_all(role.body, symbol(axis))
        if not _mentions(body, symbol(axis)):
            rest = replace(space, axes={a: word for a, word in space.axes.items() if a != axis})
            found, _ = make_walk(role.name, rest, role.resource, cut, role.site)
            return replace(role, walk=found, body=body)
    if not any(v.home == ALL_RANKS for s in walk(role.body) for v in _targets(s)):
        raise ScheduleError(
            f"{role.name} can't multicast: nothing of it goes to all ranks alike; it needs a rank axis that it does "
            "not execute at and that only names whose memory copies, stores and notifications go to, as reader does in "
            "tk.copy(x[t], full[t].at(t.reader)) with at='home', or views .at(tk.ranks)",
            role.site,
        )
    return role


def _targets(s: Statement) -> tuple[View, ...]:
    match s:
        case Copy() | Store():
            return (s.target,)
        case Notify():
            return s.views
    return ()


def _to_all(body: tuple[Statement, ...], axis: sympy.Symbol) -> tuple[Statement, ...]:
    """The statements with what goes to the rank `axis` going to all ranks."""

    def to_all(view: View) -> View:
        return replace(view, home=ALL_RANKS) if view.home == axis else view

    def change(s: Statement) -> tuple[Statement]:
        match s:
            case Copy() | Store():
                s = replace(s, target=to_all(s.target))
            case Notify():
                s = replace(s, views=tuple(map(to_all, s.views)))
        return (s,)

    return rewritten(body, change)


def _mentions(body: tuple[Statement, ...], name: sympy.Symbol) -> bool:
    """Whether a symbol stands anywhere in statements."""
    return any(name in s.symbols for s in walk(body))
