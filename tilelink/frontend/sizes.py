"""Sizes of a run: the world, the dimensions, the parts of those that are spread over the ranks; and who does what."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, SupportsIndex

import numpy as np

from tilelink.errors import DimensionError, RankError, ScheduleError, Site, TileSizeError, WorldError, listed
from tilelink.frontend.expressions import evaluate
from tilelink.frontend.ir import For, Role, TileProgram, walk
from tilelink.frontend.kept import hashed_once, kept
from tilelink.frontend.routes import Routing
from tilelink.frontend.schedule import SMs, smallest_tile
from tilelink.frontend.turns import members
from tilelink.language import RouteWord

MAX_WORLD = 1024
MAX_COUNT = 2**30
"""The most elements along a dimension, and tiles of a role on a rank: kernels count both in 32 bits, to the end of the
last block."""


@hashed_once
@dataclass(frozen=True)
class Sizes:
    """World and sizes. `dims`: the whole size of each dimension; `parts`: lengths of the parts of those that are cut
    over the ranks; `per_node`: ranks of a node; `routings`: how many rows of each route go where."""

    world: int
    dims: tuple[tuple[str, int], ...]
    parts: tuple[tuple[str, tuple[int, ...]], ...]
    per_node: int
    routings: tuple[tuple[RouteWord, Routing], ...] = ()

    @classmethod
    def of(
        cls,
        program: TileProgram,
        world: int,
        sizes: Mapping[str, int | Sequence[int]],
        per_node: int | None = None,
    ) -> Sizes:
        """Sizes by dimension: a number, or for a dimension that is cut the lengths of its parts. A number is cut into
        parts of ceil(size / world), the last ones shorter or empty. Of a route, the size of its rows is what
        `Routing.of` takes, and those that are sent need none. All ranks are on one node where `per_node` is not given.
        Raises WorldError, DimensionError, TileSizeError, ScheduleError."""
        site = Site.of_user()
        check_world(world)
        dims: dict[str, int] = {}
        parts: dict[str, tuple[int, ...]] = {}
        routed = routings(program, world, sizes, site)
        for route, routing in routed:
            parts |= routing.parts(route)
        for d in program.dims:
            if d in parts:
                dims[d] = sum(parts[d])
                continue
            if d not in sizes:
                known = ", ".join(program.dims)
                other = "".join(f", and {n} is none" for n in sizes if n not in program.dims)
                raise DimensionError(f"{program.name} has the dimensions {known}; {d} is missing{other}", site)
            given = sizes[d]
            lengths = tuple(given) if isinstance(given, Sequence) else (given,)
            if any(not isinstance(n, SupportsIndex) or isinstance(n, bool) or operator.index(n) < 0 for n in lengths):
                raise DimensionError(f"{d} is {given!r}: sizes are integers and not negative", site)
            if isinstance(given, Sequence):
                if d not in program.cut:
                    raise DimensionError(f"{d} is not spread over the ranks: one size, not {lengths}", site)
                if len(given) != world:
                    raise DimensionError(f"{d}: {len(given)} parts {lengths} for {world} ranks", site)
                parts[d] = tuple(map(operator.index, lengths))
                dims[d] = sum(parts[d])
            else:
                dims[d] = operator.index(given)
                if d in program.cut:
                    parts[d] = even_parts(dims[d], world)
        for d, size in dims.items():
            if size > MAX_COUNT:
                raise DimensionError(
                    f"{d} is {size}: kernels count elements along a dimension in 32 bits, {MAX_COUNT} (2**30) is the "
                    "most",
                    site,
                )
        for d in sizes:
            if d not in program.dims:
                known = f"it has {listed(program.dims, d)}"
                raise DimensionError(f"{program.name} has no dimension {d}; {known}", site)
        made = cls(world, tuple(dims.items()), tuple(parts.items()), check_nodes(world, per_node), routed)
        try:
            made.check(program)
        except (ScheduleError, TileSizeError) as e:
            raise e.because_of("the schedule", program.schedule_site) from None
        return made

    def check(self, program: TileProgram) -> None:
        """Raises TileSizeError for a tile larger than the tensor (how many rows are routed is no matter of tiles),
        ScheduleError for an order that is none."""
        sizes = dict(self.dims)
        routed = program.routed
        for role in program.roles:
            ranks = (count for name, count in role.walk.axes if name != role.walk.expert)
            ways = next((int(evaluate(count, self.values)) for count in ranks), self.world)
            role.resource.order.check(ways, role.site)
            for dim, extent in sorted(extents(role)):
                if dim not in routed and extent > smallest_tile(sizes[dim]):
                    raise TileSizeError(
                        f"{role.name}: a tile of {extent} along {dim} is larger than the tensor, of {sizes[dim]}; use "
                        f"at most {smallest_tile(sizes[dim])} ({program.name}.fit(schedule, ...) does that; a schedule "
                        f"taken by its name is fitted, by= of tk.steps is not)",
                        role.site,
                    )
            for dim, block in dict(role.resource.whole).items():
                if not 0 < sizes[dim] <= block:
                    raise TileSizeError(
                        f"{role.name}: a block of {block} over the whole of {dim} does not hold its {sizes[dim]} "
                        f"elements; say whole={{{dim!r}: {smallest_tile(sizes[dim])}}}",
                        role.site,
                    )

    @cached_property
    def values(self) -> dict[str, Any]:
        """Values of the symbols of sizes, for `expressions.evaluate`."""
        values: dict[str, Any] = {"world": self.world, "per_node": self.per_node, **dict(self.dims)}
        for d, lengths in self.parts:
            values[f"{d}_part"] = max(lengths)
            values[f"{d}_parts"] = np.array([0, *accumulate(lengths)], np.int64)
        for route, routing in self.routings:
            values |= routing.values(route)
        return values

    @property
    def routed(self) -> frozenset[str]:
        """The dimensions of rows that are routed."""
        return frozenset(d for route, _ in self.routings for d in route.sides)

    @property
    def said(self) -> dict[str, Any]:
        """What a call has to be told of them, by dimension: lengths of parts, counts of routed rows."""
        lengths = {d: n for d, n in self.parts if d not in self.routed}
        return lengths | {route.rows: routing for route, routing in self.routings}

    def part(self, dim: str, rank: int) -> int:
        """The length of a rank's part."""
        return dict(self.parts)[dim][rank]

    def lengths(self, dim: str) -> tuple[int, ...]:
        """The lengths of a dimension on the ranks; one, where all ranks have the whole."""
        return dict(self.parts).get(dim, (dict(self.dims)[dim],))

    def equal(self, dim: str) -> bool:
        """Whether the parts of a dimension that is cut are all of one length; never those of rows of a route, as in
        `exact`."""
        return dim not in self.routed and len(set(dict(self.parts)[dim])) == 1

    def exact(self, dim: str, extent: int) -> bool:
        """Whether blocks of `extent` fill the dimension, or each of its parts, with no rest; never rows of a route, so
        that kernels do not depend on where rows go."""
        return dim not in self.routed and all(n % extent == 0 for n in self.lengths(dim))


