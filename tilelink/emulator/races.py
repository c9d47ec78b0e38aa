"""Finds data races (nothing orders two accesses to an element, at least one a write), and says how to mend them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tilelink.emulator.memory import Access, Array, Box, Region
from tilelink.emulator.operation import Mode
from tilelink.emulator.ordering import Strand
from tilelink.emulator.shadow import Cells
from tilelink.errors import Site


@dataclass(frozen=True)
class Party:
    """One side of a race: who did what where. `box` has the elements that both sides touched. `number` counts the
    launches of the rank; `agent`: the transfer that did it for the program, if one did. `tile`: role, tile and line of
    the tile function, where they are known; `sites`: the lines alone."""

    rank: int
    launch: str
    program: int
    kind: str
    scope: str
    region: str
    region_rank: int
    box: Box
    site: Site
    number: int
    writes: bool
    atomic: bool
    agent: str = ""
    tile: str = ""
    sites: tuple[Site, ...] = ()

    @property
    def where(self) -> str:
        """The elements, and their rank."""
        box = ", ".join(f"{low}:{high}" for low, high in self.box)
        return f"{self.region}[{box}] of rank {self.region_rank}"

    def __str__(self) -> str:
        scope = f", scope {self.scope}" if self.scope else ""
        agent = f" by its {self.agent}" if self.agent else ""
        tile = f"\n        {self.tile}" if self.tile else ""
        return (
            f"rank {self.rank}, {self.launch}, program {self.program}: {self.kind}{scope}{agent} at {self.site}"
            f"\n        {self.site.text}{tile}"
        )


@dataclass
class Race:
    """A race as it was first seen, and how often races between the same two places in the source were seen."""

    first: Party
    second: Party
    reason: str
    remedy: str
    count: int = 1

    def __str__(self) -> str:
        times = f", seen {self.count} times" if self.count > 1 else ""
        return (
            f"{self.second.where}: {self.reason}{times}\n    {self.first}\n    {self.second}\n    remedy: {self.remedy}"
        )


class _Event(NamedTuple):
    """All accesses that a strand made at one line between two of its releases; `width`: bytes of an element."""

    strand: Strand
    clock: int
    mode: Mode
    writes: bool
    width: int
    region: Region
    site: Site


Reads = tuple[int, ...]
"""The numbers of the events that read an element since its last write: for each strand and way, the latest one."""


class RaceDetector:
    """Keeps the last write of every element and the reads since then, and collects races in `races`."""

    def __init__(self) -> None:
        self._events: list[_Event | None] = [None]
        self._event_numbers: dict[tuple[int, int, Mode, bool, int, int, int], int] = {}
        self._reads: list[Reads] = [()]
        self._reads_numbers: dict[Reads, int] = {(): 0}
        self._with_read: dict[tuple[int, int], int] = {}
        self._found: dict[tuple[object, ...], Race] = {}

    @property
    def races(self) -> list[Race]:
        """The races so far, one for each pair of places in the source and regions."""
        return list(self._found.values())

    def record(self, strand: Strand, cells: Cells, mode: Mode, writes: bool, site: Site) -> None:
        """Records a read or a write. First it looks for earlier writes (before a write, also reads) without order."""
        event = self._event(strand, cells.access, mode, writes, site)
        for written in cells.distinct("written"):
            self._check(written, event, cells, "written", written)
        if not writes:
            cells.update("read", lambda reads: self._extended(reads, event))
            return
        readers = cells.distinct("read")
        for reads in readers:
            for read in reversed(self._reads[reads]):
                self._check(read, event, cells, "read", reads)
        cells.fill("written", event)
        if readers != [0]:
            cells.fill("read", 0)

    def _event(self, strand: Strand, access: Access, mode: Mode, writes: bool, site: Site) -> int:
        clock, region, width = int(strand.clock[strand.slot]), access.region, access.itemsize
        key = strand.slot, clock, mode, writes, width, id(region), id(site)
        number = self._event_numbers.get(key)
        if number is None:
            number = self._event_numbers[key] = len(self._events)
            self._events.append(_Event(strand, clock, mode, writes, width, region, site))
        return number

    def _extended(self, number: int, event: int) -> int:
        """The number of the reads `number` plus the read `event`, without the reads that it outdates."""
        known = self._with_read.get((number, event))
        if known is None:
            before = self._reads[number]
            reads = before if event in before else (*(r for r in before if not self._outdated(r, event)), event)
            known = self._with_read[number, event] = self._reads_numbers.setdefault(reads, len(self._reads))
            if known == len(self._reads):
                self._reads.append(reads)
        return known

    def _outdated(self, earlier: int, later: int) -> bool:
        """Whether every access ordered after the later read is ordered after the earlier one: same strand and way."""
        a, b = self._events[earlier], self._events[later]
        assert a is not None and b is not None
        return a.strand.slot == b.strand.slot and _way(a) == _way(b)

    def _check(self, earlier: int, later: int, cells: Cells, layer: str, value: int) -> None:
        """Reports a race between two events, if there is one. `value` stands for the earlier event in the cells."""
        a, b = self._events[earlier], self._events[later]
        if a is None or b is None or b.strand.after(a.strand.slot, a.clock):
            return
        atomic, domains = a.mode.atomic and b.mode.atomic, (a.mode.domain, b.mode.domain)
        if atomic and a.width != b.width:
            reason = f"atomics of {a.width} and of {b.width} bytes, and nothing orders them"
        elif atomic and domains[0] != domains[1] and ((a.writes and b.writes) or all(domains)):
            kinds = " and ".join(domain or "atomics of programs" for domain in domains)
            reason = f"{kinds} are not atomic to each other, and nothing orders them"
        elif atomic:
            same_rank = a.strand.who.rank == b.strand.who.rank
            if all(scope == "sys" or (same_rank and scope == "gpu") for scope in (a.mode.scope, b.mode.scope)):
                return
            ranks = "one rank" if same_rank else "two ranks"
            reason = f"atomics of {ranks} whose scopes do not reach each other"
        elif a.mode.atomic or b.mode.atomic:
            reason = "an atomic and a plain access that nothing orders"
        else:
            reason = "two accesses that nothing orders"
        key = str(a.region), a.mode.kind, a.site, str(b.region), b.mode.kind, b.site, reason
        if key in self._found:
            self._found[key].count += 1
            return
        addresses = cells.addresses(layer, value)
        first, second = _party(a, addresses), _party(b, addresses)
        self._found[key] = Race(first, second, reason, remedy(first, second, b.region.kind == "signal"))


def _way(event: _Event) -> tuple[object, ...]:
    """The properties of an event's access that decide which accesses race with it."""
    return event.mode.atomic, event.width, event.mode.scope, event.mode.domain


