"""Programs of launches, and their polls."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tilelink.emulator.errors import Wait
from tilelink.emulator.memory import Access, Array
from tilelink.emulator.ordering import Strand
from tilelink.emulator.sites import KernelSite

if TYPE_CHECKING:
    from tilelink.emulator.streams import Launch

PollKey = tuple[KernelSite, bytes]
"""The line and the addresses of a poll."""


@dataclass(frozen=True)
class Poll:
    """The values that a program last saw at addresses that it may be waiting for."""

    site: KernelSite
    seen: tuple[tuple[Access, Array], ...]

    @cached_property
    def key(self) -> PollKey:
        """Two polls with equal keys are the same."""
        return self.site, b"".join(access.addresses.tobytes() for access, _ in self.seen)

    def addresses(self) -> list[int]:
        return [address for access, _ in self.seen for address in access.addresses.tolist()]

    def differs(self, other: Poll) -> bool:
        """Whether another poll of these addresses saw other values."""
        return any(bool((a != b).any()) for (_, a), (_, b) in zip(self.seen, other.seen, strict=True))

    def is_current(self) -> bool:
        """Whether memory still holds the values that the poll saw."""
        return all(bool((access.values(values.dtype) == values).all()) for access, values in self.seen)

    def waits(self) -> list[Wait]:
        """One entry per address."""
        return [
            Wait(access.region.name, access.region.rank, access.region.index(address), value, self.site)
            for access, values in self.seen
            for address, value in zip(access.addresses.tolist(), values.tolist(), strict=True)
        ]


class Program:
    """One program of a launch, or an agent that works for it on behalf of one line, `site`. `fenced`: the clock of its
    strand up to which a fence stands behind its accesses; at first the clock before its first access."""

    def __init__(self, launch: Launch, strand: Strand, site: KernelSite | None = None) -> None:
        self.launch, self.who, self.strand, self.site = launch, strand.who, strand, site
        self.fenced = int(strand.clock[strand.slot]) - 1
        self.quiet = 0  # operations since the last one with an effect
        self._polls: dict[PollKey, Poll] = {}  # the latest comes last
        self._looks = 0
        self._looked: dict[PollKey, int] = {}  # by poll, the number of the last look
        self._news = 0  # the last look that saw something new
        self._loads: set[tuple[KernelSite, int]] = set()  # plain loads between polls
        self._wait: tuple[PollKey, int] | None = None  # the poll that was the last operation, the time before it

    @property
    def polls(self) -> Collection[Poll]:
        """The polls that the program has made since it last did anything else."""
        return self._polls.values()

    def is_current(self) -> bool:
        """Whether memory still holds all values that the program's polls saw."""
        return all(poll.is_current() for poll in self.polls)

    def look(self, poll: Poll) -> bool:
        """Records a poll. Returns whether the program saw the same there before, and nothing new anywhere since."""
        key = poll.key
        self._looks += 1
        before, last = self._polls.get(key), self._looked.get(key, 0)
        self._looked[key] = self._looks
        if before is None or before.differs(poll):
            self._news = self._looks
            self._polls.pop(key, None)
            self._polls[key] = poll
            return False
        for other in list(self._polls):  # polls before the last one at this key are not in the program's present loop
            if other == key:
                break
            del self._polls[other]
        del self._polls[key]
        outdated = [other for other, seen in self._polls.items() if not seen.is_current()]
        for other in outdated:
            del self._polls[other]
        self._polls[key] = poll
        return not outdated and last >= self._news

    def load(self, site: KernelSite, address: int) -> None:
        """Records a plain load between polls. If it is new, the program is not just polling."""
        if (site, address) not in self._loads:
            self._loads.add((site, address))
            self._polls.clear()

    def progress(self) -> None:
        """Forgets all polls, because the program did something with an effect."""
        self.quiet = 0
        self._polls.clear()
        self._looked.clear()
        self._loads.clear()

    def rewind(self, poll: Poll | None) -> None:
        """Sets the time back at a repeated poll: all polls of a wait take as much time as one, under any schedule."""
        key = None if poll is None else poll.key
        if key is not None and self._wait is not None and self._wait[0] == key:
            self.strand.time = self._wait[1]
        self._wait = None if key is None else (key, self.strand.time)
