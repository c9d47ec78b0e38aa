"""Roles that are one for each member of lists take turns: their workers go through the values of the outermost rank
axis, and for each of them through the tiles of every member. So the rows that are here first are used by all members,
and where the tiles of one member end, those of the next go on with the next worker.

Tile i of a member is the (i % tiles)-th of turn i // tiles; it is number `turn * all + before + i % tiles` of all, and
worker `number % workers` does it.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from tilelink.errors import ScheduleError
from tilelink.frontend.expressions import Expr, symbol
from tilelink.frontend.ir import Role


def members(roles: Sequence[Role]) -> list[list[Role]]:
    """The roles in program order, those together that are one for each member of lists."""
    together: dict[str, list[Role]] = {}
    for role in roles:
        together.setdefault(role.launched, []).append(role)
    return list(together.values())


def turns(together: Sequence[Role]) -> Expr:
    """How many turns there are. Raises ScheduleError where that is not the same for all members."""
    found = [next((count for _, count in r.walk.axes), sympy.S.One) for r in together]
    if len(set(found)) > 1:
        raise ScheduleError(
            f"the members of {together[0].launched} take turns, rank by rank, so they have one at=", together[0].site
        )
    return found[0]


def tiles_in_turn(role: Role) -> Expr:
    """The tiles of a member in one of its turns, in terms of sizes."""
    sizes = {symbol(name): value for name, value in role.walk.sizes}
    return sympy.sympify(role.walk.count / turns([role])).xreplace(sizes)
