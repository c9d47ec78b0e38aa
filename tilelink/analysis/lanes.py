"""All tiles of a role at once. A lane is a tile on one rank; an integer of the program is an array over lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy

from tilelink.errors import RankError, Site, TileLinkError, ViewError
from tilelink.frontend import ir
from tilelink.frontend.arithmetic import evaluate
from tilelink.frontend.cells import cells_along, cells_of
from tilelink.frontend.expressions import RANK, Expr, parts_of, shown
from tilelink.frontend.sizes import Sizes
from tilelink.frontend.walk import NUMBER, TILE
from tilelink.frontend.workload import Allotment, RoleOrder

Tell = Callable[[str], None]
"""Is called now and then with what a check or a simulation is doing."""


def silent(_: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Refusal:
    """Something that a tile must not do: the error for the first such tile, and what it is about. `claims`: it is a
    claim, of an entry of a tensor with so many buffers; 0 for everything else."""

    error: TileLinkError
    tensor: str = ""
    region: str = ""
    claims: int = 0


@dataclass(frozen=True)
class Unrolling:
    """The state that all roles of an unrolling share. `counts`: how often each cell of a tensor is notified, and
    whether it holds anything, both (world, cells). `ranks`: the ranks whose tiles are unrolled, and `sample`: how many
    tiles of a role (None: all). `refused`: refusals by error, file and line. `sites`: the number of each source
    line."""

    program: ir.TileProgram
    sizes: Sizes
    allotment: dict[str, Allotment]
    orders: dict[str, RoleOrder]
    counts: Callable[[ir.Signals], tuple[np.ndarray, np.ndarray]]
    summarise: bool = True
    ranks: Sequence[int] | None = None
    sample: int | None = None
    tell: Tell = silent
    refused: dict[tuple[type, str, int], Refusal] = field(default_factory=dict)
    sites: dict[Site, int] = field(default_factory=dict)


class PassedOver(Exception):
    """Raised by a statement that is refused for these lanes; it is then repeated without them."""

    def __init__(self, lanes: np.ndarray) -> None:
        self.lanes = lanes


class Lanes:
    """The lanes of a role: its tiles that exist. `values`: of symbols and coordinates, by name. `act`: the active
    lanes, for which a statement is unrolled now. `whole`: the loops that are one event, by variable. `loops`: the
    variables of the other loops around the statement."""

    def __init__(self, run: Unrolling, index: int) -> None:
        self.run, self.program, self.sizes, self.index = run, run.program, run.sizes, index
        self.role = run.program.roles[index]
        self.allotment, self.order = run.allotment[self.role.name], run.orders[self.role.name]
        self.dims = max(len(t.dims) for t in run.program.tensors)
        self.values: dict[str, Any] = dict(run.sizes.values)
        self.whole: dict[Expr, tuple[Expr, Expr]] = {}
        self.loops: list[str] = []
        self.lanes, self.act = 0, np.arange(0)
        if self.allotment.tiles:
            self.enter()

    def enter(self) -> None:
        """Fills `values` with the coordinates of all tiles that exist."""
        walk = self.role.walk
        for name, e in walk.sizes:
            self.values[name] = int(evaluate(e, self.values))
        tiles = dict(zip((RANK.name, NUMBER.name), self.tiles(), strict=True))
        if walk.table is not None:  # a number beyond the last tile has no other coordinates
            tiles = self._those(walk.count > NUMBER, tiles)
        for name, e in walk.coordinates:
            tiles[name] = np.broadcast_to(evaluate(e, self.values | tiles), (len(tiles[RANK.name]),))
        tiles = self._those(walk.exists, tiles)
        self.values |= tiles
        self.lanes = len(tiles[RANK.name])
        self.act = np.arange(self.lanes)

    def _those(self, exist: Any, tiles: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The coordinates of the tiles for which a condition holds."""
        here = np.broadcast_to(evaluate(exist, self.values | tiles), (len(tiles[RANK.name]),))
        return {name: v[here] for name, v in tiles.items()}

    def tiles(self) -> tuple[np.ndarray, np.ndarray]:
        """The rank and number of each tile, or of each tile in a sample."""
        count = self.allotment.tiles
        ranks = np.array(range(self.sizes.world) if self.run.ranks is None else self.run.ranks, np.int64)
        number = np.add.outer(count * ranks, np.arange(count)).reshape(-1)
        if self.run.sample is not None and self.run.sample < len(number):
            number = np.sort(np.random.default_rng(0).integers(len(number), size=self.run.sample))
        return number // count, number % count

    # ---- which lanes

    def where(self, mask: np.ndarray, action: Callable[[], None]) -> None:
        """Runs `action` for the active lanes in which `mask` holds."""
        before = self.act
        self.act = before[mask[before]]
        if len(self.act):
            action()
        self.act = before

    def first(self, mask: np.ndarray) -> int | None:
        """The first active lane for which `mask` holds; None if there is none."""
        found = self.act[mask[self.act]]
        return int(found[0]) if len(found) else None

    # ---- values of lanes

    def get(self, e: Any) -> np.ndarray:
        """The value of an integer or a condition in each lane."""
        found = evaluate(e, self.values)
        return found if np.shape(found) == (self.lanes,) else np.broadcast_to(found, (self.lanes,))

    def box(self, view: ir.View, site: Site) -> tuple[np.ndarray, np.ndarray]:
        """The region of a view: lower and upper bounds (lanes, dimensions). Refuses lanes that leave the tensor or the
        view's part. Dimensions that the tensor lacks are [0, 1)."""
        tensor, parts = self.program.tensor(view.tensor), self.sizes.values
        lo = np.zeros((self.lanes, self.dims), np.int64)
        hi = lo + 1
        for k, (dim, i) in enumerate(zip(tensor.dims, view.index, strict=True)):
            a, b = self.bounds(i)
            spans = [(np.zeros(self.lanes, np.int64), self.get(self.program.size_of(dim)))]
            if isinstance(i, ir.Range) and i.part is not None:  # a home has no more than its own part
                ranks = [view.home, i.part] if k == tensor.sharded and isinstance(view.home, Expr) else [i.part]
                begins, numbers = parts[parts_of(dim)], [self.within(view, rank, site) for rank in dict.fromkeys(ranks)]
                spans = [(begins[n], begins[n + 1]) for n in numbers]
            for begin, end in spans:
                outside = outside_of(a, b, begin, end)
                if (lane := self.first(outside)) is not None:
                    region = f"{dim}[{a[lane]}:{b[lane]}]"
                    said = f"{region} is outside {dim}[{begin[lane]}:{end[lane]}]"
                    self.refuse(ViewError, view, site, lane, said, f"{view.tensor}: {region}", outside)
            lo[:, k], hi[:, k] = a, np.maximum(a, b)
        return lo, hi

    def bounds(self, i: ir.Range | Expr) -> tuple[np.ndarray, np.ndarray]:
        loop = self.whole.get(i.start if isinstance(i, ir.Range) else i)
        if loop is not None:
            return self.get(loop[0]), self.get(loop[1])
        if isinstance(i, ir.Range):
            return self.get(i.start), self.get(i.stop)
        at = self.get(i)
        return at, at + 1

    def homes(self, view: ir.View, site: Site) -> Iterator[np.ndarray]:
        """The ranks whose memory a view names: one array over lanes, or one for each rank if it names all ranks."""
        if view.home == ir.ALL_RANKS:
            yield from (np.full(self.lanes, r) for r in range(self.sizes.world))
            return
        yield self.within(view, view.home, site)

    def within(self, view: ir.View, rank: Any, site: Site) -> np.ndarray:
        """The rank that a view names in each lane. Refuses active lanes with a rank outside the world."""
        found = self.get(rank)
        outside = (found < 0) | (found >= self.sizes.world)
        if (lane := self.first(outside)) is not None:
            world, named = self.sizes.world, isinstance(rank, sympy.Basic) and bool(rank.free_symbols)
            said = f"rank {found[lane]} in a world of {world}: ranks go from 0 to {world - 1}"
            said += ", and (...) % tk.world() stays among them" if named else ""
            self.refuse(RankError, view, site, lane, said, str(view), outside)
        return np.clip(found, 0, self.sizes.world - 1)

    def cells(self, signals: ir.Signals, index: tuple[ir.Range | Expr, ...]) -> Iterator[tuple[Any, np.ndarray]]:
        """The cells that an index of the grid intersects, one by one: its flat number in each lane, and the active
        lanes that have it."""
        along = [int(evaluate(cells_along(c), self.sizes.values)) for c in signals.grid]
        found = [tuple(map(self.get, cells_of(c, i))) for c, i in zip(signals.grid, index, strict=True)]
        for offset in np.ndindex(*(int(count.max()) for _, count in found)):
            there, cell = np.zeros(self.lanes, bool), np.zeros(self.lanes, np.int64)
            there[self.act] = True
            for (first, count), o, n in zip(found, offset, along, strict=True):
                there &= (o < count) & (first + o >= 0) & (first + o < n)  # none where the view leaves its tensor
                cell = cell * n + first + o
            yield np.where(there, cell, 0), there

    # ---- refusals

    def region(self, view: ir.View, lo: np.ndarray, hi: np.ndarray, lane: int) -> str:
        """The region of a view in one lane, as text."""
        dims = self.program.tensor(view.tensor).dims
        spans = (f"{d}[{a}:{b}]" for d, a, b in zip(dims, lo[lane], hi[lane], strict=False))
        return f"{view.tensor}[{', '.join(spans)}]"

    def refuse(
        self, kind: type[TileLinkError], view: ir.View, site: Site, lane: int, said: str, region: str,
        lanes: np.ndarray | None, notifies: Sequence[tuple[Site, str]] = (), claims: int = 0,
    ) -> None:  # fmt: skip
        """Keeps the error of the first refused lane, and raises PassedOver for `lanes` (None: raises nothing).
        `notifies`: the lines that may be the real mistake, each with what is wrong there, if that is known. `claims`:
        see `Refusal`."""
        names = [n for n, _ in self.role.walk.coordinates if n != TILE.name and not n.endswith(".tile")]
        at = ", ".join(f"{shown(n)} {self.values[n][lane]}" for n in [RANK.name, *names, *self.loops])
        error = kind(f"{view}: {said} (tile {self.values[NUMBER.name][lane]} of {self.role.name}: {at})", site)
        for other, wrong in notifies:
            error = kind(f"{error.message}; {other} {wrong}", site) if wrong else error
        if lines := ", ".join(dict.fromkeys(str(other) for other, wrong in notifies if not wrong)):
            error = kind(f"{error.message}; {view.tensor} is {'released' if claims else 'notified'}: {lines}", site)
        error.tile = self.role.name, int(self.values[NUMBER.name][lane]), int(self.values[RANK.name][lane])
        self.run.refused.setdefault((kind, site.file, site.line), Refusal(error, view.tensor, region, claims))
        if lanes is not None:
            raise PassedOver(lanes)


def outside_of(lo: np.ndarray, hi: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Whether [lo, hi) is not empty and leaves [low, high), elementwise."""
    return ((lo < low) | (hi > high)) & (hi > lo)
