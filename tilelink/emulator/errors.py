"""Errors of ranks that run on the CPU: one class per kind, with the data of the message as attributes."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilelink.errors import Site, TileLinkError

if TYPE_CHECKING:
    from tilelink.emulator.memory import Region
    from tilelink.emulator.ordering import Who
    from tilelink.emulator.races import Race

SHOWN = 12
"""The most entries of a list that a message shows; the error's data always has all of them."""


@dataclass(frozen=True)
class Wait:
    """One address that a stuck program polls, and the value it last saw there."""

    region: str
    region_rank: int
    index: tuple[int, ...]
    observed: int | float
    site: Site

    def __str__(self) -> str:
        where = f"{self.region}{list(self.index)}@rank{self.region_rank}"
        return f"{where} is {self.observed}, polled at {self.site}"


@dataclass(frozen=True)
class StuckProgram:
    """A program that cannot go on, and every address that could wake it."""

    rank: int
    launch: str
    program: int
    waits: tuple[Wait, ...]

    @property
    def sites(self) -> frozenset[Site]:
        """The lines at which it polls."""
        return frozenset(wait.site for wait in self.waits)

    def __str__(self) -> str:
        return f"rank {self.rank} {self.launch}[{self.program}]: " + "; ".join(_shown(self.waits, 4))


@dataclass(frozen=True)
class UnstartedPrograms:
    """Programs of a launch that never started, because resident programs left no room or the stream is held up.
    `begun`: the launch is the first entry of its stream."""

    rank: int
    launch: str
    programs: range
    begun: bool = False

    def __str__(self) -> str:
        first, last = self.programs[0], self.programs[-1]
        return f"rank {self.rank} {self.launch}[{first}..{last}]: never started"


@dataclass(frozen=True)
class WaitingHost:
    """A host function that waits for streams of its rank."""

    rank: int
    streams: tuple[object, ...]

    def __str__(self) -> str:
        return f"rank {self.rank} host: waits for stream " + ", ".join(map(str, self.streams))


class DeadlockError(TileLinkError):
    """No task can run. `stuck`, `unstarted` and `hosts` say who waits for what."""

    def __init__(
        self,
        stuck: Sequence[StuckProgram] = (),
        unstarted: Sequence[UnstartedPrograms] = (),
        hosts: Sequence[WaitingHost] = (),
        message: str = "deadlock: no task can go on",
    ) -> None:
        self.stuck, self.unstarted, self.hosts = tuple(stuck), tuple(unstarted), tuple(hosts)
        alike = [Entry(s.rank, (s.launch, s.sites), f"program of {s.launch}", str(s)) for s in self.stuck]
        lines = [*folded(alike, SHOWN), *_shown(self.unstarted), *_shown(self.hosts)]
        super().__init__("\n  ".join([message, *lines]))


class LivelockError(TileLinkError):
    """Programs go on accessing memory, but make no progress."""


class OutOfBoundsError(TileLinkError):
    """A program was about to touch memory outside the regions of its launch. The memory is unchanged.

    `nearest`: the nearest region, None if the launch has none. `offset`: the distance in bytes of the access from the
    base of that region."""

    def __init__(self, who: Who, site: Site, kind: str, address: int, nearest: Region | None) -> None:
        self.rank, self.launch, self.program, self.kind = who.rank, who.launch, who.program, kind
        self.address, self.nearest = address, nearest
        self.offset = None if nearest is None else address - nearest.base
        where = "where its launch has no memory at all"
        if nearest is not None:
            where = f"{self.offset} bytes from the base of {nearest}, which has {nearest.end - nearest.base} bytes"
        super().__init__(f"{who}: out of bounds: {kind} {where}", site)


class AssertionFailed(AssertionError):
    """A `tl.device_assert` failed. `what`: its message. `values`: the values of local names of its function, at the
    first element where it fails."""

    def __init__(self, what: str, values: Mapping[str, Any]) -> None:
        self.what, self.values = what, values
        super().__init__(f"{what}: {', '.join(f'{n} = {v}' for n, v in values.items())}")

    def of(self, text: str) -> AssertionFailed:
        """Returns this error with only the values of names in a line, or with all if the line has none of them."""
        names = set(re.findall(r"\w+", text))
        return AssertionFailed(self.what, {n: v for n, v in self.values.items() if n in names} or self.values)


class KernelError(TileLinkError):
    """A kernel raised the exception `__cause__`; rank, launch and program say where."""

    def __init__(self, who: Who, site: Site | None, cause: BaseException) -> None:
        self.rank, self.launch, self.program = who.rank, who.launch, who.program
        self._who = who
        super().__init__(f"{who}: {type(cause).__name__}: {cause}", site)

    def at(self, site: Site) -> KernelError:
        """Returns the same error at the line of the tile function from which the kernel's line was made."""
        cause = self.__cause__
        assert cause is not None
        return KernelError(self._who, site, cause.of(site.text) if isinstance(cause, AssertionFailed) else cause)


class RaceError(TileLinkError):
    """Nothing orders two accesses to the same memory, at least one of them a write. `races` has all such pairs."""

    def __init__(self, races: Sequence[Race]) -> None:
        self.races = tuple(races)
        # Ranks that run the same lines race in the same way: the message has one of these races.
        alike: dict[object, list[Race]] = {}
        for race in self.races:
            alike.setdefault(frozenset((race.first.site, race.second.site)), []).append(race)
        texts = [
            str(group[0]) + (f"\n    and {len(group) - 1} more of these two lines" if len(group) > 1 else "")
            for group in alike.values()
        ]
        super().__init__("\n".join(_shown(texts)))


def _shown(entries: Sequence[object], most: int = SHOWN) -> list[str]:
    rest = len(entries) - most
    return [str(entry) for entry in entries[:most]] + ([f"and {rest} more"] if rest > 0 else [])


@dataclass(frozen=True)
class Entry:
    """A stuck worker or program of a rank: in which way it is stuck (`how`), its kind (`one_of`: "worker of matmul",
    "program of push"), and its report (`text`)."""

    rank: int
    how: Hashable
    one_of: str
    text: str


def folded(entries: Iterable[Entry], most: int) -> list[str]:
    """The lines of a report: for each rank and way of being stuck the first entry and the number of others. It has at
    most `most` ways, and the number of entries in the remaining ways."""
    ways: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        ways.setdefault((entry.rank, entry.how), []).append(entry)
    lines = []
    for first, *more in list(ways.values())[:most]:
        word, _, of = first.one_of.partition(" ")
        lines.append(first.text)
        lines += [f"and {len(more)} more {word}{'s' * (len(more) > 1)} {of}"] if more else []
    left = sum(map(len, list(ways.values())[most:]))
    return lines + ([f"and {left} more"] if left else [])
