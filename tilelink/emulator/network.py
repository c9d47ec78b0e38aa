"""The network of a run: one-sided transfers that a program starts. They are late, and in no order.

Every transfer has its own agent. The schedule decides when the agent reads the source and writes the target, in pieces.
On the near side, its accesses follow everything that the starting program had done. At the peer, they follow everything
that the program had seen of others, but only those of the program's own accesses that a fence stands behind. They also
follow transfers to this peer, of the same context, before a fence. (OpenSHMEM 1.5, 9.10: memory ordering.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilelink.emulator import sites
from tilelink.emulator.accesses import Accesses
from tilelink.emulator.memory import Array, Strided, bytes_at
from tilelink.emulator.operation import Mode
from tilelink.emulator.ordering import Moment, Ordering, Strand
from tilelink.emulator.programs import Program
from tilelink.errors import ArgumentError, RankError

FIRST_KEY = -(1 << 60)
"""The first key on which programs wait for transfers. These keys are neither addresses nor keys of streams."""
PIECES = 2
"""The most pieces in which a transfer reads and writes."""
Change = Callable[[Array], Any]
"""The function of an atomic: it takes the old value and returns the new one, or None to leave the old one."""


@dataclass(frozen=True)
class Atomic:
    """An atomic operation on a word."""

    word: Strided
    mode: Mode
    change: Change


@dataclass(eq=False)
class Transfer:
    """A transfer under way. `agent`: the program that does it, with two strands in one slot. `issued`: the slot of the
    strand that started it, and the clock at the start. `delivers`: whether fences order it: puts and atomics, but not
    transfers that write to memory here. `fences`: the slots and clocks of the strands that fenced it. `sent`, `end`:
    the moments at which its source was read, and at which it was complete. `value`: the value that it fetched."""

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
        """Continues on a strand, later than everything before; returns the moment before the change."""
        before = self.agent.strand.publish()
        strand.clock[strand.slot] = self.agent.strand.clock[strand.slot]
        self.agent.strand = strand
        return before

    def read(self, source: Strided) -> list[Array]:
        """Reads a place, in pieces."""
        return [self.accesses.read(piece) for piece in source.pieces(PIECES)]

    def write(self, target: Strided, values: list[Array]) -> None:
        """Writes pieces to a place."""
        for piece, block in zip(target.pieces(PIECES), values, strict=True):
            self.accesses.write(piece, block)

    def do(self, atomic: Atomic) -> Array:
        """Does an atomic; returns the old value."""
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
    """All transfers of a run. The program that runs calls its operations, which act for the program's rank."""

    def __init__(self, accesses: Accesses, ordering: Ordering, world: int) -> None:
        self.accesses, self.ordering, self.world = accesses, ordering, world
        # By rank: all transfers, and the transfers whose lane no later one has taken.
        self._transfers: list[list[Transfer]] = [[] for _ in range(world)]
        self._with_lane: list[list[Transfer]] = [[] for _ in range(world)]
        self._started = 0

    @property
    def program(self) -> Program:
        """The program that runs."""
        assert self.accesses.program is not None
        return self.accesses.program

    def put(
        self, name: str, target: Strided, source: Strided | Array, pe: int, context: int, signal: Atomic | None = None
    ) -> Transfer:
        """Starts to write elements in memory (or an array) to a peer, and then to change the signal, if given."""
        there = self._there(name, target, pe)
        signal = signal and replace(signal, word=self._there(name, signal.word, pe))

        def work(transfer: Transfer) -> None:
            values = transfer.read(source) if isinstance(source, Strided) else [source]
            transfer.sent = transfer.go(transfer.far)
            self._wake(transfer)
            self.accesses.delay()
            transfer.write(there, values)
            if signal is not None:
                transfer.do(signal)

        return self._start(name, pe, context, True, work)

    def get(self, name: str, target: Strided | None, source: Strided, pe: int, context: int) -> Transfer:
        """Starts to read from a peer to memory or, without a target, to `value` of the transfer."""
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

    def atomic(self, name: str, atomic: Atomic, pe: int, context: int, fetch: Strided | None = None) -> Transfer:
        """Starts an atomic on a word of a peer. The old value goes to `value`, and to `fetch` by a plain store."""
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
        """Orders this rank's later deliveries to a peer, in a context, after the deliveries that it has started."""
        strand = self.program.strand
        started = [t for t in self._seen(context) if t.delivers and not (t.end and strand.follows(t.end))]
        now = strand.slot, int(strand.publish().clock[strand.slot])
        self.program.fenced = now[1]
        for transfer in started:
            if not any(strand.after(*fence) for fence in transfer.fences):
                transfer.fences.append(now)

    def quiet(self, context: int) -> None:
        """Waits until all transfers that this rank has started in a context are complete."""
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
        """The transfers of this rank in a context whose start is ordered before the program's next step."""
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
        """A lane for a transfer. It reuses one of a transfer that is complete for this strand: clocks do not grow."""
        with_lane = self._with_lane[self.program.who.rank]
        for n, transfer in enumerate(with_lane):
            if transfer.end and strand.follows(transfer.end):
                return with_lane.pop(n).lane
        return "network", self._started

    def _there(self, name: str, place: Strided, pe: int) -> Strided:
        """The same symmetric place of a peer: as far from the peer's tensor as `place` is, here, from the tensor of the
        same name in the same allocation. Raises RankError, ArgumentError."""
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
            f"{name}: {what} has no counterpart at rank {pe}; name far memory by this rank's own address of the same "
            "symmetric place",
            sites.current(),
        )
