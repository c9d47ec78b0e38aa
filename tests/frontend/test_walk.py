"""Walks: whatever sizes, parts, tiles, orders and executors, every element is walked once, in the order asked for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilelink as tk
from tests.parameters import random_tries
from tilelink.errors import Site
from tilelink.frontend.arithmetic import evaluate
from tilelink.frontend.expressions import PER_NODE, RANK, WORLD, of_dim, parts_of, shown
from tilelink.frontend.ir import Walk
from tilelink.frontend.sizes import even_parts
from tilelink.frontend.walk import NUMBER, longest_part, make_walk
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.language import Space

WORLDS = [1, 2, 3, 4, 8]


@tk.order
def farthest_first(step: Any, rank: Any, world: Any) -> Any:
    """A user's own: the ranks before this one, the farthest first, and this one last."""
    return (rank + step + 1) % world


backwards = tk.order(lambda step, rank, world: (rank * 3 + world - 1 - step) % world)
ORDERS = [tk.own_rank_first, tk.next_rank_first, tk.ring, farthest_first, backwards]


@dataclass(frozen=True)
class Tile:
    """A tile that a rank executes: its number there, the values of its rank axes, its bounds along each dimension."""

    rank: int
    number: int
    axes: dict[str, int]
    bounds: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Walked:
    """A role's space at given sizes. `parts`: lengths of the parts of the first dimension, None where it is not cut."""

    sizes: tuple[int, ...]
    parts: tuple[int, ...] | None
    world: int
    tile: tuple[int | None, ...]
    axes: tuple[str, ...]
    at: str | None
    order: tk.Order

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(f"D{k}" for k in range(len(self.sizes)))

    @property
    def starts(self) -> list[int]:
        """Where the parts of the first dimension begin, and its end."""
        return [0, *accumulate(self.parts)] if self.parts is not None else [0, self.sizes[0]]

    def made(self) -> tuple[Walk, dict[str, Any]]:
        sharded = self.dims[0] if self.parts is not None and self.at is not None else None
        space = Space(self.dims, sharded, dict.fromkeys(self.axes, tk.ranks))
        cut = frozenset(self.dims[:1]) if self.parts is not None else frozenset[str]()
        return make_walk("role", space, tk.SMs(tile=self.tile, order=self.order, at=self.at), cut, Site("here", 1))

    def tiles(self) -> list[Tile]:
        """All tiles of all ranks, those of a rank in their order."""
        walk, axes = self.made()
        values: dict[str, Any] = {WORLD.name: self.world, **dict(zip(self.dims, self.sizes, strict=True))}
        if self.parts is not None:
            values |= {longest_part("D0").name: max(self.parts), parts_of("D0"): np.array(self.starts)}
        values |= {name: int(evaluate(e, values)) for name, e in walk.sizes}
        made = []
        for rank in range(self.world):
            here = {**values, RANK.name: rank}
            for number in range(int(evaluate(walk.count, here))):
                known = {**here, NUMBER.name: number}
                for name, e in walk.coordinates:
                    known[name] = int(evaluate(e, known))
                if evaluate(walk.exists, known):
                    bounds = tuple((int(evaluate(r.start, known)), int(evaluate(r.stop, known))) for r in walk.ranges)
                    made.append(Tile(rank, number, {a: int(evaluate(e, known)) for a, e in axes.items()}, bounds))
        return made


@st.composite
def spaces(draw: st.DrawFn, orders: list[tk.Order] = ORDERS, dims: int = 3) -> Walked:
    """Spaces of up to three dimensions and two rank axes; parts are uneven, and some are empty."""
    world = draw(st.sampled_from(WORLDS))
    sizes = draw(st.lists(st.integers(0, 20), min_size=1, max_size=dims))
    parts = None
    if draw(st.booleans()):
        parts = tuple(draw(st.lists(st.integers(0, 12), min_size=world, max_size=world)))
        sizes[0] = sum(parts)
    tile = draw(st.lists(st.sampled_from([2, 4, 8, 16, None]), min_size=len(sizes), max_size=len(sizes)))
    axes = draw(st.sampled_from([(), ("reader",), ("reader", "source")] if world < 8 else [(), ("reader",)]))
    everywhere = [None] if not axes else []
    at = draw(st.sampled_from([*axes, *(["home"] if parts is not None else []), *everywhere]))
    order = draw(st.sampled_from(orders))
    if draw(st.booleans()):
        order = tk.grouped(draw(st.integers(2, 4)), order)
    return Walked(tuple(sizes), parts, world, tuple(tile), axes, at, order)


