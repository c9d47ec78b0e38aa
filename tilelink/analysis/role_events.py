"""The events of a role. Its body is walked once for all its tiles together, as numpy arrays over lanes.

If a tile must not do something, that is refused for the lanes that do it. A loop without synchronisation, whose
variable stands in loads only, becomes one event over all that the loop reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from tilelink.analysis.events import DOT, NOTIFY, READ, WAIT, WRITE, Events, released
from tilelink.analysis.lanes import Lanes, PassedOver, Unrolling, outside_of
from tilelink.errors import GuardError, HomeError, ScheduleError, Site, WaitWithoutNotifyError
from tilelink.frontend import ir
from tilelink.frontend.cells import WAITER, recipient
from tilelink.frontend.expressions import RANK, Expr, own, shown, symbol
from tilelink.frontend.values import ITEM_SIZE
from tilelink.frontend.walk import NUMBER

ORDER = ("seq", "tile", "role", "turn", "launch", "worker", "rank")
"""Columns that sort the events, the last one first. `launch`, `turn` and `seq` (inside a tile) give the order on a
worker; they are not columns of `Events`."""
NOTHING = dict.fromkeys(("tensor", "home", "entry", "cell", "expected"), -1)
NOTHING |= {"lo": 0, "hi": 1, "amount": 0, "late": False, "picked": False}
"""Default values of columns. `late`, which is no column of `Events`: the worker's next tile notifies this."""
WIDE = ("lo", "hi")
"""Columns with a number for each dimension."""
AT_HOME = own("home")
"""The rank in whose memory a waited or notified view lies."""


def no_events(program: ir.TileProgram) -> dict[str, np.ndarray]:
    """The columns of an empty list of events."""
    wide = dict.fromkeys(WIDE, (0, max(len(t.dims) for t in program.tensors)))
    return {c: np.zeros(wide.get(c, 0), Events.COLUMNS.get(c, np.int32)) for c in (*Events.COLUMNS, *ORDER)}


