"""Sizes of a run: the world, the dimensions, and the parts of dimensions that are spread over the ranks."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, SupportsIndex

import numpy as np

from tilelink.errors import DimensionError, RankError, ScheduleError, Site, TileSizeError, WorldError, counted, similar
from tilelink.frontend.arithmetic import evaluate
from tilelink.frontend.expressions import PER_NODE, WORLD, of_dim, parts_of
from tilelink.frontend.integers import MAX_COUNT, check_integers
from tilelink.frontend.ir import RANKS_DIM, For, Role, Tensor, TileProgram, every, walk
from tilelink.frontend.kept import hashed_once, kept
from tilelink.frontend.routes import Integers, Routing
from tilelink.frontend.running import tables, with_tables
from tilelink.frontend.schedule import LEAST_STEP_OF_8_BITS, smallest_tile
from tilelink.frontend.tables import Table
from tilelink.frontend.values import ITEM_SIZE
from tilelink.language import RouteWord

MAX_WORLD = 1024
OPTIONS = ("schedule", "world", "dtypes", "per_node")
"""What methods of programs take by name beside sizes."""


@hashed_once
@dataclass(frozen=True)
class Sizes:
    """The world and the sizes of a run. `dims`: the whole size of each dimension. `parts`: lengths of the parts of
    dimensions that are cut over the ranks, for rows of a route the room for them. `per_node`: ranks of a node.
    `routings`: how many rows of each route go where, if known (in an analysis, not in a launch). `tables`: of the
    program. `moved`: for integers that say which rows are moved, 0 or 1 each, if given (by tensor)."""

    world: int
    dims: tuple[tuple[str, int], ...]
    parts: tuple[tuple[str, tuple[int, ...]], ...]
    per_node: int
    routings: tuple[tuple[RouteWord, Routing], ...] = ()
    tables: tuple[Table, ...] = ()
    moved: tuple[tuple[str, Integers], ...] = ()

    @classmethod
    def of(
        cls,
        program: TileProgram,
        world: int,
        sizes: Mapping[str, int | Sequence[int]],
        per_node: int | None = None,
        *,
        counted: bool = True,
    ) -> Sizes:
        """The sizes of a run. `sizes`: by dimension a number, or the lengths of the parts if it is cut. A number is cut
        into parts of ceil(size / world), the last ones shorter or empty. For a route, `Routing.of` takes the size of
        its rows, rows that are sent need no size, and there is room for exactly these rows. If rows are not `counted`,
        their sizes are the room for them. Integers that say which rows are moved may be given by tensor, too: for the
        whole tensor, or for all ranks if each rank has its own. `per_node`: by default, all ranks are on one node.
        Raises WorldError, DimensionError, TileSizeError, ScheduleError, IntegerError."""
        site = Site.of_user()
        check_world(world)
        dims: dict[str, int] = {}
        parts: dict[str, tuple[int, ...]] = {}
        routed = tuple((route, _routing(route, sizes, world, site)) for route in program.routes if counted)
        for route, routing in routed:
            parts |= routing.parts(route)
        for d in program.dims:
            if d not in parts and d not in sizes:
                known = ", ".join(program.dims)
                other = "".join(f", and {n} is none{similar(n, [d])}" for n in sizes if n not in program.dims)
                raise DimensionError(f"{program.name} has the dimensions {known}; {d} is missing{other}", site)
            lengths = parts[d] if d in parts else _lengths(d, sizes[d], d in program.cut, world, site)
            if d in program.cut:
                parts[d] = lengths
            dims[d] = sum(lengths)
            if dims[d] > MAX_COUNT:
                why = f"kernels count elements along a dimension in 32 bits, {MAX_COUNT} (2**30) is the most"
                raise DimensionError(f"{d} is {dims[d]}: {why}", site)
        integers = check_names(program, sizes, site)
        dims |= {route.everywhere: world * dims[route.per_rank] for route in program.routes}
        nodes = check_nodes(world, per_node)
        given = sorted(integers & sizes.keys())
        moved = tuple((n, _moved(program.tensor(n), sizes[n], world, dims, site)) for n in given)
        made = cls(world, tuple(dims.items()), tuple(parts.items()), nodes, routed, tables(program), moved)
        try:
            made.check(program)
        except (ScheduleError, TileSizeError) as e:
            raise e.because_of("the schedule", program.schedule_site) from None
        check_integers(program, made)
        return made

    def check(self, program: TileProgram) -> None:
        """Raises TileSizeError for a tile larger than the tensor (except along routed rows, whose number is data) or a
        `whole` block that is too small, and ScheduleError for an order that is no permutation."""
        sizes = dict(self.dims)
        for role in program.roles:
            ranks = (count for name, count in role.walk.axes if name != role.walk.expert)
            ways = next((int(evaluate(count, self.values)) for count in ranks), self.world)
            role.resource.order.check(ways, role.site)
            for dim, extent in sorted(extents(role)):
                most = max(smallest_tile(sizes[dim]), least_step(program, role) if dim in stepped(role) else 1)
                if dim not in program.routed and extent > most:
                    raise TileSizeError(
                        f"{role.name}: a tile of {extent} along {dim} is larger than the tensor, of {sizes[dim]}; use "
                        f"at most {most} ({program.name}.fit(schedule, ...) does that; a schedule "
                        f"taken by its name is fitted, by= of tk.steps is not)",
                        role.site,
                    )
            for dim, block in dict(role.resource.whole).items():
                if sizes[dim] > block:
                    raise TileSizeError(
                        f"{role.name}: a block of {block} over the whole of {dim} does not hold its {sizes[dim]} "
                        f"elements; say whole={{{dim!r}: {smallest_tile(sizes[dim])}}}",
                        role.site,
                    )

    @cached_property
    def values(self) -> dict[str, Any]:
        """Values of sizes and tables by key, for `arithmetic.evaluate`."""
        values: dict[str, Any] = {WORLD.name: self.world, PER_NODE.name: self.per_node, **dict(self.dims)}
        for d, lengths in self.parts:
            values[of_dim(d, "part").name] = max(lengths)
            values[parts_of(d)] = np.array([0, *accumulate(lengths)], np.int64)
        return with_tables(self.tables, self.routings, values) if self.routings else values

    def counted(self, routes: Sequence[RouteWord], routings: Sequence[Routing]) -> Sizes:
        """These sizes with how many rows of each route go where: none at all if a rank lacks room for its rows."""
        rooms, both = dict(self.parts), list(zip(routes, routings, strict=True))
        if any(routing.without_room(r.counts, {d: rooms[d] for d in r.sides}) for r, routing in both):
            routings = [Routing.even(0, self.world, dict(self.dims)[r.per_rank]) for r in routes]
        return replace(self, routings=tuple(zip(routes, routings, strict=True)))

    @property
    def counts(self) -> dict[str, np.ndarray]:
        """The counts of routes, where they are known, by parameter."""
        return {route.counts: routing.array for route, routing in self.routings}

    @property
    def said(self) -> dict[str, Any]:
        """The sizes that a call must be told, by dimension: lengths of parts, and the room for rows of a route."""
        return dict(self.parts)

    @cached_property
    def routed(self) -> frozenset[str]:
        """The dimensions of rows that are routed."""
        return frozenset(d for d, _ in self.parts) & {str(table.name) for table in self.tables}

    def lengths(self, dim: str) -> tuple[int, ...]:
        """The lengths of a dimension's parts by rank, or one length if all ranks have the whole."""
        return dict(self.parts).get(dim, (dict(self.dims)[dim],))

    def equal(self, dim: str) -> bool:
        """Whether all parts of a dimension that is cut have one length."""
        return len(set(dict(self.parts)[dim])) == 1

    def exact(self, dim: str, extent: int) -> bool:
        """Whether blocks of `extent` fill the dimension, or each of its parts, without a rest. Never true for rows of a
        route, whose pieces have any length, and for an empty dimension: a block over the whole of it exists."""
        return dim not in self.routed and dict(self.dims)[dim] > 0 and all(n % extent == 0 for n in self.lengths(dim))