@random_tries(20, 200, spaces())
def test_every_element_once_for_every_value_of_the_axes(space: Walked) -> None:
    """A tile of a space with axes exists for each of their values; without an executor, on every rank."""
    names = [*space.axes, *(["rank"] if space.at is None else [])]
    counts = {v: np.zeros(space.sizes, int) for v in product(range(space.world), repeat=len(names))}
    for t in space.tiles():
        region = tuple(slice(a, b) for a, b in t.bounds)
        counts[tuple({**t.axes, "rank": t.rank}[n] for n in names)][region] += 1
    for values, count in counts.items():
        assert (count == 1).all(), dict(zip(names, values, strict=True))


@random_tries(40, 100, spaces())
def test_tiles_lie_in_the_part_of_their_home(space: Walked) -> None:
    for t in space.tiles():
        begin, end = t.bounds[0]
        if space.parts is not None:
            home = t.axes["home"]
            assert space.starts[home] <= begin < end <= space.starts[home + 1]
        for (a, b), size in zip(t.bounds, space.tile, strict=True):
            assert size is None or b - a <= size


@random_tries(40, 100, spaces())
def test_executors(space: Walked) -> None:
    """Who executes a tile: its home, or the rank that the axis names."""
    for t in space.tiles():
        assert space.at is None or t.axes[space.at] == t.rank


@random_tries(60, 200, spaces())
def test_ranks_are_walked_in_the_order(space: Walked) -> None:
    """The first axis that a rank walks itself comes in the schedule's order (parts without elements left out)."""
    free = [a for a in (*space.axes, *(["home"] if space.parts is not None else [])) if a != space.at]
    if not free:
        return
    tiles = space.tiles()
    for rank in range(space.world):
        seen = dict.fromkeys(t.axes[free[0]] for t in tiles if t.rank == rank)
        order = [space.order.parts(step, rank, space.world) for step in range(space.world)]
        assert list(seen) == [p for p in order if p in seen]
        empty = 0 in space.sizes[1:] or (space.parts is not None and free[0] == "home" and 0 in space.parts)
        if not empty and len(tiles):
            assert len(seen) == space.world or (
                space.at == "home" and space.parts is not None and not space.parts[rank]
            )


@pytest.mark.parametrize("group", [1, 2, 3, 4])
@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, 40), cols=st.integers(1, 40), deep=st.integers(0, 20))
def test_order_inside_a_part(group: int, rows: int, cols: int, deep: int) -> None:
    """Row by row, or in groups of rows, column by column in each; a dimension before these two comes outside."""
    sizes, tile = ((deep, rows, cols), (8, 8, 4)) if deep else ((rows, cols), (8, 4))
    space = Walked(sizes, None, 1, tile, (), None, tk.grouped(group))
    first, second = range(0, rows, 8), range(0, cols, 4)
    inside = [
        (row, col)
        for begin in range(0, len(first), group)
        for col, row in product(second, first[begin : begin + group])
        if group > 1
    ] or list(product(first, second))
    outer = range(0, deep, 8) if deep else [None]
    want = [(*([o] if deep else []), row, col) for o in outer for row, col in inside]
    assert [tuple(a for a, _ in t.bounds) for t in space.tiles()] == want


