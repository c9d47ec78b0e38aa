"""How memory is reached, where it is not near: all ranks at once, by multicast, and ranks of other nodes, by puts.

Near memory is reached by plain stores, which `tilelink.backend.emit` writes itself. A role may use all three.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import sympy

from tilelink.backend.addresses import along, arange
from tilelink.backend.facts import fills, vector_of
from tilelink.backend.kernel import ONE, Source, call, converted, count_to, joined, name, source, stored
from tilelink.backend.parameters import HEAPS, MULTICAST, WORLD
from tilelink.backend.parameters import RANK as OWN
from tilelink.errors import FarAccessError
from tilelink.frontend.expressions import PER_NODE, RANK, Expr, Mod, node_of, symbol
from tilelink.frontend.ir import (
    ALL_RANKS,
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
from tilelink.frontend.schedule import SMs
from tilelink.frontend.signals import recipient
from tilelink.frontend.values import ITEM_SIZE

if TYPE_CHECKING:
    from tilelink.backend.emit import RoleEmitter

STAGE_ALIGNMENT = 128


def home_of(view: View) -> Expr:
    """The home of a view; inside a loop over all ranks, of one of them."""
    if view.home == ALL_RANKS:
        return symbol("other")
    assert isinstance(view.home, Expr)
    return view.home


class All:
    """What the schedule sends to all ranks by `via="multicast"` is stored, and notified, once, at an address where the
    heaps of all ranks lie one over the other. A store takes 16 bytes, so this needs rows of whole 16 bytes; for others,
    and for all roles of other schedules, a loop over the ranks stays."""

    def __init__(self, emitter: RoleEmitter) -> None:
        self.emitter, self.program, self.facts, self.role = emitter, emitter.program, emitter.facts, emitter.role

    def takes(self, view: View) -> bool:
        """Whether a view is stored and notified for all ranks at once: each of them waits for its own."""
        resource = self.role.resource
        if view.home != ALL_RANKS or not isinstance(resource, SMs) or resource.via != "multicast":
            return False
        last, width = view.index[-1], vector_of(self.program.tensor(view.tensor))
        if not isinstance(last, Range) or last.bounded or len(view.ranges) > 2:
            return False
        if width is None or (last.dim, width) not in self.facts.exact or (last.extent or width) % width:
            return False
        if view.tensor not in {s.tensor for s in self.program.signals}:
            return True
        return recipient(self.program.signals_of(view.tensor), view, home_of(view)) == (home_of(view), sympy.true)

    def put(self, view: View, block: Source) -> None:
        offsets, here = self.vectors(view)
        at = self.emitter.names.of("at", view.tensor)
        self.emitter.write.do(call("multicast_store", MULTICAST, at, offsets, block, here))

    def notify(self, view: View) -> None:
        signals = self.program.signals_of(view.tensor)
        cell = self.emitter.text(self.emitter.cell(signals, view, home_of(view)))
        at = self.emitter.names.of("signals", view.tensor)
        self.emitter.write.do(call("multicast_notify", MULTICAST, at, cell))

    def vectors(self, view: View) -> tuple[Source, Source]:
        """Where each 16 bytes of a block lie, in elements from the beginning of the tensor, and which of them exist."""
        tensor, ranges, text = self.program.tensor(view.tensor), view.ranges, self.emitter.text
        width, strides = vector_of(tensor), self.emitter.addresses.strides(tensor)
        assert width is not None
        offsets: list[Source] = []
        here: list[Source] = []
        for i, stride in zip(view.index, strides, strict=True):
            start = i.start if isinstance(i, Range) else i
            at = text(start)
            if isinstance(i, Range):
                assert i.extent is not None
                k = ranges.index(i)
                spread, wide = along(k, len(ranges)), width if k == len(ranges) - 1 else 1
                elements = arange(i.extent // wide)
                elements = source("{} * {}", elements, wide) if wide > 1 else elements
                at = elements if start == 0 else source("{} + {}", at, elements)
                if not fills(i, self.facts):
                    here.append(source("({} < {}){}", at, text(i.limit), spread))
                at = source("({}){}", at, spread) if spread else at
            elif start == 0:
                continue
            offsets.append(self.emitter.addresses.offset(at, stride))
        return joined(" + ", offsets), joined(" & ", here) if here else source("True")


# ---- ranks of other nodes ----------------------------------------------------------------------------------------


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


class Far:
    """What may go to another node is written twice, as a put for a far rank and as plain stores for a near one, and the
    table of heaps decides in the kernel. A put takes what lies in one piece, from the own heap to the same or another
    place of the peer's. So a copy is one put where its rows are whole, else one a row, and what registers hold is laid
    out in memory first."""

    def __init__(self, emitter: RoleEmitter) -> None:
        self.emitter, self.program, self.write, self.text = emitter, emitter.program, emitter.write, emitter.text

    def may_be(self, home: Expr | str | None) -> bool:
        """Whether a rank may be on another node."""
        return may_be_far(self.emitter.role, home)

    def with_puts(self, statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
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
        if notify.views != (target,) or not self.may_be(target.home) or self.may_be(copy.source.home):
            return False
        to, _ = recipient(self.program.signals_of(target.tensor), target, home_of(target))
        return not self._loops(copy) and to == home_of(target)

    def choose(self, home: Source, far: Callable[[], None], near: Callable[[], None]) -> None:
        """A branch on where a rank is."""
        with self.write.branch(call("is_far", HEAPS, home)):
            far()
        with self.write.otherwise():
            near()

    def check_load(self, s: Statement, view: View) -> None:
        """Raises FarAccessError for a load from a rank that may be far."""
        if self.may_be(view.home):
            raise FarAccessError(
                f"{view} may be on another node, and no network loads into registers: tk.copy it to a buffer of the "
                "reader's first, notify that, and read what a wait for it returns",
                s.site,
            )

    def store(self, s: Store) -> None:
        emitter = self.emitter
        value = emitter.value(emitter.code(s, s.value))
        stage = None if s.target.home != ALL_RANKS else self._stage(s.target, value)
        with emitter.homes(s.target):
            one = replace(s.target, home=home_of(s.target))
            self.choose(
                self.text(home_of(one)),
                lambda: self._put_block(one, stage or self._stage(one, value)),
                lambda: emitter.put(one, converted(value, emitter.dtype(one))),
            )

    def copies(self, s: Copy) -> bool:
        """Whether a copy is from or to a rank that may be far. Raises FarAccessError where it is between peers."""
        source, target = self.may_be(s.source.home), self.may_be(s.target.home)
        if (source and s.target.remote) or (target and s.source.remote):
            raise FarAccessError(
                f"from {s.source} to {s.target}: a network copies from the own memory, or to "
                "it; let one of the two ranks execute the tile (at=)",
                s.site,
            )
        return source or target

    def copy(self, s: Copy) -> None:
        if s.target.home == ALL_RANKS:
            return self._copy_to_all(s)
        there = s.target if self.may_be(s.target.home) else s.source
        return self.choose(self.text(home_of(there)), lambda: self._put(s), lambda: self._near(s))

    def _copy_to_all(self, s: Copy) -> None:
        """Far ranks first, since that takes longest; what near ones get is loaded once."""
        other = self.emitter.local("other")
        with self.write.loop(other, count_to(WORLD)), self.write.branch(call("is_far", HEAPS, name(other))):
            self._put(s)
        self.emitter.only_near = True
        self._near(s)
        self.emitter.only_near = False

    def _near(self, s: Copy) -> None:
        emitter = self.emitter
        emitter.copy(s)
        if isinstance(s, CopyNotify):
            emitter.only_near, before = True, emitter.only_near
            emitter.notify(s.target)
            emitter.only_near = before

    # ---- puts

    def _put(self, s: Copy) -> None:
        """Puts or fetches, one a piece."""
        loops, pieces = self._loops(s), self._pieces(s)
        with ExitStack() as opened:
            for r in loops:
                opened.enter_context(self._along(r))
            count = self._count(pieces)
            target, origin = self._corner(s.target, loops), self._corner(s.source, loops)
            token = None if self.emitter.publishing else self.emitter.token(s.source)
            origin = source("{} + {}", origin, token) if token else origin
            other = self.text(home_of(s.source if s.source.remote else s.target))
            if isinstance(s, CopyNotify):
                signal = self._own_signal(s.target)
                self.write.do(call("put_notify_far", HEAPS, other, target, origin, count, signal))
            else:
                verb = "fetch_far" if s.source.remote else "put_far"
                self.write.do(call(verb, HEAPS, other, target, origin, count))

    def _along(self, r: Range) -> ExitStack:
        """A loop over the rows of a range, that is open."""
        counter = self.emitter.local(f"{r.dim}_at")
        opened = ExitStack()
        opened.enter_context(self.write.loop(counter, count_to(self.text(r.start), self.text(r.stop))))
        return opened

    def _stage(self, target: View, value: Source) -> Source:
        """Lays a block out in this worker's part of the stage, once what was sent from there has left; its place."""
        emitter, dtype = self.emitter, self.emitter.dtype(target)
        part = source("{} + tl.program_id(0) * {}", emitter.names.of("stage"), stage_bytes(self.program))
        stage = emitter.addresses.hoist(f"stage_{dtype}", emitter.addresses.peer(OWN, part, dtype))
        shape = _extents(target.ranges)
        inside = joined(
            " + ",
            [source("{}{} * {}", arange(n), along(k, len(shape)), prod(shape[k + 1 :])) for k, n in enumerate(shape)],
        )
        offsets = emitter.addresses.hoist(f"stage_{'_by_'.join(map(str, shape))}", inside)
        mask = emitter.addresses.block(target, OWN).mask
        self.write.do(call("complete_far"))
        self.write.do(stored(source("{} + {}", stage, offsets), converted(value, dtype), mask))
        return stage

    def _put_block(self, target: View, stage: Source) -> None:
        """Sends a block that lies in the stage, a row at a time."""
        ranges = target.ranges
        loops = ranges[: len(ranges) - min(1, self._contiguous(target))]
        origin = stage
        with ExitStack() as opened:
            for k, r in enumerate(loops):
                opened.enter_context(self._along(r))
                at, row = name(self.emitter.local(f"{r.dim}_at")), prod(_extents(ranges[k + 1 :]))
                origin = source("{} + ({} - ({})) * {}", origin, at, self.text(r.start), row)
            count = self._count(ranges[len(loops) :])
            there = self.text(home_of(target))
            self.write.do(call("put_far", HEAPS, there, self._corner(target, loops), origin, count))

    def _count(self, pieces: tuple[Range, ...]) -> Source:
        """How many elements lie in one piece."""
        if not pieces:
            return ONE
        return joined(" * ", [source("({})", self.text(r.stop - r.start)) for r in pieces])

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

    def _corner(self, view: View, loops: tuple[Range, ...]) -> Source:
        """Where a piece of a view begins, as a place of the own heap."""
        index = tuple(_at(i, loops) if isinstance(i, Range) else i for i in view.index)
        return self.emitter.addresses.block(replace(view, index=index), OWN).pointer

    # ---- signals

    def _own_signal(self, view: View) -> Source:
        """The signal of a view, as a place of the own heap: of its home's in the same place there."""
        signals = self.program.signals_of(view.tensor)
        return self.emitter.signal(signals, OWN, self.emitter.cell(signals, view, home_of(view)))

    def order(self, view: View) -> None:
        """What goes before a notification: who is told may be another than the home that was put to, and a network does
        not order that by itself."""
        to, _ = recipient(self.program.signals_of(view.tensor), view, home_of(view))
        if self.may_be(view.home) and to != home_of(view):
            self.write.do(call("complete_far"))

    def give(self, signals: Signals, to: Expr, cell: Expr, near: Callable[[], None]) -> None:
        """One notification of a rank that may be far."""
        where, word = self.text(to), self.emitter.signal(signals, OWN, cell)
        self.choose(where, lambda: self.write.do(call("notify_far", HEAPS, where, word)), near)


def _at(r: Range, loops: tuple[Range, ...]) -> Expr:
    """Where loops over the rows of a copy are along a range of either end, or where that begins."""
    for loop in loops:
        if loop.dim == r.dim:
            return symbol(f"{r.dim}_at")
        if loop.same_rows(r):
            return symbol(f"{loop.dim}_at") - loop.start + r.start
    return r.start