def check_names(program: TileProgram, sizes: Mapping[str, Any], site: Site) -> set[str]:
    """Returns the names of tensors whose integers may be given among sizes, because they say which rows are moved.
    Raises DimensionError for a name that is neither such a tensor nor a dimension."""
    integers = {v.tensor for role in program.roles for s in walk(role.body) for v in s.wheres} - {*program.dims}
    for d in (d for d in sizes if d not in integers and d not in program.dims):
        known = f"{', '.join(program.dims)}{similar(d, [*program.dims, *OPTIONS])}"
        raise DimensionError(f"{program.name} has no dimension {d}; it has {known}", site)
    return integers


def _lengths(dim: str, given: Any, cut: bool, world: int, site: Site) -> tuple[int, ...]:
    """The lengths of the parts of a dimension that is cut, or the one length of another. Raises DimensionError."""
    lengths = tuple(given) if isinstance(given, Sequence) else (given,)
    if any(not isinstance(n, SupportsIndex) or isinstance(n, bool) or operator.index(n) < 0 for n in lengths):
        raise DimensionError(f"{dim} is {given!r}: sizes are integers and not negative", site)
    numbers = tuple(map(operator.index, lengths))
    if not isinstance(given, Sequence):
        return even_parts(numbers[0], world) if cut else numbers
    if not cut:
        raise DimensionError(f"{dim} is not spread over the ranks: one size, not {lengths}", site)
    if len(given) != world:
        raise DimensionError(f"{dim}: {counted(len(given), 'part')} {lengths} for {counted(world, 'rank')}", site)
    return numbers


