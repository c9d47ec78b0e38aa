"""What exploring finds: one thing that went wrong, in one schedule."""

from __future__ import annotations

from dataclasses import dataclass

from tilelink.emulator import (
    DeadlockError,
    KernelError,
    LivelockError,
    OutOfBoundsError,
    Race,
    RaceError,
)
from tilelink.errors import Site, StuckError, TileLinkError


@dataclass(frozen=True)
class Finding:
    """`kind`: "race", "deadlock", "livelock", "out of bounds", "kernel error", "unwritten read", "unwritten output",
    "unequal results" or "signals left", or what unrolling refuses. `lines`: the places in the source that it is about.
    `what`: all of it, for a person. `seed`: of the schedule that shows it. `remedy`: what would be right, "" where that
    is not known."""

    kind: str
    lines: tuple[str, ...]
    what: str
    seed: int = 0
    remedy: str = ""

    def __str__(self) -> str:
        told = [f"{self.kind} (seed {self.seed}): {self.what}"]
        told += [f"    {line}" for line in self.lines if line not in self.what]
        told += [f"    remedy: {self.remedy}"] if self.remedy else []
        return "\n".join(told)


def findings_of(error: TileLinkError) -> tuple[Finding, ...]:
    """The findings that an error is which ended a run. Raises it again where it is none, but bad input."""
    match error:
        case RaceError():
            return tuple(of_race(race) for race in error.races)
        case StuckError():
            return (_deadlock(error, error.lines),)
        case DeadlockError():
            sites = dict.fromkeys(wait.site for stuck in error.stuck for wait in stuck.waits)
            return (_deadlock(error, tuple(map(line_of, sites))),)
        case OutOfBoundsError():
            return (Finding("out of bounds", _lines(error), error.message),)
        case LivelockError():
            return (Finding("livelock", _lines(error), error.message),)
        case KernelError():
            return (Finding("kernel error", _lines(error), error.message),)
    raise error


def _deadlock(error: TileLinkError, lines: tuple[str, ...]) -> Finding:
    return Finding("deadlock", lines, error.message.removeprefix("deadlock: "))


def of_race(race: Race) -> Finding:
    """The finding that a race is, whichever side comes first."""
    sides = {line_of(site) for party in (race.first, race.second) for site in party.sites or (party.site,)}
    what = str(race).removesuffix(f"\n    remedy: {race.remedy}")
    return Finding("race", tuple(sorted(sides)), what, remedy=race.remedy)


def line_of(site: Site) -> str:
    """A place in the source, with what stands there."""
    return f"{site}: {site.text}" if site.text else str(site)


def _lines(error: TileLinkError) -> tuple[str, ...]:
    return (line_of(error.site),) if error.site else ()
