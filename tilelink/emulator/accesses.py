"""Carries out the memory accesses of programs: bounds, turns, polls, order, races and observers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilelink.emulator import sites
from tilelink.emulator.errors import LivelockError, OutOfBoundsError
from tilelink.emulator.kernel_values import set_program
from tilelink.emulator.memory import Access, Array, Outside, Strided
from tilelink.emulator.operation import LOAD, STORE, VOLATILE_LOAD, Mode, Operation
from tilelink.emulator.ordering import Ordering
from tilelink.emulator.programs import Poll, Program
from tilelink.emulator.races import RaceDetector
from tilelink.emulator.scheduler import Scheduler
from tilelink.emulator.shadow import ShadowMemory
from tilelink.emulator.sites import KernelSite

if TYPE_CHECKING:
    from tilelink.emulator.network import Network

FAIR_SHARE = 64
"""After this many operations without an effect a program lets others run, so a spin on plain loads starves nobody."""


class Accesses:
    """The memory of a run, as programs reach it. `program` is the program that runs.

    Pointers come as arrays of uint64 addresses; `mask` None selects all of them. `dtype` is numpy's, uint16 for
    bfloat16."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        ordering: Ordering | None,
        races: RaceDetector | None,
        observer: Callable[[Operation], None] | None,
        switch_always: bool,
        livelock: int,
        heartbeat: Array | None = None,
    ) -> None:
        self.scheduler, self.ordering, self.races, self.observer = scheduler, ordering, races, observer
        self.shadows = ShadowMemory()
        self.program: Program | None = None
        self.network: Network | None = None
        self.effects = 0
        self.operations = 0
        self._switch_always, self._livelock, self._heartbeat = switch_always, livelock, heartbeat
        self._quiet = 0
        self._observed = 0

    def load(
        self,
        pointers: Array,
        dtype: np.dtype[Any],
        mask: Array | None = None,
        other: Array | None = None,
        volatile: bool = False,
    ) -> Array:
        """Returns the values in memory, and `other` (zero if None) where the mask is false."""
        mode = VOLATILE_LOAD if volatile else LOAD
        me = self._begin(self._switch_always or volatile)
        accesses = self._locate(me, mode, pointers, mask, dtype.itemsize)
        data = np.zeros(pointers.shape, dtype)
        if other is not None:
            data[...] = other
        for access in accesses:
            data.reshape(-1)[access.lanes] = access.values(dtype)
        if not accesses:
            return data
        polling = volatile or (data.size == 1 and accesses[0].region.kind == "signal")
        if not (self.ordering or polling or me.polls):
            return data
        site = me.site or sites.current()
        poll = _poll(site, accesses, data) if polling else None
        if poll is None and me.polls:
            me.load(site, int(accesses[0].addresses[0]))
        self._record(me, mode, accesses, site, poll)
        if poll is not None:
            self._park(me, poll)
        return data

    def store(self, pointers: Array, values: Array, mask: Array | None = None) -> None:
        """Stores a tile of values."""
        me = self._begin(self._switch_always)
        accesses = self._locate(me, STORE, pointers, mask, values.dtype.itemsize)
        if not accesses:
            return
        for access in accesses:
            access.write(values.reshape(-1)[access.lanes])
        if self.ordering:
            self._record(me, STORE, accesses, me.site or sites.current(), None, writes=True)
        self._effect(me, accesses, only_signals=False)

    def atomic(
        self,
        mode: Mode,
        pointers: Array,
        dtype: np.dtype[Any],
        apply: Callable[[], Array],
        mask: Array | None = None,
    ) -> Array:
        """Calls `apply`, which changes memory and returns the old values; returns these."""
        me = self._begin(True)
        accesses = self._locate(me, mode, pointers, mask, dtype.itemsize)
        old = apply()
        if not accesses:
            return old
        parts = [(old.reshape(-1)[access.lanes], access.values(dtype)) for access in accesses]
        changed = any(bool((before != after).any()) for before, after in parts)
        # An atomic that changes nothing, such as adding 0, only looks; but nobody waits with a mere release.
        writes = changed or mode.semantic == "release" or mode.kind == "atomic_store"
        site = me.site or sites.current()
        poll = None if writes else _poll(site, accesses, old)
        self._record(me, mode, accesses, site, poll, writes, changed, parts)
        if poll is None:
            # Locks that are taken and given back for ever are a livelock, too, so a change of one word is no progress.
            self._effect(me, accesses, only_signals=old.size == 1)
        else:
            self._park(me, poll)
        return old

    # ---- accesses of engines and networks, whose timing the schedule decides

    def read(self, place: Strided) -> Array:
        """Lets others run, then returns the values of a place."""
        self.pause()
        return self.load(place.pointers(), place.dtype)

    def write(self, place: Strided, values: Array) -> None:
        """Lets others run, then stores values."""
        self.pause()
        self.store(place.pointers(), values)

    def delay(self) -> None:
        """Lets others run for as many turns as the policy says: work of an engine or a network may begin late."""
        for _ in range(self.scheduler.delay()):
            self.pause()

    # ---- turns

    def enter(self, program: Program) -> None:
        """Makes `program` the one that runs from now on."""
        self.program = program
        set_program(program.who.program, program.launch.shape)

    def pause(self) -> None:
        """Lets others run before the program goes on."""
        me = self.program
        assert me is not None, "a pause outside of a program"
        self.scheduler.switch()
        self.enter(me)

    def _begin(self, switch: bool) -> Program:
        me = self.program
        assert me is not None, "memory is touched outside of a program"
        self.operations += 1
        self._quiet += 1
        me.quiet += 1
        if self._heartbeat is not None:
            self._heartbeat[0] += 1
        if self._quiet > self._livelock:
            raise LivelockError(
                f"livelock: {self._livelock} memory operations without an effect; the last is by {me.who}",
                me.site or sites.current(),
            )
        if me.quiet % FAIR_SHARE == 0:
            self.scheduler.give_way()
            self.enter(me)
        elif switch:
            self.scheduler.switch()
            self.enter(me)
        return me

    def _effect(self, me: Program, accesses: list[Access], only_signals: bool) -> None:
        """Wakes the programs that poll these addresses, which may have changed. `only_signals`: it is no progress."""
        self.effects += 1
        if not only_signals:
            self._quiet = 0
        me.progress()
        for access in accesses:
            low, high = access.reach
            self.scheduler.wake(low - 7, high)  # a word that is polled has at most 8 bytes

    def progress(self) -> None:
        """Notes that a program has ended, or that another process wrote to memory that a program polls."""
        self.effects += 1
        self._quiet = 0

    # ---- polls, observers and bounds

    def _park(self, me: Program, poll: Poll) -> None:
        """Parks the program until memory that it polls is written, if it only sees the same values again."""
        if me.look(poll):
            self.scheduler.block(address for poll in me.polls for address in poll.addresses())
            self.enter(me)

    def _record(
        self,
        me: Program,
        mode: Mode,
        accesses: list[Access],
        site: KernelSite,
        poll: Poll | None,
        writes: bool = False,
        changed: bool = False,
        parts: Sequence[tuple[Array, Array]] = (),
    ) -> None:
        """Looks for races, carries order, tells the observer. `parts`: the values that an atomic found and left."""
        if self.ordering is None:
            return
        cells = [self.shadows.cells(access) for access in accesses]
        if self.races:
            for part in cells:
                self.races.record(me.strand, part, mode, writes, site)
        me.rewind(poll)
        if mode.semantic in ("acquire", "acq_rel"):
            for part in cells:
                self.ordering.acquire(me.strand, part, mode.scope)
        me.strand.time += 1
        if mode.semantic in ("release", "acq_rel") and (changed or mode.kind not in ("atomic_cas", "atomic_load")):
            for part in cells:
                self.ordering.release(me.strand, part, mode.scope, replaces=mode.kind == "atomic_store")
        elif mode.kind in ("store", "atomic_store"):
            for part in cells:
                self.ordering.forget(part)
        if self.observer is not None:
            who, scope = me.who, mode.scope if mode.semantic else ""
            for n, access in enumerate(accesses):
                old, new = [v.item() for v in parts[n]] if parts and parts[n][0].size == 1 else (None, None)
                # fmt: off
                self.observer(Operation(
                    self._observed, who.rank, who.number, who.launch, who.program, mode.kind, access.region, access.box,
                    mode.semantic, scope, old, new, me.strand.time, site, access.addresses.size,
                ))
                # fmt: on
                self._observed += 1

    def _locate(self, me: Program, mode: Mode, pointers: Array, mask: Array | None, itemsize: int) -> list[Access]:
        regions = me.launch.regions
        try:
            return regions.locate(pointers, mask, itemsize)
        except Outside as outside:
            nearest, site = regions.nearest(outside.address), me.site or sites.current()
            raise OutOfBoundsError(me.who, site, mode.kind, outside.address, nearest) from None


def _poll(site: KernelSite, accesses: list[Access], tile: Array) -> Poll:
    return Poll(site, tuple((access, tile.reshape(-1)[access.lanes]) for access in accesses))