def _party(event: _Event, addresses: Array) -> Party:
    who, mode, region = event.strand.who, event.mode, event.region
    # fmt: off
    return Party(
        who.rank, who.launch, who.program, mode.kind, mode.scope, region.name, region.rank, region.box_of(addresses),
        event.site, who.number, event.writes, mode.atomic, who.agent,
    )
    # fmt: on


def remedy(first: Party, second: Party, on_signal: bool) -> str:
    """How two accesses could be ordered, or made atomic to each other. `first` came first in this execution. The access
    of the earlier launch is taken as meant to come first; within one launch, the write before the read."""
    if first.atomic and second.atomic:
        return f'let both be atomics of one width and kind, with scope="{_scope(first, second)}"'
    if on_signal:
        plain = second if first.atomic else first
        return (
            f"only atomics may touch a word that ranks signal: make the {plain.kind} of {_who(plain, first, second)} "
            f'one, with sem="release" or "acquire" and scope="{_scope(first, second)}"'
        )
    if (first.rank, first.number, first.program) == (second.rank, second.number, second.program):
        sent, other = (first, second) if first.agent else (second, first)
        fence = " (or fence(), where both only write at one peer)" if other.agent else ""
        return f"call quiet() between the {sent.agent} and the {other.agent or other.kind}{fence}"
    if first.number != second.number:
        before, after = (first, second) if first.number < second.number else (second, first)
    elif first.writes != second.writes:
        before, after = (first, second) if first.writes else (second, first)
    else:
        before, after = first, second
    complete = "has called quiet() for" if before.agent else "has done"
    begins = f"starts its {after.agent}" if after.agent else f"does its {after.kind}"
    text = (
        f'let {_who(before, before, after)} release a signal (sem="release", scope="{_scope(first, second)}") once it '
        f"{complete} its {before.agent or before.kind}, and {_who(after, before, after)} wait for it "
        f'(sem="acquire", same scope) before it {begins}'
    )
    if after.writes and before.number != after.number:
        text += "; a second buffer alone may only put this off by a call"
    if before.rank == after.rank and before.number != after.number:
        text += "; or put both launches on one stream"
    return text


def _scope(first: Party, second: Party) -> str:
    """The scope that reaches from one to the other."""
    return "gpu" if first.rank == second.rank else "sys"


def _who(party: Party, first: Party, second: Party) -> str:
    """A party, named by what distinguishes it from the other."""
    if first.rank != second.rank:
        return f"rank {party.rank}"
    if first.number != second.number:
        return party.launch
    return f"program {party.program}"
