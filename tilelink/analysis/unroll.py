"""Unrolling: a tile program at given sizes becomes the events of every worker of every rank.

All tiles of a role are evaluated at once: an integer of the tile program becomes a numpy array over lanes, a lane
being one tile on one rank. A loop without synchronisation, whose variable stands in loads only, becomes one event
over all it reads. What comes out is exact: regions, homes, signals with the counts they are waited for, bytes and
operations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import sympy

from tilelink.analysis.copy_engine import check_signals, put_on_streams
from tilelink.analysis.counting import Counts, expected_counts, miscounted
from tilelink.analysis.events import DOT, NOTIFY, OPS, READ, WAIT, WRITE, Events
from tilelink.errors import (
    BudgetError,
    GuardError,
    HomeError,
    RankError,
    Site,
    TileLinkError,
    ViewError,
    WaitWithoutNotifyError,
)
from tilelink.frontend.cells import cell_count, cells_along, cells_of
from tilelink.frontend.expressions import Expr, evaluate, symbol
from tilelink.frontend.ir import (
    ALL_RANKS,
    RANKS_DIM,
    Compute,
    Copy,
    DataIf,
    For,
    If,
    Load,
    Notify,
    Range,
    Role,
    Signals,
    Statement,
    Store,
    TileProgram,
    View,
    Wait,
    walk,
)
from tilelink.frontend.signals import recipient
from tilelink.frontend.sizes import Allotment, Sizes, allot
from tilelink.frontend.values import ITEM_SIZE
from tilelink.frontend.workload import Place, places

__all__ = ["DOT", "NOTIFY", "OPS", "READ", "WAIT", "WRITE", "Events", "expected_counts", "unroll"]
DEFAULT_SMS = 132


def unroll(
    program: TileProgram,
    sizes: Sizes,
    *,
    sms: int = DEFAULT_SMS,
    summarise: bool = True,
    refused: list[Refusal] | None = None,
    roles: Collection[Role] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Events:
    """The events of a run. `summarise`: loops without synchronisation as one event; `roles`: those whose events are
    wanted, by default all. Raises ViewError, GuardError, RankError, HomeError, WaitWithoutNotifyError or
    SignalCountError where a tile would do what it must not, with the values; ScheduleError where an engine would. Where
    a list `refused` is given, those go there, one of a kind for each line, and the events are those of what is left:
    without what leaves its tensor, world or own output. `tell` is told now and then how far it is."""
    allotment = allot(program, sizes, sms)
    sites: dict[Site, int] = {}
    batches: list[dict[str, np.ndarray]] = []
    at, counts = places(program, sizes), Counts(program, sizes)
    wanted = program.roles if roles is None else roles
    for k, role in enumerate(program.roles):
        if role in wanted:
            batches += _Unroller(
                program, sizes, k, role, allotment[role.name], at[role.name], summarise, refused, sites, counts, tell
            ).run()
    names = (*Events.COLUMNS, *ORDER)
    columns = {c: np.concatenate([b[c] for b in batches]) for c in names} if batches else _no_events(program)
    put_on_streams(columns, program, allotment, tuple(sites))
    seq, turn, launch = (columns.pop(name) for name in ORDER)
    order = np.lexsort((seq, columns["tile"], columns["role"], turn, launch, columns["worker"], columns["rank"]))
    columns = {c: v[order] for c, v in columns.items()}
    events = Events(program, sizes, sms, sites=tuple(sites), allotment=allotment, **columns)
    if refused:
        return events
    if (wrong := miscounted(events, counts, {role.name for role in wanted})) is None:
        check_signals(events)
    elif refused is None:
        raise wrong
    else:
        refused.append(Refusal(wrong))
    return events


BUDGET = 10_000_000
"""Events that a check may unroll where nothing else is said."""
SAMPLE = 128
"""Tiles of a role from whose events those of all are estimated."""


def estimated(program: TileProgram, sizes: Sizes, *, sms: int = DEFAULT_SMS) -> int:
    """How many events `unroll` would make, estimated from some tiles of each role; exact where there are few."""
    allotment, at, counts = allot(program, sizes, sms), places(program, sizes), Counts(program, sizes)
    return sum(
        _Estimator(program, sizes, k, role, allotment[role.name], at[role.name], True, [], {}, counts).estimate()
        for k, role in enumerate(program.roles)
    )


def check_budget(program: TileProgram, sizes: Sizes, because: str, *, sms: int, budget: int) -> None:
    """Raises BudgetError where unrolling makes more events than `budget`. `because`: why the program is unrolled."""
    events = estimated(program, sizes, sms=sms)
    if events > budget:
        raise BudgetError(
            f"a check of {program.name} at these sizes unrolls about {events:,} events "
            f"({events * MICROSECONDS / 1e6:,.0f} s, {events * BYTES / 1e9:,.1f} GB), and the budget is {budget:,}; "
            f"the structure alone does not show that it is safe: {because}. Check it at smaller sizes, or allow more: "
            "check(budget=...), tilelink check --budget, TILELINK_CHECK_BUDGET for calls (TILELINK_CHECK=0: unchecked)",
            program.site,
        )


MICROSECONDS, BYTES = 2.5, 240
"""What an event takes in a check, measured on one core of a server (docs/check.md)."""


def _no_events(program: TileProgram) -> dict[str, np.ndarray]:
    dims = max(len(t.dims) for t in program.tensors)
    wide = {"lo", "hi"}
    return {c: np.zeros((0, dims) if c in wide else 0, np.int64) for c in (*Events.COLUMNS, *ORDER)}


ORDER = ("seq", "turn", "launch")
"""Columns that say in which order a worker does things: of launches, of the turns of one, and inside a tile."""


@dataclass(frozen=True)
class Refusal:
    """What tiles would do and must not: the error, for the first of them, and the region that it is about."""

    error: TileLinkError
    region: str = ""

    def of(self, kind: type[TileLinkError], site: Site) -> bool:
        """Whether it is of this kind, and of this line."""
        mine = self.error.site
        return type(self.error) is kind and mine is not None and (mine.file, mine.line) == (site.file, site.line)


class _PassedOver(Exception):
    """A statement is refused for these lanes."""

    def __init__(self, lanes: np.ndarray) -> None:
        self.lanes = lanes


@dataclass
class _Unroller:
    """One role: walks its body once, with arrays over lanes."""

    program: TileProgram
    sizes: Sizes
    index: int
    role: Role
    allotment: Allotment
    place: Place
    summarise: bool
    refused: list[Refusal] | None
    sites: dict[Site, int]
    counts: Counts
    tell: Callable[[str], None] = lambda _: None
    batches: list[dict[str, np.ndarray]] = field(default_factory=list)

    def run(self) -> list[dict[str, np.ndarray]]:
        values: dict[str, Any] = dict(self.sizes.values)
        count = self.allotment.tiles
        for name, e in self.role.walk.sizes:
            values[name] = int(evaluate(e, values))
        values["rank"], values["i"] = self.tiles()
        if count:
            for name, e in self.role.walk.coordinates:
                values[name] = evaluate(e, values)
            here = np.broadcast_to(evaluate(self.role.walk.exists, values), values["i"].shape)
            if not here.all():
                lanes = {"rank", "i", *(name for name, _ in self.role.walk.coordinates)}  # and no table as long
                values = {n: v[here] if n in lanes and _per_lane(v, here) else v for n, v in values.items()}
        self.values, self.lanes, self.act = values, len(values["i"]), None
        self.seq = 0
        self.whole: dict[str, tuple[Expr, Expr]] = {}
        self.trips: Any = 1
        self.guards: dict[str, dict[str, list[tuple[list[Any], list[Any]]]]] = {}
        if self.lanes:
            self.body(self.role.body)
        return self.batches

    def tiles(self) -> tuple[np.ndarray, np.ndarray]:
        """Rank and number of each tile."""
        count, world = self.allotment.tiles, self.sizes.world
        return np.repeat(np.arange(world, dtype=np.int64), count), np.tile(np.arange(count, dtype=np.int64), world)

    # ---- statements

    act: np.ndarray | None = None
    values: dict[str, Any] = field(default_factory=dict)

    def body(self, statements: tuple[Statement, ...]) -> None:
        for s in statements:
            for load in s.loads:
                self.attempt(partial(self.access, READ, load.view, s.site))
            match s:
                case Compute():
                    self.dots(s.code.dots, s.site)
                case Store():
                    self.dots(s.value.dots, s.site)
                    self.attempt(partial(self.access, WRITE, s.target, s.site))
                case Copy():
                    self.attempt(partial(self.access, READ, s.source, s.site))
                    self.attempt(partial(self.access, WRITE, s.target, s.site))
                case Wait():
                    self.guards[s.name] = {}
                    for view in s.views:
                        self.attempt(partial(self.wait, s, view))
                case Notify():
                    for view in s.views:
                        self.attempt(partial(self.notify, view, s.site))
                case For():
                    self.loop(s)
                case If():
                    condition = self.get(s.condition)
                    for part, mask in ((s.body, condition), (s.orelse, np.logical_not(condition))):
                        self.where(np.broadcast_to(mask, (self.lanes,)), partial(self.body, part))
                case DataIf():
                    self.body(s.body)
                    self.body(s.orelse)

    def attempt(self, action: Callable[[], None]) -> None:
        """Does it for the lanes for which it is not refused."""
        done = len(self.batches)
        try:
            action()
        except _PassedOver as e:
            del self.batches[done:]
            self.where(~e.lanes, partial(self.attempt, action))

    def where(self, mask: np.ndarray, action: Callable[[], None]) -> None:
        """Does what `action` does for the lanes in which mask holds."""
        before = self.act
        lanes = np.arange(self.lanes) if before is None else before
        lanes = lanes[mask[lanes]]
        if len(lanes):
            self.act = None if len(lanes) == self.lanes else lanes
            action()
        self.act = before

    def loop(self, s: For) -> None:
        start, stop = (np.broadcast_to(self.get(e), (self.lanes,)) for e in (s.start, s.stop))
        trips = np.maximum(0, -((start - stop) // s.step))
        if self.summarise and _summarisable(s):
            self.whole[s.name] = (s.start, s.stop)
            outer, self.trips = self.trips, self.trips * trips
            self.values[s.name] = start
            self.where(trips > 0, partial(self.body, s.body))
            self.trips = outer
            del self.whole[s.name]
            return
        lanes = slice(None) if self.act is None else self.act
        for n in range(int(trips[lanes].max(initial=0))):
            self.values[s.name] = np.where(n < trips, start + n * s.step, start)  # no lane looks behind its last step
            self.where(n < trips, partial(self.body, s.body))

    # ---- events

    def dots(self, dots: tuple[tuple[int, int, int], ...], site: Site) -> None:
        for m, n, k in dots:
            self.emit(DOT, site, amount=2.0 * m * n * k * self.trips)

    def homes(self, view: View, site: Site) -> Iterator[Any]:
        """The ranks whose memory a view is, as arrays over lanes; checked."""
        if view.home == ALL_RANKS:
            yield from (np.full(self.lanes, r) for r in range(self.sizes.world))
            return
        home = np.broadcast_to(self.get(view.home), (self.lanes,))
        outside = (home < 0) | (home >= self.sizes.world)
        wrong = self.first(outside)
        if wrong is not None:
            said = f"{view}: rank {home[wrong]} in a world of {self.sizes.world}"
            self.refuse(RankError, site, wrong, said, str(view), outside)
        yield home

    def access(self, op: int, view: View, site: Site) -> None:
        lo, hi = self.box(view, site)
        if view.guard is not None:
            self.check_guard(view, lo, hi, site)
        tensor, entry = self.program.tensor(view.tensor), np.asarray(-1)
        if tensor.buffers:  # where the entry lies
            entry = np.asarray(lo[0])
            lo[0] = entry % tensor.buffers
            hi[0] = lo[0] + 1
        item = ITEM_SIZE[tensor.dtype]
        size = np.prod([np.broadcast_to(b - a, (self.lanes,)) for a, b in zip(lo, hi, strict=True)], axis=0) * item
        own = op == WRITE and tensor.kind == "output"
        for home in self.homes(view, site):
            foreign = own & (home != self.values["rank"]) & (size > 0)
            away = self.first(foreign)
            if away is not None:
                self.refuse(
                    HomeError, site, away, f"{view}: an output is written by its own rank, but this is rank "
                    f"{home[away]}'s; let peers write a tk.local buffer, and copy it from there",
                    self.region(view, lo, hi, away), foreign,
                )  # fmt: skip
            self.where(size > 0, partial(self.emit, op, site, view.tensor, home, lo, hi, entry=entry, amount=size))

    def box(self, view: View, site: Site) -> tuple[list[Any], list[Any]]:
        """The region: lower and upper bounds along each dimension, checked against the tensor and its parts."""
        tensor = self.program.tensor(view.tensor)
        lo, hi = [], []
        for k, (dim, i) in enumerate(zip(tensor.dims, view.index, strict=True)):
            a, b = self.bounds(i)
            begin, end = 0, self.sizes.world if dim == RANKS_DIM else self.sizes.values[dim]
            if isinstance(i, Range) and k == tensor.sharded and i.part is not None:
                part = self.get(i.part)
                begin, end = self.sizes.values[f"{dim}_parts"][part], self.sizes.values[f"{dim}_parts"][part + 1]
            outside = _outside(a, b, begin, end)
            wrong = self.first(outside)
            if wrong is not None:
                at = [self.of_lane(v, wrong) for v in (a, b, begin, end)]
                said = f"{view}: {dim}[{at[0]}:{at[1]}] is outside {dim}[{at[2]}:{at[3]}]"
                self.refuse(ViewError, site, wrong, said, f"{view.tensor}: {dim}[{at[0]}:{at[1]}]", outside)
            lo.append(a)
            hi.append(np.maximum(a, b))
        return lo, hi

    def bounds(self, i: Range | Expr) -> tuple[Any, Any]:
        loop = self.whole.get(str(i.start if isinstance(i, Range) else i))
        if loop is not None:
            return self.get(loop[0]), self.get(loop[1])
        if isinstance(i, Range):
            return self.get(i.start), self.get(i.stop)
        at = self.get(i)
        return at, at + 1

    def check_guard(self, view: View, lo: list[Any], hi: list[Any], site: Site) -> None:
        """What is read of a guarded view has to lie in one of the views that were waited for together."""
        dims = self.program.tensor(view.tensor).dims
        inside, missed = np.zeros(self.lanes, bool), ""
        for low, high in self.guards[view.guard or ""].get(view.tensor, ()):
            outside = [_outside(*b) for b in zip(lo, hi, low, high, strict=True)]
            inside = inside | ~np.logical_or.reduce(np.broadcast_arrays(inside, *outside)[1:])
            for k, wrong in enumerate(map(self.first, outside)):
                if wrong is not None and not missed:
                    a, b, c, d = (self.of_lane(v, wrong) for v in (lo[k], hi[k], low[k], high[k]))
                    missed = f"{dims[k]}[{a}:{b}] is outside of what was waited for, {dims[k]}[{c}:{d}]"
        lane = self.first(~inside)
        if lane is not None and missed:  # else the wait itself is refused
            self.refuse(GuardError, site, lane, f"{view}: {missed}", self.region(view, lo, hi, lane), None)

    def wait(self, s: Wait, view: View) -> None:
        lo, hi = self.box(view, s.site)
        self.guards[s.name].setdefault(view.tensor, []).append((lo, hi))
        signals = self.program.signals_of(view.tensor)
        size = np.prod([np.broadcast_to(b - a, (self.lanes,)) for a, b in zip(lo, hi, strict=True)], axis=0)
        expected, filled = self.known(signals)
        for home in self.homes(view, s.site):
            for cell, there in self.cells(signals, signals.index(view)):
                there = there & (size > 0)
                at = self.values["rank"], np.where(there, cell, 0)
                needed = expected[at]
                lost_here = there & (needed == 0) & filled[at]
                wrong = self.first(lost_here)
                if wrong is not None:
                    rank, region = self.values["rank"][wrong], self.region(view, lo, hi, wrong)
                    lost = f"no tile of the run notifies {region} (cell {cell[wrong]} on rank {rank})"
                    then = "the wait passes at once, and what is read was not written"
                    said = f"{view}: {lost}, so {then}"
                    self.refuse(WaitWithoutNotifyError, s.site, wrong, said, region, lost_here)
                emit = partial(self.emit, WAIT, s.site, view.tensor, home, lo, hi, cell=cell, expected=needed)
                self.where(there, emit)

    def known(self, signals: Signals) -> tuple[np.ndarray, np.ndarray]:
        """How often each cell is notified, and whether it holds anything: (world, cells)."""
        return self.counts(signals)

    def notify(self, view: View, site: Site) -> None:
        lo, hi = self.box(view, site)
        signals = self.program.signals_of(view.tensor)
        for home in self.homes(view, site):
            self.notify_at(view, home, lo, hi, signals, site)

    def notify_at(
        self, view: View, home: Any, lo: list[Any], hi: list[Any], signals: Signals, site: Site
    ) -> None:
        self.values["notified"] = home
        to, condition = recipient(signals, view, symbol("notified"))
        ranks = [self.get(to)] if to is not None else range(self.sizes.world)
        for rank in ranks:
            self.values["waiter"] = rank
            gets = np.broadcast_to(self.get(condition), (self.lanes,))
            for cell, there in self.cells(signals, signals.index(view, symbol("notified"))):
                self.where(there & gets, partial(self.emit, NOTIFY, site, view.tensor, rank, lo, hi, cell=cell))

    def cells(self, signals: Signals, index: tuple[Range | Expr, ...]) -> Iterator[tuple[Any, np.ndarray]]:
        """Flat numbers of the cells that an index of the grid intersects, each with the lanes that have it."""
        first, count, along = [], [], []
        for c, i in zip(signals.grid, index, strict=True):
            a, n = cells_of(c, i)
            first.append(np.broadcast_to(self.get(a), (self.lanes,)))
            count.append(np.broadcast_to(self.get(n), (self.lanes,)))
            along.append(int(evaluate(cells_along(c), self.sizes.values)))
        for offset in np.ndindex(*(int(c.max()) for c in count)):
            there = np.logical_and.reduce([o < c for o, c in zip(offset, count, strict=True)])
            cell: Any = 0
            for f, o, n in zip(first, offset, along, strict=True):
                cell = cell * n + f + o
            there = np.broadcast_to(there, (self.lanes,))
            yield np.where(there, cell, 0), there

    # ---- values

    def get(self, e: Any) -> Any:
        return evaluate(e, self.values)

    def first(self, mask: Any) -> int | None:
        """The first lane that takes part and for which mask holds."""
        mask = np.broadcast_to(mask, (self.lanes,))
        lanes = np.arange(self.lanes) if self.act is None else self.act
        found = lanes[mask[lanes]]
        return int(found[0]) if len(found) else None

    def region(self, view: View, lo: list[Any], hi: list[Any], lane: int) -> str:
        """The region that a view is for a lane, for a person."""
        bounds = zip(self.program.tensor(view.tensor).dims, lo, hi, strict=True)
        spans = (f"{d}[{self.of_lane(a, lane)}:{self.of_lane(b, lane)}]" for d, a, b in bounds)
        return f"{view.tensor}[{', '.join(spans)}]"

    def of_lane(self, value: Any, lane: int) -> Any:
        return np.broadcast_to(value, (self.lanes,))[lane]

    def refuse(
        self,
        kind: type[TileLinkError],
        site: Site,
        lane: int,
        message: str,
        region: str,
        lanes: Any,
    ) -> None:
        """Raises the error, of the first lane that is refused; or keeps it and leaves the `lanes` out (None: none)."""
        names = [n for n, _ in self.role.walk.coordinates if n != "tile" and not n.endswith("_tile")]
        at = ", ".join(f"{n} {self.of_lane(self.values[n], lane)}" for n in ["rank", *names])
        error = kind(f"{message} (tile {self.values['i'][lane]} of {self.role.name}: {at})", site)
        error.tile = self.role.name, int(self.values["i"][lane]), int(self.values["rank"][lane])
        if self.refused is None:
            raise error
        if not any(r.of(kind, site) for r in self.refused):
            self.refused.append(Refusal(error, region))
        if lanes is not None:
            raise _PassedOver(np.broadcast_to(lanes, (self.lanes,)))

    def emit(
        self,
        op: int,
        site: Site,
        tensor: str | None = None,
        home: Any = -1,
        lo: list[Any] | None = None,
        hi: list[Any] | None = None,
        entry: Any = -1,
        cell: Any = -1,
        expected: Any = -1,
        amount: Any = 0,
    ) -> None:
        """One event for each lane that takes part."""
        dims = max(len(t.dims) for t in self.program.tensors)
        lanes = np.arange(self.lanes) if self.act is None else self.act

        def column(v: Any, dtype: Any) -> np.ndarray:
            return np.broadcast_to(np.asarray(v), (self.lanes,))[lanes].astype(dtype)

        def box(bounds: list[Any] | None, rest: int) -> np.ndarray:
            filled = [*(bounds or []), *[rest] * (dims - len(bounds or []))]
            return np.stack([column(b, np.int32) for b in filled], axis=1)

        at = next((k for k, t in enumerate(self.program.tensors) if t.name == tensor), -1)
        i, place = self.values["i"], self.place
        self.seq += 1
        self.tell(f"unrolling {self.role.name}, line {site.line}")
        self.batches.append(
            {
                "op": column(op, np.int8), "rank": column(self.values["rank"], np.int16),
                "worker": column(place.worker(i, self.allotment), np.int32),
                "role": column(self.index, np.int16), "tile": column(i, np.int32), "tensor": column(at, np.int16),
                "home": column(home, np.int16), "lo": box(lo, 0), "hi": box(hi, 1),
                "entry": column(entry, np.int16), "cell": column(cell, np.int32),
                "expected": column(expected, np.int32), "amount": column(amount, np.float64),
                "site": column(self.sites.setdefault(site, len(self.sites)), np.int32),
                "seq": column(self.seq, np.int32), "turn": column(place.turn(i), np.int32),
                "launch": column(place.launch, np.int32),
            }
        )  # fmt: skip


class _Estimator(_Unroller):
    """Counts the events of some tiles of a role."""

    def estimate(self) -> int:
        """How many events all its tiles have."""
        self.counted = 0
        self.run()
        return self.counted * self.allotment.tiles * self.sizes.world // max(1, len(self.tiles()[0]))

    def tiles(self) -> tuple[np.ndarray, np.ndarray]:
        everything = self.allotment.tiles * self.sizes.world
        if everything <= SAMPLE:
            return super().tiles()
        some = np.sort(np.random.default_rng(0).integers(everything, size=SAMPLE))
        return some // self.allotment.tiles, some % self.allotment.tiles

    def known(self, signals: Signals) -> tuple[np.ndarray, np.ndarray]:
        shape = self.sizes.world, int(evaluate(cell_count(signals), self.sizes.values))
        return np.broadcast_to(1, shape), np.broadcast_to(False, shape)

    def emit(self, *event: Any, **columns: Any) -> None:
        self.counted += self.lanes if self.act is None else len(self.act)


def _outside(lo: Any, hi: Any, low: Any, high: Any) -> Any:
    """Where [lo, hi) holds something outside of [low, high)."""
    return ((np.asarray(lo) < low) | (np.asarray(hi) > high)) & (np.asarray(hi) > lo)


def _per_lane(value: Any, here: np.ndarray) -> bool:
    return isinstance(value, np.ndarray) and value.shape == here.shape


def _summarisable(s: For) -> bool:
    """No synchronisation or stores inside, and the variable only as where a block of the step's length begins, or as
    the number of an entry."""
    name = symbol(s.name)
    for inner in walk(s.body):
        if not isinstance(inner, Compute):
            return False
        for hole in inner.code.holes:
            if not isinstance(hole, Load):
                continue
            for i in hole.view.index:
                if isinstance(i, Range):
                    if i.start == name and i.extent == s.step:
                        continue
                    if name in i.start.free_symbols | i.stop.free_symbols:
                        return False
                elif (i != name or s.step != 1) and name in sympy.sympify(i).free_symbols:
                    return False
            if isinstance(hole.view.home, Expr) and name in hole.view.home.free_symbols:
                return False
    return True
