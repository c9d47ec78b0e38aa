"""The way to reach ranks of other nodes: by puts over a network (`tilelink.backend.reach` has the others)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import sympy

from tilelink.backend.addresses import along, arange
from tilelink.backend.facts import Facts
from tilelink.backend.kernel import ONE, Source, call, converted
from tilelink.backend.parameters import HEAPS, WORLD
from tilelink.backend.parameters import RANK as OWN
from tilelink.backend.reach import OTHER, All, Near, Reach, Reached, home_of
from tilelink.backend.signals import cell_of
from tilelink.errors import FarAccessError
from tilelink.frontend.bounds import below, ends_of
from tilelink.frontend.cells import recipient
from tilelink.frontend.expressions import PER_NODE, RANK, Expr, node_of, of_dim, own, place_of, rank_at
from tilelink.frontend.ir import (
    ALL_RANKS,
    Copy,
    For,
    Notify,
    Range,
    Role,
    Statement,
    Store,
    TileProgram,
    View,
    Write,
    every,
)
from tilelink.frontend.values import ITEM_SIZE

if TYPE_CHECKING:
    from tilelink.backend.emit import RoleEmitter

STAGE_ALIGNMENT = 128
_NODE, _PLACE = own("node"), own("place")
"""Of the executing rank."""


def stage_bytes(program: TileProgram) -> int:
    """Bytes on the heap that a worker has for a block that it sends from registers to another node."""
    stores = [s for role in program.roles for s in every(Store, role.body) if s.target.remote]
    sizes = [prod(_extents(s.target.ranges)) * ITEM_SIZE[program.tensor(s.target.tensor).dtype] for s in stores]
    return -(-max(sizes, default=0) // STAGE_ALIGNMENT) * STAGE_ALIGNMENT


def may_be_far(role: Role, home: Expr | str | None, facts: Facts) -> bool:
    """Whether a rank may be on another node than the executing rank: its place on this node is not provably one of the
    places that a node has."""
    if not isinstance(home, Expr):
        return True
    place = home.xreplace({node_of(RANK): _NODE, place_of(RANK): _PLACE}).xreplace({RANK: rank_at(_NODE, _PLACE)})
    known = {} if facts.per_node is None else {PER_NODE: sympy.Integer(facts.per_node)}
    place = sympy.expand((place - rank_at(_NODE, 0)).xreplace(known))
    ends = {**ends_of(role.walk, every(For, role.body)), _PLACE: frozenset([PER_NODE])}
    ends = {e: frozenset(end.xreplace(known) for end in given) for e, given in ends.items()}
    return not below(place, PER_NODE.xreplace(known), ends)


def _extents(ranges: tuple[Range, ...]) -> list[int]:
    """The lengths of a block that is stored, along each of its dimensions."""
    return [r.extent for r in ranges if r.extent is not None]


@dataclass(frozen=True, kw_only=True)
class CopyNotify(Copy):
    """A copy and the notification of its target, which follows directly. A network does both at once."""

    notify: Notify


class Far(Reach):
    """Reaches ranks that may be on another node. Each statement is written twice: as a put for a far rank, and in the
    `near` way for a near one. The kernel decides by the table of heaps. A put moves one contiguous piece from the own
    heap to a place in the peer's heap. A copy is therefore one put if its rows are whole, and else one put for each
    row. A block in registers is first laid out in memory."""

    def __init__(self, emitter: RoleEmitter) -> None:
        super().__init__(emitter)
        self.world, self.node = Near(emitter), Near(emitter, of_node=True)

    def may_be(self, home: Expr | str | None) -> bool:
        """Whether a rank may be on another node."""
        return may_be_far(self.emitter.role, home, self.emitter.facts)

    def takes(self, s: Reached) -> bool:
        """Whether a statement may go to another node. All notifications may, because another rank than the home may get
        them. Raises FarAccessError for a copy between peers."""
        if isinstance(s, Notify):
            return True
        target = self.may_be(s.target.home)
        if not isinstance(s, Copy):
            return target
        source = self.may_be(s.source.home)
        for by in s.source.picked_by if source or target else ():
            self.check_load(s, by)
        if s.where is not None:
            self.check_load(s, s.where)
        if (source and s.target.remote) or (target and s.source.remote):
            raise FarAccessError(
                f"from {s.source} to {s.target}: a network copies from or to the memory of the rank "
                "that executes the tile; let one of the two ranks execute it (at=)",
                s.site,
            )
        return source or target

    def near(self, s: Reached) -> Near | All:
        """The way in which a statement reaches the ranks of the own node."""
        return self.emitter.all if self.emitter.all and self.emitter.all.takes(s) else self.node

    def check_load(self, s: Statement, view: View) -> None:
        """Raises FarAccessError for a load from a rank that may be far."""
        if self.may_be(view.home):
            raise FarAccessError(
                f"{view} may be on another node, and no network loads into registers: tk.copy it to a buffer of the "
                "reader's first, notify that, and read what a wait for it returns; or let its rank execute the tile "
                "(at=)",
                s.site,
            )

    def with_puts(self, statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """The statements, in which a copy and the notification of its target become one `CopyNotify`."""
        made: list[Statement] = []
        for s in statements:
            before = made[-1] if made else None
            if isinstance(s, Notify) and type(before) is Copy and self._is_one_put(before, s):
                made[-1] = CopyNotify(before.site, before.source, target=before.target, notify=s)
            else:
                made.append(s)
        return tuple(made)

    def _is_one_put(self, copy: Copy, notify: Notify) -> bool:
        target = copy.target
        if notify.views != (target,) or not self.may_be(target.home) or self.may_be(copy.source.home):
            return False
        if copy.where is not None:  # a row at a time
            return False
        return self._contiguous(copy.source, target) == len(target.ranges) and self._told(target) == home_of(target)

    # ---- far, and near

    def if_far(self, home: Source) -> AbstractContextManager[None]:
        return self.write.branch(call("is_far", HEAPS, home))

    @contextmanager
    def far_ranks(self) -> Iterator[Source]:
        """Opens a loop over the ranks of other nodes, and yields the rank."""
        other = self.emitter.local(OTHER.name)
        with self.write.loop(other, WORLD), self.if_far(other):
            yield other

    def bring(self, s: Write) -> None:
        match s:
            case Store():
                self.store(s)
            case Copy():
                self.copy(s)

    def store(self, s: Store) -> None:
        emitter, near, one = self.emitter, self.near(s), replace(s.target, home=home_of(s.target))
        value = emitter.value(s)
        block, moved = converted(value, emitter.dtype(one)), emitter.moved(s.where)
        stage = self._stage(s.target, value) if s.target.home == ALL_RANKS else None
        if stage and near is not self.node:
            with self.far_ranks():
                self._put_staged(one, stage, s.where)
            return near.put(s.target, block, moved)
        with self.world.homes(s.target):
            with self.if_far(self.text(home_of(one))):
                self._put_staged(one, stage or self._stage(one, value), s.where)
            with self.write.otherwise():
                self.node.put(one, block, moved)

    def copy(self, s: Copy) -> None:
        """Writes a copy. To all ranks, far ones come first, since they take longest; near ones share one load."""
        if s.target.home == ALL_RANKS:
            with self.far_ranks():
                self._put(s)
            return self._near(s)
        with self.if_far(self.text(home_of(s.target if self.may_be(s.target.home) else s.source))):
            self._put(s)
        with self.write.otherwise():
            self._near(s)

    def _near(self, s: Copy) -> None:
        near = self.near(s)
        near.bring(s)
        if isinstance(s, CopyNotify):
            near.notify(s.notify)

    def notify(self, s: Notify) -> None:
        """Writes a notification. One that does not go to the home waits for puts: a network does not order the two."""
        (view,), near = s.views, self.near(s)
        if self.may_be(view.home) and self._told(view) != home_of(view):
            self.write.do(call("complete_far"))
        if near is not self.node:
            with self.far_ranks() as other:
                self._notify(other, self._signal(view))
            return near.notify(s)
        with self.world.told(view) as (to, cell):
            if not self.may_be(to):
                return self.node.give(view, to, cell)
            where, word = self.text(to), self._signal(view, cell)
            with self.if_far(where):
                self._notify(where, word)
            with self.write.otherwise():
                self.node.give(view, to, cell)

    def _notify(self, rank: Source, word: Source) -> None:
        self.write.do(call("notify_far", HEAPS, rank, word))

    def _told(self, view: View) -> Expr | None:
        """The rank that gets a notification of a view, if it is one rank; else None."""
        return recipient(self.program.signals_of(view.tensor), view, home_of(view))[0]

    def _signal(self, view: View, cell: Expr | None = None) -> Source:
        """The signal of a view, as a place in the own heap. A network names the same place in a peer's heap by it."""
        signals = self.program.signals_of(view.tensor)
        return self.emitter.signal(signals, OWN, cell_of(signals, view, home_of(view)) if cell is None else cell)

    # ---- puts

    def _put(self, s: Copy) -> None:
        """Writes the puts of a copy, or its fetches, one for each piece."""
        with self._pieces(s.source.ranges, self._contiguous(s.source, s.target), s.where) as (loops, count):
            target, origin = self._corner(s.target, loops), self._corner(s.source, loops)
            token = None if self.emitter.publishing else self.emitter.token(s.source)
            origin = f"{origin} + {token}" if token else origin
            given = HEAPS, self.text(home_of(s.source if s.source.remote else s.target)), target, origin, count
            if isinstance(s, CopyNotify):
                self.write.do(call("put_notify_far", *given, self._signal(s.target)))
            else:
                self.write.do(call("fetch_far" if s.source.remote else "put_far", *given))

    @contextmanager
    def _pieces(
        self, ranges: tuple[Range, ...], last: int, where: View | None
    ) -> Iterator[tuple[tuple[Range, ...], Source]]:
        """Opens loops over all ranges of a copy but the `last` ones. Yields these loops, and the number of elements of
        a piece. `where`: the integers that say which rows are moved, if any do."""
        loops = ranges[: len(ranges) - (last if where is None else min(last, len(ranges) - 1))]
        with ExitStack() as opened:
            for r in (loop.walked for loop in loops):
                bounds = self.text(r.start), self.text(r.stop)
                opened.enter_context(self.write.loop(self.emitter.local(of_dim(r.dim, "at").name), *bounds))
            for r, by in ((r, r.by) for r in loops if r.by is not None):
                row = self.emitter.pick_one(r, _index_at(by, loops))
                opened.enter_context(self.write.branch(f"{row} >= 0"))
            if where is not None:
                moved = self.emitter.integer(_index_at(where, loops))
                opened.enter_context(self.write.branch(f"{moved} >= 0"))
            extents = [f"({self.text(r.stop - r.start)})" for r in ranges[len(loops) :]]
            yield loops, " * ".join(extents) if extents else ONE

    def _stage(self, target: View, value: Source) -> Source:
        """Writes a block to this worker's part of the stage, after earlier puts from it; returns its place."""
        emitter, dtype = self.emitter, self.emitter.dtype(target)
        part = f"{emitter.names.of('stage')} + tl.program_id(0) * {stage_bytes(self.program)}"
        stage = emitter.addresses.hoist(f"stage_{dtype}", emitter.addresses.peer(OWN, part, dtype))
        shape = _extents(target.ranges)
        inside = " + ".join(
            [f"{arange(n)}{along(k, len(shape))} * {prod(shape[k + 1 :])}" for k, n in enumerate(shape)]
        )
        offsets = emitter.addresses.hoist(f"stage_{'_by_'.join(map(str, shape))}", inside)
        mask = emitter.addresses.block(target, OWN).mask
        self.write.do(call("complete_far"))
        self.write.do(call("tl.store", f"{stage} + {offsets}", converted(value, dtype), mask=mask))
        return stage

    def _put_staged(self, view: View, block: Source, where: View | None) -> None:
        """Writes puts of a block that lies in the stage, one for each row."""
        origin, ranges = block, view.ranges
        with self._pieces(ranges, min(1, self._contiguous(view)), where) as (loops, count):
            for k, r in enumerate(loops):
                at, row = self.emitter.local(of_dim(r.dim, "at").name), prod(_extents(ranges[k + 1 :]))
                origin = f"{origin} + ({at} - ({self.text(r.start)})) * {row}"
            there = self.text(home_of(view))
            self.write.do(call("put_far", HEAPS, there, self._corner(view, loops), origin, count))

    def _contiguous(self, *views: View) -> int:
        """How many of their last ranges are one contiguous piece in all views: whole ones, and one before them."""
        counts = []
        for view in views:
            sharded, count = self.program.tensor(view.tensor).sharded, 0
            for k, i in reversed([*enumerate(view.index)]):
                if not isinstance(i, Range) or i.by is not None:
                    break
                count += 1
                if not i.whole or k == sharded:
                    break
            counts.append(count)
        return min(counts)

    def _corner(self, view: View, loops: tuple[Range, ...]) -> Source:
        """Where a piece of a view begins, as a place in the own heap."""
        return self.emitter.addresses.block(_index_at(view, loops), OWN).pointer


def _index_at(view: View, loops: tuple[Range, ...]) -> View:
    """The element of a view at the variables of the loops over the rows of a copy."""
    return replace(view, index=tuple(_at(i, loops) if isinstance(i, Range) else i for i in view.index))


def _at(r: Range, loops: tuple[Range, ...]) -> Expr:
    """The place along a range of either end of a copy: of the loop over its rows, or the range's beginning."""
    if r.by is not None:
        return r.start + of_dim(r.dim, "row")
    for loop in (loop.walked for loop in loops):
        if loop.dim == r.dim:
            return of_dim(r.dim, "at")
        if loop.same_rows(r):
            return of_dim(loop.dim, "at") - loop.start + r.start
    return r.start
