"""The network of a run: one-sided transfers that a program starts, and that are late, in no order.

Every transfer is an agent of its own: it reads its source, and writes its target, when the schedule pleases, in pieces.
What it does on the side of the program that started it comes after all that this had done. What it does at the peer
comes after what the program had seen of others, but only after those of its own accesses that a fence stands behind;
and after the transfers to this peer, of the same context, before a fence. (OpenSHMEM 1.5, 9.10: memory ordering.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilelink.emulator import sites
from tilelink.emulator.accesses import Accesses
from tilelink.emulator.memory import Array, Place, bytes_at
from tilelink.emulator.operation import Mode
from tilelink.emulator.ordering import Moment, Ordering, Strand
from tilelink.emulator.programs import Program
from tilelink.errors import ArgumentError, RankError

FIRST_KEY = -(1 << 60)
"""Keys on which programs wait for transfers: none is an address or that of a stream."""
PIECES = 2
"""In so many pieces a transfer reads and writes."""
Change = Callable[[Array], Any]
"""What an atomic makes of an old value; None leaves it."""


@dataclass(frozen=True)
class Atomic:
    """What is done to a word at once."""

    word: Place
    mode: Mode
    change: Change


@dataclass(eq=False)
class Transfer:
    """A transfer under way. `agent`: who does it, a program with two strands in one slot. `issued`: the slot and the
    clock of the strand that started it, then. `delivers`: fences order it, as they do puts and atomics, and not what is
    started to be brought here. `fences`: the slots and clocks of the strands that fenced it. `sent`, `end`: the moments
    at which its source was read, and at which it was complete. `value`: what it fetched."""

    accesses: Accesses
    agent: Program
    near: Strand
    far: Strand
    pe: int
    context: int
    key: int
    issued: tuple[int, int]
    lane: object
    delivers: bool
    fences: list[tuple[int, int]] = field(default_factory=list)
    sent: Moment | None = None
    end: Moment | None = None
    value: Array | None = None

    def go(self, strand: Strand) -> Moment:
        """What comes next is done on a strand, and is later than all before; the moment before it."""
        before = self.agent.strand.publish()
        strand.clock[strand.slot] = self.agent.strand.clock[strand.slot]
        self.agent.strand = strand
        return before

    def read(self, source: Place) -> list[Array]:
        """What is in memory, in pieces."""
        return [self.accesses.read(piece) for piece in source.pieces(PIECES)]

    def write(self, target: Place, values: list[Array]) -> None:
        """Stores pieces."""
        for piece, block in zip(target.pieces(PIECES), values, strict=True):
            self.accesses.write(piece, block)

    def do(self, atomic: Atomic) -> Array:
        """Does an atomic; the old value."""
        word = atomic.word
        memory = bytes_at(word.address, word.dtype.itemsize).view(word.dtype)

        def apply() -> Array:
            old = memory.copy()
            new = atomic.change(old)
            if new is not None:
                memory[:] = new
            return old

        self.accesses.pause()
        return self.accesses.atomic(atomic.mode, word.pointers(), word.dtype, apply)


class Network:
    """All transfers of a run. Its operations are called by the program that runs, and act for the rank of that."""

    def __init__(self, accesses: Accesses, ordering: Ordering, world: int) -> None:
        self.accesses, self.ordering, self.world = accesses, ordering, world
        # By rank: all transfers, and those whose lane no other one has taken.
        self._transfers: list[list[Transfer]] = [[] for _ in range(world)]
        self._with_lane: list[list[Transfer]] = [[] for _ in range(world)]
        self._started = 0

    @property
    def program(self) -> Program:
        """The program that runs."""
        assert self.accesses.program is not None
        return self.accesses.program

    def put(
        self, name: str, target: Place, source: Place | Array, pe: int, context: int, signal: Atomic | None = None
    ) -> Transfer:
        """Starts to write what is in memory (or an array) to a peer; then, if there is a signal, to change that."""
        there = self._there(name, target, pe)
        signal = signal and replace(signal, word=self._there(name, signal.word, pe))

        def work(transfer: Transfer) -> None:
            values = transfer.read(source) if isinstance(source, Place) else [source]
            transfer.sent = transfer.go(transfer.far)
            self._wake(transfer)
            self.accesses.delay()
            transfer.write(there, values)
            if signal is not None:
                transfer.do(signal)

        return self._start(name, pe, context, True, work)

    def get(self, name: str, target: Place | None, source: Place, pe: int, context: int) -> Transfer:
        """Starts to read from a peer, to memory or, without a target, to `value`."""
        there = self._there(name, source, pe)

        def work(transfer: Transfer) -> None:
            transfer.go(transfer.far)
            values = transfer.read(there)
            self.accesses.delay()
            transfer.go(transfer.near)
            if target is None:
                transfer.value = np.concatenate(values)
            else:
                transfer.write(target, values)

        return self._start(name, pe, context, False, work)

    def atomic(self, name: str, atomic: Atomic, pe: int, context: int, fetch: Place | None = None) -> Transfer:
        """Starts an atomic on a word of a peer. The old value goes to `value`, or to memory, as a plain store."""
        there = replace(atomic, word=self._there(name, atomic.word, pe))

        def work(transfer: Transfer) -> None:
            transfer.go(transfer.far)
            transfer.value = transfer.do(there)
            self.accesses.delay()
            transfer.go(transfer.near)
            if fetch is not None:
                transfer.write(fetch, [transfer.value])

        return self._start(name, pe, context, fetch is None, work)

    def fence(self, context: int) -> None:
        """What this rank delivers next to a peer, in a context, comes there after what it has started to deliver."""
        strand = self.program.strand
        started = [t for t in self._seen(context) if t.delivers and not (t.end and strand.follows(t.end))]
        now = strand.slot, int(strand.publish().clock[strand.slot])
        self.program.fenced = now[1]
        for transfer in started:
            if not any(strand.after(*fence) for fence in transfer.fences):
                transfer.fences.append(now)

    def quiet(self, context: int) -> None:
        """Waits until all that this rank had started in a context is complete."""
        for transfer in self._seen(context):
            self.complete(transfer)
        strand = self.program.strand
        self.program.fenced = int(strand.publish().clock[strand.slot])

    def sent(self, transfer: Transfer) -> None:
        """Waits until the source of a transfer may be written to again."""
        self._until(transfer, lambda: transfer.sent)

    def complete(self, transfer: Transfer) -> None:
        """Waits until a transfer is complete, on both sides."""
        self._until(transfer, lambda: transfer.end)

    # ---- inside

    def _start(self, name: str, pe: int, context: int, delivers: bool, work: Callable[[Transfer], None]) -> Transfer:
        me, accesses = self.program, self.accesses
        rank, strand = me.who.rank, me.strand
        same = [t for t in self._transfers[rank] if (t.pe, t.context) == (pe, context) and delivers]
        before = [t for t in same if any(strand.after(*fence) for fence in t.fences)]
        issued = strand.publish()
        distant = Moment(issued.clock.copy(), issued.time)
        distant.clock[strand.slot] = me.fenced
        lane, who = self._lane(strand), me.who._replace(agent=name)
        near, far = (self.ordering.strand(who, lane, start) for start in (issued, distant))
        agent = Program(me.launch, near, sites.current())
        key, self._started = FIRST_KEY + self._started, self._started + 1
        begun = strand.slot, int(issued.clock[strand.slot])
        transfer = Transfer(accesses, agent, near, far, pe, context, key, begun, lane, delivers)
        self._transfers[rank].append(transfer)
        self._with_lane[rank].append(transfer)

        def body() -> None:
            accesses.enter(agent)
            accesses.delay()
            for earlier in before:
                while earlier.end is None:
                    accesses.scheduler.block([earlier.key])
                far.follow(earlier.end)
            accesses.enter(agent)
            work(transfer)
            transfer.end = near.now().join(far.now())
            self._wake(transfer)

        accesses.scheduler.spawn(body, rank, f"{name} of {who.launch}[{who.program}]")
        accesses.pause()
        return transfer

    def _seen(self, context: int) -> list[Transfer]:
        """The transfers of this rank in a context that were started before what the program does now."""
        me = self.program
        return [t for t in self._transfers[me.who.rank] if t.context == context and me.strand.after(*t.issued)]

    def _until(self, transfer: Transfer, moment: Callable[[], Moment | None]) -> None:
        me = self.program
        while (reached := moment()) is None:
            self.accesses.scheduler.block([transfer.key])
        self.accesses.enter(me)
        me.strand.follow(reached)

    def _wake(self, transfer: Transfer) -> None:
        self.accesses.effects += 1
        self.accesses.scheduler.wake(transfer.key, transfer.key + 1)

    def _lane(self, strand: Strand) -> object:
        """A lane for a transfer: that of one which is complete for this strand, so that clocks do not grow."""
        with_lane = self._with_lane[self.program.who.rank]
        for n, transfer in enumerate(with_lane):
            if transfer.end and strand.follows(transfer.end):
                return with_lane.pop(n).lane
        return "network", self._started

    def _there(self, name: str, place: Place, pe: int) -> Place:
        """The same symmetric place of a peer: as far from a tensor of the peer as it is, here, from that of the same
        name in the same allocation. Raises RankError, ArgumentError."""
        me = self.program
        if not 0 <= pe < self.world:
            raise RankError(f"{name} to rank {pe}: ranks go from 0 to {self.world - 1}", sites.current())
        regions = me.launch.regions.regions
        here = [r for r in regions if r.rank == me.who.rank and r.is_in_allocation(place.address)]
        inside = [r for r in here if r.base <= place.address < r.end]
        theirs = {region.name: region.base for region in regions if region.rank == pe}
        for region in (*inside, *here):
            if region.name in theirs:
                address = place.address - region.base + theirs[region.name]
                return replace(place, address=address)
        what = inside[-1] if inside else f"{place.address:#x}"
        raise ArgumentError(
            f"{name}: {what} has no counterpart at rank {pe}; far memory is named by the own address of the same "
            "symmetric place",
            sites.current(),
        )
