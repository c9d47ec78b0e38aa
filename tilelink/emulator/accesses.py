"""Carries out the memory accesses of programs: bounds, turns, polls, order, races and observers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilelink.emulator.errors import LivelockError, OutOfBoundsError
from tilelink.emulator.interpreter import set_program, sites
from tilelink.emulator.memory import Access, Array
from tilelink.emulator.ordering import Ordering
from tilelink.emulator.programs import Poll, PollKey, Program, poll_key
from tilelink.emulator.races import RaceDetector
from tilelink.emulator.region_map import Outside
from tilelink.emulator.scheduler import Scheduler
from tilelink.emulator.shadow import ShadowMemory
from tilelink.emulator.sites import KernelSite
from tilelink.emulator.trace import Operation

if TYPE_CHECKING:
    from tilelink.emulator.network import Network

FAIR_SHARE = 64
"""After so many operations without effect a program lets others run: a spin on plain loads starves nobody."""


class Accesses:
    """The memory of a run, as programs reach it: a `MemoryHandler`. `program` is the program that runs."""

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

    # The interface of MemoryHandler.

    def load(
        self,
        pointers: Array,
        mask: Array | None,
        other: Array | None,
        dtype: np.dtype[Any],
        volatile: bool,
        gather: Callable[[], Array],
    ) -> Array:
        me = self._begin(self._switch_always or volatile)
        accesses = self._locate(me, "load", pointers, mask, dtype.itemsize)
        if len(accesses) == 1 and accesses[0].addresses is None:
            access = accesses[0]
            if access.lanes is None:
                data = access.view(dtype).copy()
            else:
                data = _background(pointers, other, dtype)
                data[access.lanes] = access.view(dtype)
        elif accesses:
            data = gather()
        else:
            return _background(pointers, other, dtype)
        polling = volatile or (data.size == 1 and accesses[0].region.kind == "signal")
        if not (self.ordering or polling or me.polls):
            return data
        site = me.site or sites.current()
        key: PollKey | None = None
        if polling:
            key = poll_key(site, accesses)
        elif me.polls:
            me.load(site, accesses[0].start)
        if self.ordering:
            kind, scope = ("volatile_load", "sys") if volatile else ("load", "")
            me.rewind(key)
            me.strand.time += 1
            for access in accesses:
                if self.races:
                    self.races.read(me.strand, self.shadows.cells(access), kind, volatile, scope, site)
                self._observe(me, access, kind, site)
        if key is not None:
            self._polled(me, key, accesses, data)
        return data

    def store(self, pointers: Array, mask: Array | None, values: Array, scatter: Callable[[], object]) -> None:
        me = self._begin(self._switch_always)
        accesses = self._locate(me, "store", pointers, mask, values.dtype.itemsize)
        if len(accesses) == 1 and accesses[0].addresses is None:
            accesses[0].view(values.dtype)[...] = accesses[0].part_of(values)
        elif accesses:
            scatter()
        else:
            return
        if self.ordering:
            site = me.site or sites.current()
            me.rewind(None)
            me.strand.time += 1
            for access in accesses:
                cells = self.shadows.cells(access)
                if self.races:
                    self.races.write(me.strand, cells, "store", False, "", site)
                self.ordering.forget(cells)
                self._observe(me, access, "store", site)
        self._effect(me, accesses, only_signals=False)

    def atomic(
        self,
        kind: str,
        pointers: Array,
        mask: Array | None,
        dtype: np.dtype[Any],
        semantic: str,
        scope: str,
        apply: Callable[[], Array],
        domain: str = "",
    ) -> Array:
        """`domain`: to which other atomics it is one; "": to those of programs."""
        me = self._begin(True)
        accesses = self._locate(me, kind, pointers, mask, dtype.itemsize)
        old = apply()
        if not accesses:
            return old
        new = [access.values(dtype) for access in accesses]
        changed = any(bool((now != access.part_of(old)).any()) for access, now in zip(accesses, new, strict=True))
        # What changes nothing only looks, such as adding 0; but nobody waits with a mere release.
        writes = changed or semantic == "release" or kind == "atomic_store"
        site = me.site or sites.current()
        key = None if writes else poll_key(site, accesses)
        if self.ordering:
            cells = [self.shadows.cells(access) for access in accesses]
            if self.races:
                record = self.races.write if writes else self.races.read
                for part in cells:
                    record(me.strand, part, kind, True, scope, site, domain)
            me.rewind(key)
            if semantic in ("acquire", "acq_rel"):
                for part in cells:
                    self.ordering.acquire(me.strand, part, scope)
            me.strand.time += 1
            if semantic in ("release", "acq_rel") and (changed or kind not in ("atomic_cas", "atomic_load")):
                for part in cells:
                    self.ordering.release(me.strand, part, scope, replaces=kind == "atomic_store")
            elif kind == "atomic_store":
                for part in cells:
                    self.ordering.forget(part)
            for access, now in zip(accesses, new, strict=True):
                self._observe(me, access, kind, site, semantic, scope, old, now)
        if key is None:
            # Locks that are taken and given back for ever are a livelock, too: words are no progress.
            self._effect(me, accesses, only_signals=old.size == 1)
        else:
            self._polled(me, key, accesses, old)
        return old

    # Turns.

    def enter(self, program: Program) -> None:
        """The program runs from now on."""
        self.program = program
        set_program(program.index, program.launch.shape)

    def pause(self) -> None:
        """Lets others run before the program goes on."""
        me = self.program
        assert me is not None, "a pause outside of a program"
        self.scheduler.switch()
        self.enter(me)

    def delay(self) -> None:
        """Lets others run for as long as the schedule says: what an engine or a network does begins when it pleases."""
        for _ in range(self.scheduler.delay()):
            self.pause()

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
                f"livelock: {self._livelock} memory operations without an effect; the last is that of rank "
                f"{me.launch.rank} {me.launch.name}[{me.index}]",
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
        """Something in memory may have changed: whoever polls it has to look again."""
        self.effects += 1
        if not only_signals:
            self._quiet = 0
        me.progress()
        for access in accesses:
            self.scheduler.wake(access.low - 7, access.high)  # a word that is polled has at most 8 bytes

    def ended(self, program: Program) -> None:
        """The program is done."""
        self.effects += 1
        self._quiet = 0

    def disturbed(self) -> None:
        """Another process wrote what a program polls."""
        self._quiet = 0

    # Polls.

    def _polled(self, me: Program, key: PollKey, accesses: list[Access], tile: Array) -> None:
        """Parks the program until what it polls is written, if it just sees the same again and again."""
        values = tuple(access.part_of(tile).reshape(-1).copy() for access in accesses)
        if me.look(key, Poll(key[0], tuple(accesses), values)):
            self.scheduler.block(address for poll in me.polls for address in poll.addresses())
            self.enter(me)

    # Observers and bounds.

    def _observe(
        self,
        me: Program,
        access: Access,
        kind: str,
        site: KernelSite,
        semantic: str = "",
        scope: str = "",
        old: Array | None = None,
        new: Array | None = None,
    ) -> None:
        if self.observer is None:
            return
        before = after = None
        if old is not None and new is not None and new.size == 1:
            before, after = access.part_of(old).item(), new.item()
        launch = me.launch
        # fmt: off
        self.observer(Operation(
            self._observed, launch.rank, launch.number, launch.name, me.index, kind, access.region, access.box,
            semantic, scope, before, after, me.strand.time, site,
        ))
        # fmt: on
        self._observed += 1

    def _locate(self, me: Program, kind: str, pointers: Array, mask: Array | None, itemsize: int) -> list[Access]:
        regions = me.launch.regions
        try:
            return regions.locate(pointers, mask, itemsize)
        except Outside as outside:
            raise OutOfBoundsError(
                rank=me.launch.rank,
                launch=me.launch.name,
                program=me.index,
                site=me.site or sites.current(),
                kind=kind,
                address=outside.address,
                nearest=regions.nearest(outside.address),
            ) from None


def _background(pointers: Array, other: Array | None, dtype: np.dtype[Any]) -> Array:
    """What a load gives where its mask is false."""
    if other is None:
        return np.zeros(pointers.shape, dtype)
    return np.array(np.broadcast_to(other, pointers.shape), dtype)