class RoleEvents(Lanes):
    """The events of one role."""

    def __init__(self, run: Unrolling, index: int) -> None:
        super().__init__(run, index)
        self.batches: list[tuple[np.ndarray, dict[str, Any]]] = []  # lanes, and columns: of each event, or of all
        self.trips: Any = 1
        self.guards: dict[str, dict[str, list[tuple[np.ndarray, np.ndarray]]]] = {}
        self.owed = 0  # a tile's late notifications come before this batch of the next
        self.peer = self.values.get(RANK.name, self.act)

    def events(self) -> dict[str, np.ndarray]:
        """The events of the role: the columns of `Events` and of `ORDER`."""
        self.body(self.role.body)
        if not self.batches:
            return no_events(self.program)
        lane = np.concatenate([lanes for lanes, _ in self.batches])
        seq = 2 * np.repeat(np.arange(len(self.batches), dtype=np.int32), [len(lanes) for lanes, _ in self.batches])
        columns = {c: self.column(c) for c in self.batches[0][1]}
        if (late := columns.pop("late")).any():
            next_tile = self.next_tiles()[lane]
            moves = late & (next_tile >= 0)
            lane, seq = np.where(moves, next_tile, lane), np.where(moves, 2 * self.owed - 1, seq)
        rank, tile = self.values[RANK.name], self.values[NUMBER.name]
        of_lanes = {"rank": rank, "tile": tile, "worker": self.worker(), "turn": self.order.turn(rank, tile)}
        columns |= {c: v[lane].astype(Events.COLUMNS.get(c, np.int32)) for c, v in of_lanes.items()}
        of_role = {"role": self.index, "launch": self.order.launch}
        columns |= {c: np.full(len(lane), v, np.int16) for c, v in of_role.items()}
        return columns | {"seq": seq}

    def column(self, name: str) -> np.ndarray:
        """A column of all batches."""
        along = (self.dims,) if name in WIDE else ()
        made = np.empty((sum(len(lanes) for lanes, _ in self.batches), *along), Events.COLUMNS.get(name, bool))
        stop = 0
        for lanes, columns in self.batches:
            start, stop = stop, stop + len(lanes)
            made[start:stop] = columns[name]
        return made

    def next_tiles(self) -> np.ndarray:
        """The lane of the next tile of this role in the same turn on each lane's worker; -1 if it is the last."""
        rank, tile = self.values[RANK.name], self.values[NUMBER.name]
        by = rank, self.worker(), self.order.turn(rank, tile)
        order = np.lexsort((tile, *by))
        goes_on = np.all([column[order][1:] == column[order][:-1] for column in by], axis=0)
        following = np.full(self.lanes, -1)
        following[order[:-1][goes_on]] = order[1:][goes_on]
        return following

    def estimate(self) -> int:
        """The number of events of all tiles, extrapolated from the sample."""
        self.body(self.role.body)
        tiles, sample = self.allotment.tiles * self.sizes.world, self.run.sample
        known = tiles if sample is None else min(tiles, sample)
        return sum(len(lanes) for lanes, _ in self.batches) * tiles // max(1, known)

    def worker(self) -> np.ndarray:
        """The worker of each tile. On the copy engine it is a stream: the stream of the one peer that the tile copies
        with, or, if all copies share one stream, the stream with the rank's own number."""
        if self.role not in self.program.on_engine:
            return np.asarray(self.order.worker(self.values[RANK.name], self.values[NUMBER.name], self.allotment))
        one = getattr(self.role.resource, "streams", "") == "one"
        return self.allotment.first + (self.values[RANK.name] if one else self.peer)

    # ---- statements

    def body(self, statements: tuple[ir.Statement, ...]) -> None:
        if not len(self.act):
            return
        for s in statements:
            for load in s.reads:
                self.attempt(partial(self.access, READ, load, s.site))
            for code in s.codes:
                self.dots(code, s.site)
            match s:
                case ir.Write():
                    picked = isinstance(s, ir.Copy) and bool(s.source.picked_by)
                    self.attempt(partial(self.access, WRITE, ir.Load(s.target, s.where), s.site, picked))
                case ir.Wait():
                    self.guards[s.name] = {}
                    for view in s.views:
                        self.where(self.get(s.when), partial(self.attempt, partial(self.wait, s, view)))
                case ir.Notify():
                    for view in s.views:
                        self.attempt(partial(self.notify, view, s.site, s.late))
                case ir.Owed():
                    self.owed = len(self.batches)
                case ir.For():
                    self.loop(s)
                case ir.If():
                    condition = self.get(s.condition)
                    self.where(condition, partial(self.body, s.body))
                    self.where(~condition, partial(self.body, s.orelse))
                case ir.DataIf():
                    self.body(s.body)
                    self.body(s.orelse)

    def attempt(self, action: Callable[[], None]) -> None:
        """Runs `action`, and repeats it without the lanes for which it is refused."""
        done = len(self.batches)
        try:
            action()
        except PassedOver as e:
            del self.batches[done:]
            self.where(~e.lanes, partial(self.attempt, action))

    def loop(self, s: ir.For) -> None:
        start, stop = self.get(s.start), self.get(s.stop)
        trips = np.maximum(0, -((start - stop) // s.step))
        if self.run.summarise and _summarisable(s):
            self.whole[symbol(s.name)] = (s.start, s.stop)
            outer, self.trips = self.trips, self.trips * trips
            self.values[s.name] = start
            self.where(trips > 0, partial(self.body, s.body))
            self.trips = outer
            del self.whole[symbol(s.name)]
            return
        self.loops.append(s.name)
        for n in range(int(trips[self.act].max(initial=0))):
            self.values[s.name] = np.where(n < trips, start + n * s.step, start)  # stays in bounds without this step
            self.where(n < trips, partial(self.body, s.body))
        self.loops.pop()

    def dots(self, code: ir.Code, site: Site) -> None:
        for m, n, k in code.dots:
            self.emit(DOT, site, amount=2.0 * m * n * k * self.trips)

    def access(self, op: int, of: ir.Load, site: Site, picked: bool = False) -> None:
        """Emits reads or writes of a view; integers in `of.where` say which rows are moved. `picked`: integers pick the
        rows that are copied."""
        view = of.view
        lo, hi = self.box(view, site)
        if view.guard is not None:
            self.check_guard(view, lo, hi, site)
        tensor, entry = self.program.tensor(view.tensor), np.asarray(-1)
        if tensor.buffers:  # where the entry lies
            entry = lo[:, 0].copy()
            lo[:, 0] = entry % tensor.buffers
            hi[:, 0] = lo[:, 0] + 1
        lengths = hi - lo
        for k, i in enumerate(view.index):  # as many rows as there are integers that pick them
            if isinstance(i, ir.Range) and i.by is not None:
                integers = np.prod([np.subtract(*self.bounds(j)[::-1]) for j in i.by.index], axis=0)
                lengths[:, k] = np.where(lengths[:, k] > 0, integers, 0)
        size = np.prod(lengths, axis=1) * ITEM_SIZE[tensor.dtype]
        own = op == WRITE and tensor.kind == "output"
        for home in self.homes(view, site):
            away = (home != self.values[RANK.name]) & (size > 0)
            foreign = own & away
            if (lane := self.first(foreign)) is not None:
                self.refuse(
                    HomeError, view, site, lane, "an output is written by its own rank, but this is rank "
                    f"{home[lane]}'s; let peers write a tk.local buffer, and copy it from there",
                    self.region(view, lo, hi, lane), foreign,
                )  # fmt: skip
            if self.role in self.program.on_engine:
                self.copy_with(home, away, site)
            said: dict[str, Any] = {"tensor": view.tensor, "home": home, "lo": lo, "hi": hi, "entry": entry}
            said["amount"] = size * self.share(of.where)
            said["picked"] = picked or bool(view.picked_by) or of.where is not None
            self.where(size > 0, partial(self.emit, op, site, **said))

    def share(self, where: ir.View | None) -> np.ndarray | float:
        """The share of its rows that an access moves in each lane; 1 if the integers that say so are unknown."""
        known = dict(self.sizes.moved).get(where.tensor) if where is not None else None
        if where is None or known is None:
            return 1.0
        bounds = [self.bounds(i) for i in where.index]
        if self.program.tensor(where.tensor).sharded is None:  # each rank has its own
            bounds.insert(0, (home := self.get(where.home), home + 1))
        before = known.array
        for k in range(before.ndim):
            before = np.cumsum(np.insert(before, 0, 0, axis=k), axis=k)
        found, every = np.zeros(self.lanes), np.ones(self.lanes)
        for corner in product((0, 1), repeat=len(bounds)):
            at = tuple(np.clip(b[c], 0, n - 1) for b, c, n in zip(bounds, corner, before.shape, strict=True))
            found = found + (-1) ** (len(bounds) - sum(corner)) * before[at]
        for lo, hi in bounds:
            every = every * np.maximum(1, hi - lo)
        return found / every

    def copy_with(self, home: np.ndarray, away: np.ndarray, site: Site) -> None:
        """Notes the peer of each tile on the copy engine. Raises ScheduleError if a tile has two peers."""
        rank = self.values[RANK.name]
        lane = self.first(away & (self.peer != rank) & (self.peer != home))
        if lane is not None:
            raise ScheduleError(
                f"tile {self.values[NUMBER.name][lane]} of {self.role.name} on rank {rank[lane]} copies between its "
                f"rank and two others, {self.peer[lane]} and {home[lane]}: a tile on the copy engine has one peer. "
                "Give its space a rank axis for them",
                site,
            )
        self.peer = self.peer.copy()
        self.peer[self.act] = np.where(away, home, self.peer)[self.act]

    def wait(self, s: ir.Wait, view: ir.View) -> None:
        lo, hi = self.box(view, s.site)
        self.guards[s.name].setdefault(view.tensor, []).append((lo, hi))
        signals = self.program.signals_of(view.tensor)
        some = (hi > lo).all(axis=1) | view.of_rank  # for what a rank without rows has, too
        expected, filled = self.run.counts(signals)
        for home in self.homes(view, s.site):
            self.values[AT_HOME.name] = home
            for cell, there in self.cells(signals, signals.index(view, AT_HOME)):
                there = there & some
                at = self.values[RANK.name], np.where(there, cell, 0)
                lost = there & (expected[at] == 0) & filled[at]
                if (lane := self.first(lost)) is not None:
                    which = f"cell {cell[lane]} on rank {at[0][lane]}"
                    self.refuse_lost(view, (lo, hi), s.site, lane, lost, which)
                emit = partial(self.emit, WAIT, s.site, tensor=view.tensor, home=home, lo=lo, hi=hi)
                self.where(there, partial(emit, cell=cell, expected=expected[at]))

    def refuse_lost(
        self, view: ir.View, box: tuple[np.ndarray, np.ndarray], site: Site, lane: int, lost: np.ndarray, which: str
    ) -> None:
        """Refuses a wait for what no tile notifies, or a claim of an entry whose buffer no tile releases."""
        notifies, (lo, hi) = list(_notifies(view.tensor, self.program)), box
        claimed = released(self.program, view.tensor)
        if claimed is None:
            region = self.region(view, lo, hi, lane)
            said = (
                f"no tile of the run notifies {region} ({which}), so the wait passes at once, and what is read was not "
                "written"
            )
            self.refuse(WaitWithoutNotifyError, view, site, lane, said, region, lost, notifies)
            return
        assert claimed.buffers is not None
        entry, *rest = view.index
        assert isinstance(entry, Expr)
        view = replace(view, tensor=claimed.name, index=(entry + claimed.buffers, *rest))
        before, later = self.region(view, lo, hi, lane), claimed.buffers * (np.arange(self.dims) == 0)
        said = (
            f"the claim waits for the release of {before}, which had the same buffer before ({which}), and no tile of "
            "the run releases it, so the claim passes at once, and the entry may be overwritten while it is read"
        )
        region = self.region(view, lo + later, hi + later, lane)
        self.refuse(WaitWithoutNotifyError, view, site, lane, said, region, lost, notifies, claimed.buffers)

    def notify(self, view: ir.View, site: Site, late: bool) -> None:
        lo, hi = self.box(view, site)
        signals = self.program.signals_of(view.tensor)
        to, condition = recipient(signals, view, AT_HOME)
        for home in self.homes(view, site):
            self.values[AT_HOME.name] = home
            for rank in [self.get(to)] if to is not None else range(self.sizes.world):
                self.values[WAITER.name] = rank
                gets = self.get(condition)
                for cell, there in self.cells(signals, signals.index(view, AT_HOME)):
                    said = {"tensor": view.tensor, "home": rank, "lo": lo, "hi": hi, "cell": cell, "late": late}
                    self.where(there & gets, partial(self.emit, NOTIFY, site, **said))

    def check_guard(self, view: ir.View, lo: np.ndarray, hi: np.ndarray, site: Site) -> None:
        """Refuses reads of a guarded view that lie in none of the views that were waited for together."""
        inside, missed = np.zeros(self.lanes, bool), ""
        for low, high in self.guards[view.guard or ""].get(view.tensor, ()):
            outside = outside_of(lo, hi, low, high)
            inside |= ~outside.any(axis=1)
            for k, dim in enumerate(self.program.tensor(view.tensor).dims):
                if not missed and (lane := self.first(outside[:, k])) is not None:
                    a, b, c, d = (bound[lane, k] for bound in (lo, hi, low, high))
                    missed = f"{dim}[{a}:{b}] is outside of what was waited for, {dim}[{c}:{d}]"
        lane = self.first(~inside)
        if lane is not None and missed:  # else the wait itself is refused
            self.refuse(GuardError, view, site, lane, missed, self.region(view, lo, hi, lane), None)

    def emit(self, op: int, site: Site, tensor: str | None = None, **said: Any) -> None:
        """Emits one event for each active lane. `said`: the columns that differ from `NOTHING`."""
        self.run.tell(f"unrolling {self.role.name}, line {site.line}")
        if tensor is not None:
            said["tensor"] = self.program.numbers[tensor]
        columns = {**NOTHING, **said, "op": op, "site": self.run.sites.setdefault(site, len(self.run.sites))}
        for name, value in columns.items():
            if isinstance(value, np.ndarray) and value.ndim:
                lanes = (self.lanes, self.dims) if name in WIDE else (self.lanes,)
                here = (value if value.shape == lanes else np.broadcast_to(value, lanes))[self.act]
                columns[name] = here.astype(Events.COLUMNS.get(name, bool), copy=False)
        self.batches.append((self.act, columns))


def _summarisable(s: ir.For) -> bool:
    """Whether a loop can be one event. It must not synchronise or store, and its variable must stand only where a block
    of the step's length begins, or as the number of an entry, also in integers that pick rows."""
    name = symbol(s.name)

    def goes_along(i: ir.Range | Expr) -> bool:
        return (i.start, i.extent) == (name, s.step) if isinstance(i, ir.Range) else (i, s.step) == (name, 1)

    def known(i: ir.Range | Expr) -> ir.Range | Expr:
        return replace(i, by=None) if isinstance(i, ir.Range) else i

    inside = list(ir.walk(s.body))
    views = (view for inner in inside for view in inner.read)
    others = (replace(v, index=tuple(known(i) for i in v.index if not goes_along(i))) for v in views)
    return all(isinstance(inner, ir.Compute) for inner in inside) and not any(name in v.symbols for v in others)


def _notifies(tensor: str, program: ir.TileProgram) -> Iterator[tuple[Site, str]]:
    """The lines that notify a tensor, each with what is wrong there, "" if nothing is known to be wrong."""
    for role in program.roles:
        for s in ir.every(ir.Notify, role.body):
            homes = [v.home for v in s.views if v.tensor == tensor]
            axis = _unnamed_axis(role) if RANK in homes and released(program, tensor) is None else None
            wrong = (
                f"notifies {tensor} in the memory of the executing rank only: its tiles have a rank axis {axis} that "
                f"no view names; write {tensor}[...].at(t.{axis})"
            )
            if homes:
                yield s.site, wrong if axis else ""


def _unnamed_axis(role: ir.Role) -> str | None:
    """The first rank axis of a role's tiles that none of its views names; None if there is none."""
    if any(r.segment for r in role.walk.ranges):
        return None
    named = {RANK, *(home for _, home in role.walk.homes)}.union(*(v.symbols for v in role.touched))
    return next((shown(name) for name, _ in role.walk.axes if symbol(name) not in named), None)
