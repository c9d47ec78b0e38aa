"""The body of a role where the world spans nodes: what may go to another node is written twice, as a put for a far rank
and as plain stores for a near one, and the table of heaps decides in the kernel.

A put takes what lies in one piece, from the own heap to the same or another place of the peer's. So a copy is one put
where its rows are whole, else one a row, and what registers hold is laid out in memory first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from tilelink.backend.addresses import along
from tilelink.backend.emit import RoleEmitter
from tilelink.errors import FarAccessError, Site
from tilelink.frontend.expressions import PER_NODE, RANK, Expr, Mod, node_of, symbol
from tilelink.frontend.ir import (
    ALL_RANKS,
    Code,
    Copy,
    Notify,
    Range,
    Role,
    Signals,
    Statement,
    Store,
    TileProgram,
    View,
    walk,
)
from tilelink.frontend.signals import recipient
from tilelink.frontend.triton_calls import TRITON_DTYPES
from tilelink.frontend.values import ITEM_SIZE

STAGE_ALIGNMENT = 128


def publish_sources(program: TileProgram) -> TileProgram:
    """The program for a network: it sends from the symmetric heap only, so inputs that are copied to other ranks are
    published there first, as those are that peers read."""
    inputs = {t.name for t in program.inputs}
    copies = [s for role in program.roles for s in walk(role.body) if isinstance(s, Copy)]
    sent = {s.source.tensor for s in copies if s.target.remote and s.source.tensor in inputs}
    return replace(program, published=tuple(t.name for t in program.inputs if t.name in {*program.published, *sent}))


def stage_bytes(program: TileProgram) -> int:
    """Memory of a worker, on the heap, for a block that it sends to another node from registers."""
    stores = [s for role in program.roles for s in walk(role.body) if isinstance(s, Store) and s.target.remote]
    sizes = [prod(_extents(s.target.ranges)) * ITEM_SIZE[program.tensor(s.target.tensor).dtype] for s in stores]
    return -(-max(sizes, default=0) // STAGE_ALIGNMENT) * STAGE_ALIGNMENT


def may_be_far(role: Role, home: Expr | str | None) -> bool:
    """Whether a rank may be on another node than who executes a role: not where its place is one on the same node."""
    if not isinstance(home, Expr):
        return True
    place = home - node_of(RANK) * PER_NODE
    place = dict(role.walk.coordinates).get(str(place), place)
    return home != RANK and not (isinstance(place, Mod) and place.args[1] == PER_NODE)


def _extents(ranges: tuple[Range, ...]) -> list[int]:
    """Of a block that is stored, along each of its dimensions."""
    return [r.extent for r in ranges if r.extent is not None]


@dataclass(frozen=True)
class CopyNotify(Copy):
    """A copy whose notification follows it directly: one operation of a network, where the copy is one piece."""

    notify: Notify


class NetworkEmitter(RoleEmitter):
    """Writes a role for a target with a network."""

    site: Site
    only_near = False

    def body(self, statements: tuple[Statement, ...]) -> None:
        super().body(self._with_puts(statements))

    def _with_puts(self, statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """The statements, a copy and the notification of what it copied as one."""
        made: list[Statement] = []
        for s in statements:
            before = made[-1] if made else None
            if isinstance(s, Notify) and type(before) is Copy and self._is_one_put(before, s):
                made[-1] = CopyNotify(before.site, before.source, before.target, s)
            else:
                made.append(s)
        return tuple(made)

    def _is_one_put(self, copy: Copy, notify: Notify) -> bool:
        target = copy.target
        if notify.views != (target,) or not self.far(target.home) or self.far(copy.source.home) or self._loops(copy):
            return False
        to, _ = recipient(self.program.signals_of(target.tensor), target, self._home(target))
        return to == self._home(target)

    def statement(self, s: Statement) -> None:
        self.site = s.site
        super().statement(s)

    # ---- what may be far

    def choose(self, home: str, far: Callable[[], None], near: Callable[[], None]) -> None:
        """A branch on where a rank is."""
        for head, body in ((f"if is_far(heaps, {home}):", far), ("else:", near)):
            self.write(head)
            self.write.depth += 1
            body()
            self.write.depth -= 1

    def _home(self, view: View) -> Expr:
        """The home of a view; inside a loop over all ranks, of one of them."""
        if view.home == ALL_RANKS:
            return symbol("other")
        assert isinstance(view.home, Expr)
        return view.home

    def far(self, home: Expr | str | None) -> bool:
        """Whether a rank may be on another node."""
        return may_be_far(self.role, home)

    def load(self, view: View) -> str:
        if self.far(view.home):
            raise FarAccessError(
                f"{view} may be on another node, and no network loads into registers: tk.copy it to a buffer of the "
                "reader's first, notify that, and read what a wait for it returns",
                self.site,
            )
        return super().load(view)

    def store(self, s: Store) -> None:
        if not self.far(s.target.home):
            return super().store(s)
        self.write(f"value = {self.code(s.value)}")
        stage = None if s.target.home != ALL_RANKS else self._stage(s.target)
        self.on_homes(s.target)
        single = Store(s.site, replace(s.target, home=self._home(s.target)), Code("value"))
        near = super().store
        self.choose(
            self.text(self._home(s.target)),
            lambda: self._put_block(single.target, stage or self._stage(single.target)),
            lambda: near(single),
        )
        self.end_homes(s.target)
        return None

    def copy(self, s: Copy) -> None:
        source, target = self.far(s.source.home), self.far(s.target.home)
        if not source and not target:
            return super().copy(s)
        if (source and s.target.remote) or (target and s.source.remote):
            raise FarAccessError(
                f"from {s.source} to {s.target}: a network copies from the own memory, or to "
                "it; let one of the two ranks execute the tile (at=)",
                s.site,
            )
        if s.target.home == ALL_RANKS:
            return self._copy_to_all(s)
        there = s.target if target else s.source
        self.choose(self.text(self._home(there)), lambda: self._put(s), lambda: self._near(s))
        return None

    def _copy_to_all(self, s: Copy) -> None:
        """Far ranks first, since that takes longest; what near ones get is loaded once."""
        self.write("for other in range(world):")
        self.write.depth += 1
        self.write("if is_far(heaps, other):")
        self.write.depth += 1
        self._put(s)
        self.write.depth -= 2
        self.only_near = True
        self._near(s)
        self.only_near = False

    def _near(self, s: Copy) -> None:
        super().copy(Copy(s.site, s.source, s.target))
        if isinstance(s, CopyNotify):
            self.only_near, before = True, self.only_near
            super().notify(s.target)
            self.only_near = before

    def on_homes(self, view: View) -> str | None:
        home = super().on_homes(view)
        if view.home == ALL_RANKS and self.only_near:
            self.write("if not is_far(heaps, other):")
            self.write.depth += 1
        return home

    def end_homes(self, view: View) -> None:
        if view.home == ALL_RANKS and self.only_near:
            self.write.depth -= 1
        super().end_homes(view)

    # ---- puts

    def _put(self, s: Copy) -> None:
        """Puts or fetches, one a piece."""
        loops, pieces = self._loops(s), self._pieces(s)
        for r in loops:
            self.write(f"for {r.dim}_at in range({self.text(r.start)}, {self.text(r.stop)}):")
            self.write.depth += 1
        count = self._count(pieces)
        target, source = self._corner(s.target, loops), self._corner(s.source, loops)
        token = "" if self.publishing else self.token(s.source)
        source += f" + {token}" if token else ""
        other = self.text(self._home(s.source if s.source.remote else s.target))
        if isinstance(s, CopyNotify):
            self.write(f"put_notify_far(heaps, {other}, {target}, {source}, {count}, {self._own_signal(s.target)})")
        else:
            verb = "fetch_far" if s.source.remote else "put_far"
            self.write(f"{verb}(heaps, {other}, {target}, {source}, {count})")
        self.write.depth -= len(loops)

    def _stage(self, target: View) -> str:
        """Lays `value` out in this worker's part of the stage, once what was sent from there has left; its name."""
        dtype = TRITON_DTYPES[self.program.tensor(target.tensor).dtype]
        part = f"stage_at + tl.program_id(0) * {stage_bytes(self.program)}"
        stage = self.hoist(f"stage_{dtype}", f"peer(heaps, rank, {part}, tl.{dtype})")
        shape = _extents(target.ranges)
        inside = " + ".join(
            f"tl.arange(0, {n}){along(k, len(shape))} * {prod(shape[k + 1 :])}" for k, n in enumerate(shape)
        )
        name = self.hoist(f"stage_{'_by_'.join(map(str, shape))}", inside)
        mask = self.addresses.block(target, "rank").mask
        self.write("complete_far()")
        self.write(f"tl.store({stage} + {name}, value.to(tl.{dtype}){f', mask={mask}' if mask else ''})")
        return stage

    def _put_block(self, target: View, stage: str) -> None:
        """Sends a block that lies in the stage, a row at a time."""
        ranges = target.ranges
        loops = ranges[: len(ranges) - min(1, self._contiguous(target))]
        source = stage
        for k, r in enumerate(loops):
            self.write(f"for {r.dim}_at in range({self.text(r.start)}, {self.text(r.stop)}):")
            self.write.depth += 1
            source += f" + ({r.dim}_at - ({self.text(r.start)})) * {prod(_extents(ranges[k + 1 :]))}"
        count = self._count(ranges[len(loops) :])
        self.write(f"put_far(heaps, {self.text(self._home(target))}, {self._corner(target, loops)}, {source}, {count})")
        self.write.depth -= len(loops)

    def _count(self, pieces: tuple[Range, ...]) -> str:
        """How many elements lie in one piece."""
        return " * ".join(f"({self.text(r.stop - r.start)})" for r in pieces) or "1"

    def _pieces(self, s: Copy) -> tuple[Range, ...]:
        """The last ranges of a copy, which together lie in one piece at both ends."""
        count = min(self._contiguous(s.source), self._contiguous(s.target))
        return s.source.ranges[len(s.source.ranges) - count :]

    def _contiguous(self, view: View) -> int:
        """How many of a view's last ranges lie in one piece: one more than are whole rows of memory."""
        sharded = self.program.tensor(view.tensor).sharded
        count = 0
        for k in reversed(range(len(view.index))):
            i = view.index[k]
            if not isinstance(i, Range):
                break
            count += 1
            if not i.whole or k == sharded:
                break
        return count

    def _loops(self, s: Copy) -> tuple[Range, ...]:
        """The other ranges, from outside in."""
        return s.source.ranges[: len(s.source.ranges) - len(self._pieces(s))]

    def _corner(self, view: View, loops: tuple[Range, ...]) -> str:
        """Where a piece of a view begins, as a place of the own heap."""
        index = tuple(_at(i, loops) if isinstance(i, Range) else i for i in view.index)
        return self.addresses.block(replace(view, index=index), "rank").pointer

    # ---- signals

    def _own_signal(self, view: View) -> str:
        """The signal of a view, as a place of the own heap: of its home's in the same place there."""
        signals = self.program.signals_of(view.tensor)
        return self.signal(signals, "rank", self.cell(signals, view, self._home(view)))

    def notify(self, view: View) -> None:
        """Who is told may be another than the home that was put to: a network does not order that by itself."""
        to, _ = recipient(self.program.signals_of(view.tensor), view, self._home(view))
        if self.far(view.home) and to != self._home(view):
            self.write("complete_far()")
        super().notify(view)

    def give(self, signals: Signals, to: Expr, cell: Expr) -> None:
        if self.only_near or not self.far(to):
            return super().give(signals, to, cell)
        give = super().give
        where = self.text(to)
        word = self.signal(signals, "rank", cell)
        self.choose(
            where,
            lambda: self.write(f"notify_far(heaps, {where}, {word})"),
            lambda: give(signals, to, cell),
        )
        return None


def _at(r: Range, loops: tuple[Range, ...]) -> Expr:
    """Where loops over the rows of a copy are along a range of either end, or where that begins."""
    for loop in loops:
        if loop.dim == r.dim:
            return symbol(f"{r.dim}_at")
        if loop.same_rows(r):
            return symbol(f"{loop.dim}_at") - loop.start + r.start
    return r.start
