"""Which worker does which tile of a role, and in which order: what lowered kernels do, in numbers.

`backend/lower.py` writes the same as loops. The trace of an execution compares the two.

Some roles take turns. In each turn their workers go through some tiles of the first role, then of the next. Where the
tiles of one role end, the next worker begins with the next role's: worker `number % workers` does a tile, and
`number` is how many tiles of all these roles come before it.
- Roles for the members of lists: a turn is a value of their outermost rank axis, so all members use the rows that are
  here first.
- Roles over the experts of a route that have a wave: in a turn each role goes on by a wave of experts, one turn behind
  the role before it. The next role thus finds what this role makes of an expert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy

from tilelink.errors import ScheduleError, TileSizeError, counted
from tilelink.frontend.arithmetic import evaluate
from tilelink.frontend.expressions import RANK, Expr, ceil_div, floor_div, larger, own, smaller, symbol
from tilelink.frontend.integers import MAX_COUNT
from tilelink.frontend.ir import Role, TileProgram
from tilelink.frontend.routed_walk import TURN as PIECE
from tilelink.frontend.schedule import SMs
from tilelink.frontend.sizes import Sizes
from tilelink.frontend.walk import NUMBER

TURN = own("turn_taken")
"""The number of a turn."""


def members(roles: Sequence[Role]) -> list[list[Role]]:
    """The roles in program order; roles that take turns are in one list. Members on copy engines take no turns with
    those on SMs."""
    together: dict[tuple[bool, str | None], list[Role]] = {}
    for role in roles:
        key = isinstance(role.resource, SMs), None if role.wave else role.launched
        together.setdefault(key, []).append(role)
    return list(together.values())


def turns(together: Sequence[Role]) -> Expr:
    """The number of turns. Raises ScheduleError if it differs between the roles, or is data."""
    if any(r.wave for r in together):
        return _waves(together)
    if len(together) > 1 and any(r.walk.table for r in together):
        raise ScheduleError(
            f"the members of {together[0].launched} go over the rows of a route, and how many tiles they have is data: "
            "they take turns only expert by expert, tk.SMs(wave=...); or launch them under names of their own, "
            ".named(...)",
            together[0].site,
        )
    if len(together) > 1 and any(r.resource.order.columns for r in together):
        raise ScheduleError(
            f"the members of {together[0].launched} take turns, rank by rank, so none of them has columns first; "
            "launch them under names of their own, .named(...)",
            together[0].site,
        )
    found = [next((count for _, count in r.walk.axes), sympy.S.One) for r in together]
    if len(set(found)) > 1:
        raise ScheduleError(
            f"the members of {together[0].launched} take turns, rank by rank, so they have one at=", together[0].site
        )
    return found[0]


def _waves(together: Sequence[Role]) -> Expr:
    """`turns` for roles that have a wave."""
    for role in together:
        if role.walk.table is None:
            raise ScheduleError(
                f"{role.name} has wave={role.wave}, and goes over no rows of a route: roles over tk.tiles(route, ...) "
                "or tk.tiles(route.experts, ...) take turns, expert by expert; leave wave= out",
                role.site,
            )
        begun = floor_div(NUMBER, sympy.prod(symbol(name) for name, _ in role.walk.sizes))
        by_expert = role.walk.coordinates[0] == (PIECE.name, role.walk.table.find(RANK, begun))
        if role.resource.order.by_rank or not by_expert:
            raise ScheduleError(
                f"{role.name} has wave={role.wave}, and its order {role.resource.order} does not go expert by expert: "
                "leave one of them out",
                role.site,
            )
    found = {r.name: (r.wave, dict(r.walk.axes)[r.walk.expert]) for r in together}
    if len(set(found.values())) > 1:
        said = ", ".join(f"{name}: {wave} of {experts}" for name, (wave, experts) in found.items())
        raise ScheduleError(f"roles that take turns have one wave, of experts of one route: {said}", together[0].site)
    ((wave, experts),) = set(found.values())
    return ceil_div(experts, wave) + len(together) - 1


def first_tile(together: Sequence[Role], k: int, turn: Expr) -> Expr:
    """The number of the first tile in a turn of the k-th of roles that take turns, in terms of sizes. With the number
    of turns as `turn`, it is how many tiles the role has."""
    role, walk = together[k], together[k].walk
    sizes = {symbol(name): value for name, value in walk.sizes}
    if role.wave and walk.table is not None:
        experts = dict(walk.axes)[walk.expert]
        wave = larger(turn - k, 0) if k else turn
        piece = smaller(wave * role.wave, experts) * (walk.table.steps / experts)
        across = sympy.prod(symbol(name) for name, _ in walk.sizes)
        return sympy.sympify(walk.table.begin(RANK, piece) * across).xreplace(sizes)
    return turn * sympy.sympify(walk.count / turns([role])).xreplace(sizes)


@dataclass(frozen=True)
class Allotment:
    """Which workers of the persistent kernel (or streams of the copy engine) run a role: `workers` of them, from
    `first`; `tiles` on each rank."""

    first: int
    workers: int
    tiles: int


def allot(program: TileProgram, sizes: Sizes, sms: int) -> dict[str, Allotment]:
    """The workers of every role, on a device of `sms` SMs. Roles with a count get theirs in program order, and the
    others share what is left. There are never more workers than tiles for them. Behind the workers come the streams of
    the copy engine, one for each peer, which all roles on it share. Raises ScheduleError if the device has too few SMs,
    TileSizeError for more tiles than kernels count."""
    first, made = 0, dict[str, Allotment]()
    if sms < 1:
        raise ScheduleError(f"a device of {sms} SMs: sms is at least 1", program.schedule_site)
    tiles = {r.name: tile_count(r, sizes) for r in program.roles}
    for role in program.roles:
        if tiles[role.name] > MAX_COUNT:
            raise TileSizeError(
                f"{role.name} has {tiles[role.name]} tiles on a rank: kernels count them in 32 bits, {MAX_COUNT} "
                "(2**30) is the most; use larger tiles",
                role.site,
            )
    sharing, fewer = [], []
    for roles in members(program.in_kernel):
        resource = roles[0].resource
        if resource.count is None:
            sharing += roles
        else:
            workers = max(1, min(resource.count, sum(tiles[r.name] for r in roles)))
            made |= {r.name: Allotment(first, workers, tiles[r.name]) for r in roles}
            first += workers
            if workers < resource.count:
                fewer.append(f"{roles[0].launched}: {workers} of its {resource.count}, one for each tile")
    if first + bool(sharing) > sms:
        raise ScheduleError(
            f"{program.name} asks for {counted(first, 'SM')} by count" + (f" ({'; '.join(fewer)})" if fewer else "")
            + (" and at least one for the others" if sharing else "") + f"; the device has {sms}",
            program.schedule_site,
        )
    for role in sharing:
        most = max(sum(tiles[r.name] for r in roles) for roles in members(sharing))
        workers = max(1, min(sms - first, most))
        made[role.name] = Allotment(first, workers, tiles[role.name])
    behind = max((a.first + a.workers for a in made.values()), default=1)
    made |= {r.name: Allotment(behind, sizes.world, tiles[r.name]) for r in program.on_engine}
    return {r.name: made[r.name] for r in program.roles}


def kernel_workers(program: TileProgram, allotment: Mapping[str, Allotment]) -> int:
    """Workers of the persistent kernel on each rank."""
    counts = (allotment[r.name] for r in program.in_kernel)
    return max((a.first + a.workers for a in counts), default=1)


def tile_count(role: Role, sizes: Sizes) -> int:
    """How many numbers the workers of one rank walk, including those that are passed over because a part is shorter
    than the longest. For a route, the upper bound."""
    values = dict(sizes.values)
    for name, value in role.walk.sizes:
        values[name] = int(evaluate(value, values))
    return int(evaluate(role.walk.most, values))


@dataclass(frozen=True, eq=False)
class RoleOrder:
    """The place of a role among all. `launch`: its number, the same for roles that take turns. `first`: its first tile
    in each turn. `others`: how many tiles of the other roles come before that. Both have the shape (world, turns), and
    are None for a role that takes no turns."""

    launch: int
    first: np.ndarray | None = None
    others: np.ndarray | None = None

    def turn(self, rank: Any, tile: Any) -> Any:
        """The turn of a rank's tile, or of arrays of them."""
        if self.first is None:
            return tile * 0
        ahead = int(self.first.max(initial=0)) + 1  # all tiles of one rank come before the next rank
        ranks, turns = self.first.shape
        every = (self.first + ahead * np.arange(ranks)[:, None]).reshape(-1)
        return np.searchsorted(every, np.minimum(tile, ahead - 1) + ahead * rank, side="right") - 1 - turns * rank

    def worker(self, rank: Any, tile: Any, given: Allotment) -> Any:
        """The worker of a rank's tile, or of arrays of them."""
        number = tile if self.others is None else tile + self.others[rank, self.turn(rank, tile)]
        return given.first + number % given.workers


def role_orders(program: TileProgram, sizes: Sizes) -> dict[str, RoleOrder]:
    """The places of all roles in the order of all tiles, by name."""
    made = {}
    for launch, together in enumerate(members(program.roles)):
        if len(together) == 1:
            made[together[0].name] = RoleOrder(launch)
            continue
        taken = np.arange(int(evaluate(turns(together), sizes.values)) + 1)
        at = {RANK.name: np.arange(sizes.world)[:, None], TURN.name: taken[None, :]}
        shape = sizes.world, len(taken)
        each = (evaluate(first_tile(together, k, TURN), sizes.values | at) for k in range(len(together)))
        firsts = [np.broadcast_to(first, shape) for first in each]
        for k, role in enumerate(together):
            before = [f[:, 1:] for f in firsts[:k]] + [f[:, :-1] for f in firsts[k + 1 :]]
            made[role.name] = RoleOrder(launch, firsts[k][:, :-1], np.sum(before, axis=0))
    return made
