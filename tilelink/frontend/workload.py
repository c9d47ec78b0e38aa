"""Which worker does which tile of a role, and in which order: what lowered kernels do, in numbers.

`backend/lower.py` writes the same as loops; the trace of an execution holds the two against each other.

Roles that are one for each member of lists take turns: their workers go through the values of the outermost rank axis,
and for each of them through the tiles of every member. So the rows that are here first are used by all members, and
where the tiles of one member end, those of the next go on with the next worker. Tile i of a member is the
(i % tiles)-th of turn i // tiles; it is number `turn * all + before + i % tiles` of all, and worker `number % workers`
does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from tilelink.errors import ScheduleError, TileSizeError
from tilelink.frontend.arithmetic import evaluate
from tilelink.frontend.expressions import Expr, symbol
from tilelink.frontend.ir import Role, TileProgram
from tilelink.frontend.schedule import SMs
from tilelink.frontend.sizes import MAX_COUNT, Sizes


def members(roles: Sequence[Role]) -> list[list[Role]]:
    """The roles in program order, those together that are one for each member of lists."""
    together: dict[str, list[Role]] = {}
    for role in roles:
        together.setdefault(role.launched, []).append(role)
    return list(together.values())


def turns(together: Sequence[Role]) -> Expr:
    """How many turns there are. Raises ScheduleError where that is not the same for all members, or is data."""
    if len(together) > 1 and any(r.walk.table for r in together):
        raise ScheduleError(
            f"the members of {together[0].launched} go over the rows of a route, and how many tiles they have is data: "
            "they can't take turns; launch them under names of their own, .named(...)",
            together[0].site,
        )
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


@dataclass(frozen=True)
class Allotment:
    """Which workers of the persistent kernel (or streams of the copy engine) run a role: `workers` of them, from
    `first`; `tiles` on each rank."""

    first: int
    workers: int
    tiles: int


def allot(program: TileProgram, sizes: Sizes, sms: int) -> dict[str, Allotment]:
    """Workers of every role, on a device of `sms` SMs. Roles with a count get theirs in program order; the others
    share what is left. No more workers than there are tiles for them. Behind them come the streams of the copy engine,
    one a peer, which the roles on it share. Raises ScheduleError where the SMs don't do, TileSizeError for
    more tiles than kernels count."""
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
    sharing = []
    for roles in members(program.in_kernel):
        resource = roles[0].resource
        assert isinstance(resource, SMs)
        if resource.count is None:
            sharing += roles
        else:
            workers = max(1, min(resource.count, sum(tiles[r.name] for r in roles)))
            made |= {r.name: Allotment(first, workers, tiles[r.name]) for r in roles}
            first += workers
    if first + bool(sharing) > sms:
        raise ScheduleError(
            f"{program.name} asks for {first} SMs by count" + (" and at least one for the others" if sharing else "")
            + f"; the device has {sms}",
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
    """Numbers that the workers of one rank walk (those of parts that are shorter than the longest are passed over); of
    a route, at most."""
    values = dict(sizes.values)
    for name, value in role.walk.sizes:
        values[name] = int(evaluate(value, values))
    return int(evaluate(role.walk.most, values))


@dataclass(frozen=True)
class Place:
    """The place of a role among all. `launch`: its number, the same for roles that take turns; `tiles` that it has in a
    turn (all of its own, where it takes none), after `before` of the others, of `all` in the turn."""

    launch: int
    tiles: int
    before: int
    all: int

    def turn(self, tile: Any) -> Any:
        """The turn of a tile, or of an array of them."""
        return tile // self.tiles

    def worker(self, tile: Any, given: Allotment) -> Any:
        """The worker of a tile, or of an array of them."""
        number = self.turn(tile) * self.all + self.before + tile % self.tiles
        return given.first + number % given.workers


def places(program: TileProgram, sizes: Sizes) -> dict[str, Place]:
    """Of all roles, by name."""
    made = {}
    for launch, together in enumerate(members(program.roles)):
        alone = len(together) == 1
        tiles = [tile_count(r, sizes) if alone else int(evaluate(tiles_in_turn(r), sizes.values)) for r in together]
        for k, role in enumerate(together):
            made[role.name] = Place(launch, max(1, tiles[k]), sum(tiles[:k]), sum(tiles))
    return made