def routings(
    program: TileProgram, world: int, sizes: Mapping[str, Any], site: Site
) -> tuple[tuple[RouteWord, Routing], ...]:
    """The routes of a program, with what sizes as in `Sizes.of` say of them. Raises DimensionError."""
    return tuple((route, _routing(route, sizes, world, site)) for route in program.routes)


def _routing(route: RouteWord, sizes: Mapping[str, Any], world: int, site: Site) -> Routing:
    """What is given for the rows of a route. Raises DimensionError."""
    for d in (route.rows, route.per_rank):
        if d not in sizes:
            raise DimensionError(f"{route} needs the sizes of {route.rows} and {route.per_rank}; {d} is missing", site)
    routing = Routing.of(sizes[route.rows], route, world, sizes[route.per_rank], site)
    lengths = routing.parts(route)[route.sent]
    sent = sizes.get(route.sent, lengths)
    if (tuple(sent) if isinstance(sent, Sequence) else sent) not in (sum(lengths), lengths):
        raise DimensionError(
            f"{route.sent} is {sent!r}; {route.rows} says that {sum(lengths)} rows are sent, {lengths} by the ranks",
            site,
        )
    return routing


def even_parts(size: int, world: int) -> tuple[int, ...]:
    """Parts of ceil(size / world), the last ones shorter or empty, as torch.chunk and DTensor cut."""
    longest = -(-size // world)
    return tuple(max(0, min(longest, size - r * longest)) for r in range(world))


def check_world(world: int) -> None:
    """Raises WorldError."""
    if not isinstance(world, int) or isinstance(world, bool) or not 1 <= world <= MAX_WORLD:
        raise WorldError(f"a world of {world!r}: it has from 1 to {MAX_WORLD} ranks", Site.of_user())


def check_nodes(world: int, per_node: int | None) -> int:
    """The number of ranks of a node, all ranks by default. Raises WorldError."""
    if per_node is None:
        return world
    if not isinstance(per_node, int) or isinstance(per_node, bool) or per_node < 1 or world % per_node:
        raise WorldError(
            f"per_node={per_node!r}: a world of {world} ranks has a whole number of nodes, of {per_node!r} ranks each; "
            f"say one of {', '.join(str(n) for n in range(1, world + 1) if not world % n)}",
            Site.of_user(),
        )
    return per_node


def check_rank(rank: int, world: int) -> None:
    """Raises RankError."""
    if not 0 <= rank < world:
        raise RankError(f"rank {rank} in a world of {world}: ranks go from 0 to {world - 1}", Site.of_user())


@kept()
def extents(role: Role) -> frozenset[tuple[str, int]]:
    """(dimension, block size) of everything a role cuts."""
    found = {(r.dim, r.extent) for r in role.walk.ranges if r.extent is not None}
    for s in walk(role.body):
        for view in s.touched:
            found |= {(r.dim, r.extent) for r in view.ranges if r.extent is not None}
    return frozenset(found)


@kept()
def stepped(role: Role) -> frozenset[str]:
    """Dimensions along which the loops of a role take steps."""
    loops = {s.name for s in walk(role.body) if isinstance(s, For)}
    ranges = (r for s in walk(role.body) for v in s.touched for r in v.ranges)
    return frozenset(r.dim for r in ranges if str(r.start) in loops)


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
    """Numbers that the workers of one rank walk (those of parts that are shorter than the longest are passed over)."""
    values = dict(sizes.values)
    for name, value in role.walk.sizes:
        values[name] = int(evaluate(value, values))
    return int(evaluate(role.walk.count, values))


