"""What can go wrong when ranks run on the CPU: one class per kind, with data beside the message."""

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
"""How many entries of a list a message shows; the error's data always has all of them."""


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
        """Where it polls."""
        return frozenset(wait.site for wait in self.waits)

    def __str__(self) -> str:
        return f"rank {self.rank} {self.launch}[{self.program}]: " + "; ".join(_shown(self.waits, 4))


@dataclass(frozen=True)
class UnstartedPrograms:
    """Programs of a launch that never started: no room among the resident ones, or the stream is held up. `begun`:
    nothing stands before the launch."""

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
    """Memory is read on and on, but nothing changes any more."""


class OutOfBoundsError(TileLinkError):
    """A program was about to touch memory that its launch does not have. The memory is as it was.

    `nearest` is the region that is nearest (None if the launch has none), `offset` the distance in bytes of the access
    from the base of that region."""

    def __init__(self, who: Who, site: Site, kind: str, address: int, nearest: Region | None) -> None:
        self.rank, self.launch, self.program, self.kind = who.rank, who.launch, who.program, kind
        self.address, self.nearest = address, nearest
        self.offset = None if nearest is None else address - nearest.base
        where = "where its launch has no memory at all"
        if nearest is not None:
            where = f"{self.offset} bytes from the base of {nearest}, which has {nearest.end - nearest.base} bytes"
        super().__init__(f"{who}: out of bounds: {kind} {where}", site)


class AssertionFailed(AssertionError):
    """`tl.device_assert` of what does not hold. `what`: its message; `values`: of the names of the function that says
    it, where it does not hold first."""

    def __init__(self, what: str, values: Mapping[str, Any]) -> None:
        self.what, self.values = what, values
        super().__init__(f"{what}: {', '.join(f'{n} = {v}' for n, v in values.items())}")

    def of(self, text: str) -> AssertionFailed:
        """With the values of the names in a line alone, if it has some of them."""
        names = set(re.findall(r"\w+", text))
        return AssertionFailed(self.what, {n: v for n, v in self.values.items() if n in names} or self.values)


class KernelError(TileLinkError):
    """A kernel raised: the cause is `__cause__`; rank, launch and program say where."""

    def __init__(self, who: Who, site: Site | None, cause: BaseException) -> None:
        self.rank, self.launch, self.program = who.rank, who.launch, who.program
        self._who = who
        super().__init__(f"{who}: {type(cause).__name__}: {cause}", site)

    def at(self, site: Site) -> KernelError:
        """The same error at the line of a tile function that the kernel's was made of."""
        cause = self.__cause__
        assert cause is not None
        return KernelError(self._who, site, cause.of(site.text) if isinstance(cause, AssertionFailed) else cause)


class RaceError(TileLinkError):
    """Accesses to the same memory, at least one of them a write, that nothing orders: all are in `races`."""

    def __init__(self, races: Sequence[Race]) -> None:
        self.races = tuple(races)
        # Ranks that run the same lines race in the same way: that is told once.
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
    """One of a rank that is stuck: in which way (`how`), what it is one of ("worker of matmul", "program of push"), and
    what there is to say of it."""

    rank: int
    how: Hashable
    one_of: str
    text: str


def folded(entries: Iterable[Entry], most: int) -> list[str]:
    """For those of a rank that are stuck in one way a line for the first, and one for how many more there are; at most
    so many ways are told."""
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
