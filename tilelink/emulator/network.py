"""The network of a run: one-sided transfers that a program starts, and that are late, in no order.

Every transfer is an agent of its own: it reads its source, and writes its target, when the schedule pleases, in pieces.
What it does on the side of the program that started it comes after all that this had done. What it does at the peer
comes after what the program had seen of others, but only after those of its own accesses that a fence stands behind;
and after the transfers to this peer, of the same context, before a fence. (OpenSHMEM 1.5, 9.10: memory ordering.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilelink.emulator.interpreter import sites
from tilelink.emulator.memory import Array
from tilelink.emulator.ordering import Moment, Ordering, Strand
from tilelink.emulator.programs import Program
from tilelink.emulator.transfers import Agent, Atomic, Place, Transfer
from tilelink.errors import ArgumentError, RankError

if TYPE_CHECKING:
    from tilelink.emulator.accesses import Accesses

FIRST_KEY = -(1 << 60)
"""Keys on which programs wait for transfers: none is an address or that of a stream."""


class Network:
    """All transfers of a run. Its operations are called by the program that runs, and act for the rank of that."""

    def __init__(self, accesses: Accesses, ordering: Ordering, world: int) -> None:
        self.accesses, self.ordering, self.world = accesses, ordering, world
        # By rank: all transfers, those that a fence stands behind, and those whose lane no other one has taken.
        self._transfers: list[list[Transfer]] = [[] for _ in range(world)]
        self._fenced: list[list[Transfer]] = [[] for _ in range(world)]
        self._with_lane: list[list[Transfer]] = [[] for _ in range(world)]
        self._started = 0

    @property
    def program(self) -> Program:
        """The program that runs."""
        assert self.accesses.program is not None
        return self.accesses.program

    def put(
        self,
        name: str,
        target: Place,
        source: Place | Array,
        pe: int,
        context: int,
        signal: tuple[Place, Atomic] | None = None,
    ) -> Transfer:
        """Starts to write what is in memory (or an array) to a peer; then, if there is a signal, to change that."""
        there = self._there(name, target, pe)
        word = None if signal is None else (self._there(name, signal[0], pe), signal[1])

        def work(agent: Agent, transfer: Transfer) -> None:
            values = agent.read(source) if isinstance(source, Place) else [source]
            transfer.read = agent.go(agent.far)
            self._wake(transfer)
            self.accesses.delay()
            agent.write(there, values)
            if word is not None:
                agent.atomic(*word, "release")

        return self._start(name, pe, context, True, work)

    def get(self, name: str, target: Place | None, source: Place, pe: int, context: int) -> Transfer:
        """Starts to read from a peer, to memory or, without a target, to `value`."""
        there = self._there(name, source, pe)

        def work(agent: Agent, transfer: Transfer) -> None:
            agent.go(agent.far)
            values = agent.read(there)
            self.accesses.delay()
            agent.go(agent.near)
            if target is None:
                transfer.value = np.concatenate(values)
            else:
                agent.write(target, values)

        return self._start(name, pe, context, False, work)

    def atomic(
        self, name: str, word: Place, atomic: Atomic, pe: int, context: int, fetch: Place | None = None
    ) -> Transfer:
        """Starts an atomic on a word of a peer. The old value goes to `value`, or to memory, as a plain store."""
        there = self._there(name, word, pe)

        def work(agent: Agent, transfer: Transfer) -> None:
            agent.go(agent.far)
            semantic = "relaxed" if atomic.kind == "atomic_load" else "release"
            transfer.value = agent.atomic(there, atomic, semantic)
            self.accesses.delay()
            agent.go(agent.near)
            if fetch is not None:
                agent.write(fetch, [transfer.value])

        return self._start(name, pe, context, fetch is None, work)

    def fence(self, context: int) -> None:
        """What this rank delivers next to a peer, in a context, comes there after what it has started to deliver."""
        strand = self.program.strand
        seen = [t for t in self._seen(context) if t.delivers]
        started = [t for t in seen if t.end is None or not _after(strand, t.end)]
        now = strand.slot, int(strand.publish().clock[strand.slot])
        self.program.fenced = now[1]
        for transfer in started:
            if not transfer.fences:
                self._fenced[self.program.launch.rank].append(transfer)
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
        self._until(transfer, lambda: transfer.read)

    def complete(self, transfer: Transfer) -> None:
        """Waits until a transfer is complete, on both sides."""
        self._until(transfer, lambda: transfer.end)

    # ---- inside

    def _start(
        self, name: str, pe: int, context: int, delivers: bool, work: Callable[[Agent, Transfer], None]
    ) -> Transfer:
        me, accesses = self.program, self.accesses
        rank, strand = me.launch.rank, me.strand
        fenced = [t for t in self._fenced[rank] if t.pe == pe and t.context == context and delivers]
        before = [t for t in fenced if any(strand.after(*fence) for fence in t.fences)]
        issued = strand.publish()
        distant = Moment(issued.clock.copy(), issued.time)
        distant.clock[strand.slot] = me.fenced
        lane = self._lane(strand)
        launch = me.launch
        near = self.ordering.strand(rank, launch.name, me.index, lane, issued, launch.number, name)
        far = self.ordering.strand(rank, launch.name, me.index, lane, distant, launch.number, name)
        program = Program(launch, me.index, near, sites.current())
        key, self._started = FIRST_KEY + self._started, self._started + 1
        transfer = Transfer(pe, context, key, (strand.slot, int(issued.clock[strand.slot])), lane, delivers)
        self._transfers[rank].append(transfer)
        self._with_lane[rank].append(transfer)

        def body() -> None:
            accesses.enter(program)
            accesses.delay()
            for earlier in before:
                while earlier.end is None:
                    accesses.scheduler.block([earlier.key])
                far.follow(earlier.end)
            accesses.enter(program)
            work(Agent(accesses, program, near, far), transfer)
            transfer.end = near.now().join(far.now())
            self._wake(transfer)

        accesses.scheduler.spawn(body, rank, f"{name} of {launch.name}[{me.index}]")
        accesses.pause()
        return transfer

    def _seen(self, context: int) -> list[Transfer]:
        """The transfers of this rank in a context that were started before what the program does now."""
        me = self.program
        return [t for t in self._transfers[me.launch.rank] if t.context == context and me.strand.after(*t.issued)]

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
        with_lane = self._with_lane[self.program.launch.rank]
        for n, transfer in enumerate(with_lane):
            if transfer.end is not None and _after(strand, transfer.end):
                return with_lane.pop(n).lane
        return "network", self._started

    def _there(self, name: str, place: Place, pe: int) -> Place:
        """The same symmetric place of a peer: as far from a tensor of the peer as it is, here, from that of the same
        name in the same allocation. Raises RankError, ArgumentError."""
        me = self.program
        if not 0 <= pe < self.world:
            raise RankError(f"{name} to rank {pe}: ranks go from 0 to {self.world - 1}", sites.current())
        regions = me.launch.regions.regions
        here = [r for r in regions if r.rank == me.launch.rank and r.is_in_allocation(place.address)]
        inside = [r for r in here if r.base <= place.address < r.end]
        theirs = {region.name: region.base for region in regions if region.rank == pe}
        for region in (*inside, *here):
            if region.name in theirs:
                address = place.address - region.base + theirs[region.name]
                return Place(address, place.dtype, place.count, place.stride)
        what = inside[-1] if inside else f"{place.address:#x}"
        raise ArgumentError(
            f"{name}: {what} has no counterpart at rank {pe}; far memory is named by the own address of the same "
            "symmetric place",
            sites.current(),
        )


def _after(strand: Strand, moment: Moment) -> bool:
    """Whether a strand is ordered after a moment."""
    mine, its = strand.clock, moment.clock
    return len(its) <= len(mine) and bool((mine[: len(its)] >= its).all())