def spread(program: TileProgram) -> set[str]:
    """The dimensions along which the parts of ranks may have different lengths."""
    of_tensors = {t.dims[t.sharded] for t in (*program.inputs, *program.outputs) if t.sharded is not None}
    return of_tensors.union(*(route.sides for route in program.routes))


def check_parts(program: TileProgram, sizes: Mapping[str, Any]) -> None:
    """Raises DimensionError for parts of a dimension that only buffers spread over the ranks: no call can give them."""
    for d, given in sizes.items():
        if isinstance(given, Sequence) and d in program.cut and d not in spread(program):
            why = f"only buffers of {program.name} are cut along {d}, evenly: give one size, not {tuple(given)}"
            raise DimensionError(f"{why}; an input or output that is cut along it would take parts", Site.of_user())


def _moved(tensor: Tensor, given: Any, world: int, dims: Mapping[str, int], site: Site) -> Integers:
    """1 for each row that is moved, else 0: the given integers are -1 for rows that stay. Raises DimensionError."""
    shape = tuple(world if d == RANKS_DIM else dims[d] for d in tensor.dims)
    shape = shape if tensor.sharded is not None else (world, *shape)
    found = np.asarray(given)
    if found.shape != shape or found.dtype.kind not in "iu":
        whose = "of the whole tensor" if tensor.sharded is not None else "of all ranks, one after the other"
        raise DimensionError(
            f"{tensor.name} is {found.dtype} {found.shape}: integers {shape}, {whose}; -1 for a row that stays", site
        )
    return Integers.of_array(found >= 0)


def _routing(route: RouteWord, sizes: Mapping[str, Any], world: int, site: Site) -> Routing:
    """The routing that `sizes` gives for a route. Raises DimensionError."""
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
    """Raises WorldError for a wrong number of ranks."""
    if not isinstance(world, int) or isinstance(world, bool) or not 1 <= world <= MAX_WORLD:
        raise WorldError(f"a world of {world!r}: it has from 1 to {MAX_WORLD} ranks", Site.of_user())


def check_nodes(world: int, per_node: int | None) -> int:
    """The number of ranks of a node, all ranks by default. Raises WorldError."""
    if per_node is None:
        return world
    if not isinstance(per_node, int) or isinstance(per_node, bool) or per_node < 1 or world % per_node:
        raise WorldError(
            f"per_node={per_node!r}: a world of {counted(world, 'rank')} has a whole number of nodes, of {per_node!r} "
            f"ranks each; say one of {', '.join(str(n) for n in range(1, world + 1) if not world % n)}",
            Site.of_user(),
        )
    return per_node


def check_rank(rank: int, world: int) -> None:
    """Raises RankError for a rank outside the world."""
    if not 0 <= rank < world:
        raise RankError(f"rank {rank} in a world of {world}: ranks go from 0 to {world - 1}", Site.of_user())


@kept()
def extents(role: Role) -> frozenset[tuple[str, int]]:
    """(dimension, block size) of all blocks in the ranges of a role."""
    found = {(r.dim, r.extent) for r in role.walk.ranges if r.extent is not None}
    for view in role.touched:
        found |= {(r.dim, r.extent) for r in view.ranges if r.extent is not None and r.by is None}
    return frozenset(found)


@kept()
def stepped(role: Role) -> frozenset[str]:
    """Dimensions along which the loops of a role take steps."""
    loops = {loop.name for loop in every(For, role.body)}
    ranges = (r for v in role.touched for r in v.ranges)
    return frozenset(r.dim for r in ranges if str(r.start) in loops)


@kept()
def least_step(program: TileProgram, role: Role) -> int:
    """The shortest step that the loops of a role can take, as far as its products say."""
    codes = [code for s in walk(role.body) for code in s.codes]
    read = {program.tensor(load.view.tensor).dtype for code in codes for load in code.loads}
    multiplies = any(code.dots for code in codes)
    return LEAST_STEP_OF_8_BITS if multiplies and any(ITEM_SIZE[dtype] == 1 for dtype in read) else 1