@pytest.mark.parametrize("at", [None, "home", "D1_home"])
@pytest.mark.parametrize("sharded", [None, "D0", "D1"])
@pytest.mark.parametrize("parts", [((9,), (4,)), ((5, 0, 20), (0, 17, 3)), ((3, 3), (8, 0))], ids=str)
def test_space_that_is_cut_twice(parts: Any, sharded: str | None, at: str | None) -> None:
    """Every tile lies in one part along each of both dimensions; the rank of one of them executes it, or all do."""
    if at == "D1_home" and sharded == "D1":
        at = "D0_home"
    world = len(parts[0])
    space = Space(("D0", "D1"), sharded, {})
    role, axes = make_walk("role", space, tk.SMs(tile=(4, 8), at=at), frozenset(["D0", "D1"]), Site("here", 1))
    starts = [np.array([0, *accumulate(p)]) for p in parts]
    values: dict[str, Any] = {WORLD.name: world}
    for k, p in enumerate(parts):
        values |= {f"D{k}": sum(p), longest_part(f"D{k}").name: max(p), parts_of(f"D{k}"): starts[k]}
    values |= {name: int(evaluate(e, values)) for name, e in role.sizes}
    counts = np.zeros((world, sum(parts[0]), sum(parts[1])), int)
    homes = dict(role.homes)
    executor = at or ("home" if sharded else None)
    for rank in range(world):
        for number in range(int(evaluate(role.count, {**values, RANK.name: rank}))):
            known = {**values, RANK.name: rank, NUMBER.name: number}
            for name, e in role.coordinates:
                known[name] = int(evaluate(e, known))
            if not evaluate(role.exists, known):
                continue
            bounds = [(int(evaluate(r.start, known)), int(evaluate(r.stop, known))) for r in role.ranges]
            for k, (a, b) in enumerate(bounds):
                home = int(evaluate(homes[f"D{k}"], known))
                assert starts[k][home] <= a < b <= starts[k][home + 1]
            counts[rank][tuple(slice(a, b) for a, b in bounds)] += 1
            assert executor is None or evaluate(axes[executor], known) == rank
    assert ((counts if executor is None else counts.sum(0)) == 1).all()


@pytest.mark.parametrize(("world", "per_node"), [(1, 1), (4, 2), (8, 2), (6, 3), (3, 1)])
@pytest.mark.parametrize("at", ["home", "node", "place"])
@pytest.mark.parametrize("order", [tk.own_rank_first, tk.next_rank_first, tk.ring], ids=str)
def test_nodes_and_places(world: int, per_node: int, at: str, order: tk.Order) -> None:
    """A tile for each node and each place; executed by its home, or by all ranks of the node, or of the place."""
    space = Space(("D0",), "D0", {"node": tk.nodes, "place": tk.locals})
    role, axes = make_walk("role", space, tk.SMs(tile=(4,), order=order, at=at), frozenset(["D0"]), Site("here", 1))
    values: dict[str, Any] = {WORLD.name: world, PER_NODE.name: per_node, "D0": 3 * world}
    values |= {longest_part("D0").name: 3, of_dim("D0", "tiles").name: 1, parts_of("D0"): np.arange(world + 1) * 3}
    done = []
    for rank in range(world):
        for number in range(int(evaluate(role.count, {**values, RANK.name: rank}))):
            known = {**values, RANK.name: rank, NUMBER.name: number}
            for name, e in role.coordinates:
                known[name] = int(evaluate(e, known))
            home, node, place = (int(evaluate(axes[a], known)) for a in ("home", "node", "place"))
            assert {"home": home, "node": node, "place": place}[at] == {
                "home": rank, "node": rank // per_node, "place": rank % per_node,
            }[at]  # fmt: skip
            done.append((rank if at != "home" else 0, home, node, place))
    each = {"home": 1, "node": per_node, "place": world // per_node}[at]
    assert len(done) == len(set(done)) == each * world * world
    assert {d[1:] for d in done} == set(product(range(world), range(world // per_node), range(per_node)))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 16))
def test_even_parts(size: int, world: int) -> None:
    """As torch.chunk: of ceil(size / world), then a shorter one, then empty ones."""
    parts = even_parts(size, world)
    assert len(parts) == world and sum(parts) == size
    assert all(a >= b for a, b in pairwise(parts))
    assert sum(0 < p < parts[0] for p in parts) <= 1


@pytest.mark.parametrize("order", [*ORDERS, tk.grouped(3, tk.ring)], ids=str)
@pytest.mark.parametrize("world", [*WORLDS, 64])
def test_orders_are_permutations(order: tk.Order, world: int) -> None:
    order.check(world, None)


@pytest.mark.parametrize(
    ("schedule", "first"),
    [("push", lambda rank, world: rank), ("pull", lambda rank, world: rank)],
    ids=["push", "pull"],
)
def test_library(schedule: str, first: Any) -> None:
    """Both schedules of the library begin with what is there already: a rank's own rows."""
    program = all_gather_matmul.bind(schedule)
    for role in program.roles:
        name, expression = next((n, e) for n, e in role.walk.coordinates if shown(n) in ("home", "reader"))
        for world, rank in ((4, 0), (4, 3), (8, 5)):
            values = {RANK.name: rank, WORLD.name: world, NUMBER.name: 0}
            values |= {of_dim(d, "tiles").name: n for d, n in (("M", 3), ("N", 2), ("K", 5))}
            assert evaluate(expression, values) == first(rank, world), (role.name, name)
