"""The ways to reach memory: near, by stores; all ranks of a node at once, by multicast; far, by puts (`far.py`).

They are strategies with one interface, `Reach`. A role may use all of them. On a network, a view of all ranks is put to
the ranks of other nodes. Inside the own node it is multicast, or stored to one rank after the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import sympy

from tilelink.backend.addresses import along, arange
from tilelink.backend.bulk import Bulk, Lines, Piece, bulk_writes, stages
from tilelink.backend.copies import through_registers
from tilelink.backend.facts import fills, vector_of
from tilelink.backend.kernel import Kind, Source, call, converted
from tilelink.backend.parameters import HEAPS, MULTICAST, WORLD
from tilelink.backend.pipelining import DescribedBlock
from tilelink.backend.signals import cell_of
from tilelink.frontend.cells import WAITER, recipient
from tilelink.frontend.expressions import Expr, own
from tilelink.frontend.ir import ALL_RANKS, Copy, Notify, Range, Store, View, Write

if TYPE_CHECKING:
    from tilelink.backend.emit import RoleEmitter

OTHER = own("other")
"""One of the ranks in a loop over all ranks."""
Reached = Write | Notify
Corner = list[Source]
"""Where a block begins in the tensor that a descriptor describes, along each dimension."""


class Reach(ABC):
    """A way to reach memory. The emitter asks each whether it takes a statement (a notification has one view)."""

    def __init__(self, emitter: RoleEmitter) -> None:
        self.emitter, self.program, self.write, self.text = emitter, emitter.program, emitter.write, emitter.text

    @abstractmethod
    def takes(self, s: Reached) -> bool: ...

    @abstractmethod
    def bring(self, s: Write) -> None: ...

    @abstractmethod
    def notify(self, s: Notify) -> None: ...


class ByStores(Reach):
    """A way to reach memory by stores of blocks that registers hold."""

    @abstractmethod
    def put(self, view: View, block: Source, moved: Source | None) -> None:
        """Writes a store of a block in registers to a view. `moved`: which of its rows are stored; None for all."""

    def bring(self, s: Write) -> None:
        match s:
            case Store():
                emitter, all_ranks = self.emitter, s.target.home == ALL_RANKS
                value = emitter.value(s) if all_ranks else emitter.code(s, s.value)
                self.put(s.target, converted(value, self.emitter.dtype(s.target)), self.emitter.moved(s.where))
            case Copy():
                through_registers(self.emitter, s, self.put)


def home_of(view: View) -> Expr:
    """The home of a view; for a view of all ranks, the rank of the loop over them."""
    if view.home == ALL_RANKS:
        return OTHER
    assert isinstance(view.home, Expr)
    return view.home


class Near(ByStores):
    """Memory that is mapped: stores, and atomic additions to signals. A view of all ranks is a loop over them; with
    `of_node`, over the ranks of the own node."""

    def __init__(self, emitter: RoleEmitter, *, of_node: bool = False) -> None:
        super().__init__(emitter)
        self.of_node = of_node

    def takes(self, s: Reached) -> bool:
        return True

    def put(self, view: View, block: Source, moved: Source | None) -> None:
        with self.homes(view) as home:
            at = self.emitter.addresses.block(view, home, hoisted=not self.emitter.accumulates, moved=moved)
            self.write.do(call(self.emitter.store, at.pointer, block, mask=at.mask))

    def notify(self, s: Notify) -> None:
        (view,) = s.views
        with self.told(view) as (to, cell):
            self.give(view, to, cell)

    def give(self, view: View, to: Expr, cell: Expr) -> None:
        """Writes one notification of a rank."""
        signals = self.program.signals_of(view.tensor)
        bulk = "True" if self.emitter.stores_in_bulk else None
        signal = self.emitter.signal(signals, self.text(to), cell)
        self.write.do(call("notify", signal, f'"{signals.scope}"', bulk=bulk))

    def sum(self, view: View, token: Source | None) -> Source:
        """The sum of a view of all ranks, in its dtype, added up in float32. The loads depend on `token`."""
        shape = f"({', '.join(str(r.extent) for r in view.ranges)},)"
        total = self.write.set(self.emitter.made("total", "total", shape), call("tl.zeros", shape, "tl.float32"))
        with self.homes(view) as home:
            at = self.emitter.addresses.block(view, home, token=token)
            block = call("tl.load", at.pointer, mask=at.mask, other="0" if at.mask else None)
            self.write.set(total, block, operator="+=")
        return converted(total, self.emitter.dtype(view))

    @contextmanager
    def homes(self, view: View) -> Iterator[Source | None]:
        """Yields the home of a view, None for the own rank. Opens a loop over the ranks for a view of all."""
        if view.home != ALL_RANKS:
            yield self.text(home_of(view)) if view.remote else None
            return
        other = self.emitter.local(OTHER.name)
        with self.write.loop(other, WORLD), ExitStack() as near:
            if self.of_node:
                near.enter_context(self.write.branch(f"not {call('is_far', HEAPS, other)}"))
            yield other

    @contextmanager
    def told(self, view: View) -> Iterator[tuple[Expr, Expr]]:
        """Yields the rank that gets a notification of a view, and the number of the signal. That rank is the home, or
        each rank for which a condition holds, in a loop over them."""
        signals, home = self.program.signals_of(view.tensor), home_of(view)
        with self.homes(view), ExitStack() as opened:
            to, condition = recipient(signals, view, home)
            if to is None:
                to = WAITER
                opened.enter_context(self.write.loop(self.emitter.local(WAITER.name), WORLD))
                if condition != sympy.true:
                    opened.enter_context(self.write.branch(self.text(condition)))
            yield to, cell_of(signals, view, home)


def loaded(block: DescribedBlock, descriptor: Source, corner: Corner) -> Source:
    """A load of a block through a descriptor."""
    value = f"{descriptor}.load([{', '.join(corner)}])"
    value += f".reshape({', '.join(map(str, block.matrix))})" if len(block.shape) > 2 else ""
    return call("tl.trans", value) if block.turned else value


class InBulk(Near):
    """Memory of one rank that the copy engine for tiles reads and writes (`bulk.py`)."""

    def __init__(self, emitter: RoleEmitter) -> None:
        super().__init__(emitter)
        self.taken: dict[Reached, Bulk] = dict(bulk_writes(emitter.role, self.program, emitter.facts))

    def takes(self, s: Reached) -> bool:
        return s in self.taken

    def bring(self, s: Write) -> None:
        bulk = self.taken[s]
        match s, bulk:
            case Copy(), Bulk(lines=Lines()):
                self.copy(bulk, self.emitter.token(s.source))
            case Store(), Bulk():
                value = converted(self.emitter.code(s, s.value), self.emitter.dtype(s.target))
                spread = call("tl.broadcast_to", value, str(bulk.target.block.matrix))
                self.store(bulk.target, *self.described(bulk.target), spread)

    def copy(self, bulk: Bulk, token: Source | None) -> None:
        """Writes a pipelined loop over pieces of lines. `token`: the token that loads depend on."""
        emitter, source, lines = self.emitter, bulk.source, bulk.lines
        assert source is not None and lines is not None
        read, stored = self.described(source, token), self.described(bulk.target)
        number = stages(bulk, emitter.role, self.program, emitter.target)
        bounds = self.text(lines.start), self.text(lines.stop), lines.step
        with self.write.loop(emitter.local(str(lines.at)), *bounds, of="tl.range", num_stages=number):
            self.store(bulk.target, *stored, loaded(source.block, *read))

    def described(self, piece: Piece, token: Source | None = None) -> tuple[Source, Corner]:
        """The descriptor of a piece, under a name if it is one of several, and where the piece begins in it."""
        descriptor, corner = self.emitter.described(piece.block, piece.view, token)
        if piece.view.remote:
            made = self.emitter.made(f"{piece.view.tensor}_there", "there", piece.view.tensor, piece.block.shape)
            descriptor = self.write.set(made, descriptor, Kind.TEMPORARY)
        return descriptor, corner

    def store(self, piece: Piece, descriptor: Source, corner: Corner, value: Source) -> None:
        shape = piece.block.shape
        value += f".reshape({', '.join(map(str, shape))})" if len(shape) > 2 else ""
        self.write.do(f"{descriptor}.store([{', '.join(corner)}], {value})")


class All(ByStores):
    """Accesses to an address where the heaps of all ranks of a node lie one over the other, for roles with
    `via="multicast"`. A store or notification reaches all heaps; a load returns the sum over them. Each access moves 16
    bytes, so rows must be multiples of 16 bytes. Other rows, and roles of other schedules, use a loop over the
    ranks."""

    def takes(self, s: Reached) -> bool:
        """Whether a statement goes to all ranks at once: if ranks wait for its view, each waits for its own copy."""
        view = s.views[0] if isinstance(s, Notify) else s.target
        if not self.reaches(view) or (not isinstance(s, Notify) and s.where is not None):
            return False
        if view.tensor not in {s.tensor for s in self.program.signals}:
            return True
        return recipient(self.program.signals_of(view.tensor), view, home_of(view)) == (home_of(view), sympy.true)

    def reaches(self, view: View) -> bool:
        """Whether a view of all ranks is one access: the schedule asks for it, and its rows are whole 16 bytes."""
        if view.home != ALL_RANKS or self.emitter.role.resource.via != "multicast":
            return False
        last, width = view.index[-1], vector_of(self.program.tensor(view.tensor))
        if not isinstance(last, Range) or last.bounded or len(view.ranges) > 2:
            return False
        exact = self.emitter.facts.exact
        return width is not None and (last.dim, width) in exact and (last.extent or width) % width == 0

    def put(self, view: View, block: Source, moved: Source | None) -> None:
        assert moved is None, "a multicast takes whole blocks"
        offsets, here = self.vectors(view)
        at = self.emitter.names.of("at", view.tensor)
        self.write.do(call("multicast_store", MULTICAST, at, offsets, block, here))

    def notify(self, s: Notify) -> None:
        (view,) = s.views
        cell = self.text(cell_of(self.program.signals_of(view.tensor), view, home_of(view)))
        at = self.emitter.names.of("signals", view.tensor)
        self.write.do(call("multicast_notify", MULTICAST, at, cell))

    def sum(self, view: View, token: Source | None) -> Source:
        """The same as `Near.sum`."""
        offsets, here = self.vectors(view)
        at, offsets = self.emitter.names.of("at", view.tensor), f"{offsets} + {token}" if token else offsets
        return call("multicast_sum", MULTICAST, at, offsets, here, f"tl.{self.emitter.dtype(view)}")

    def vectors(self, view: View) -> tuple[Source, Source]:
        """The offset of each 16 bytes of a block, in elements of the tensor, and which of them exist."""
        tensor, ranges = self.program.tensor(view.tensor), view.ranges
        width, strides = vector_of(tensor), self.emitter.addresses.strides(tensor)
        assert width is not None
        offsets: list[Source] = []
        here: list[Source] = []
        for i, stride in zip(view.index, strides, strict=True):
            start = i.start if isinstance(i, Range) else i
            at = self.text(start)
            if isinstance(i, Range):
                assert i.extent is not None
                k = ranges.index(i)
                spread, wide = along(k, len(ranges)), width if k == len(ranges) - 1 else 1
                elements = arange(i.extent // wide)
                elements = f"{elements} * {wide}" if wide > 1 else elements
                at = elements if start == 0 else f"{at} + {elements}"
                if not fills(i, self.emitter.facts):
                    here.append(f"({at} < {self.text(i.limit)}){spread}")
                at = f"({at}){spread}" if spread else at
            elif start == 0:
                continue
            offsets.append(self.emitter.addresses.offset(at, stride))
        return " + ".join(offsets), " & ".join(here) if here else "True"
