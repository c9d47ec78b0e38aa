"""What exploring finds: one thing that went wrong, in one schedule; and what would be right, as the check knows it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tilelink import emulator
from tilelink.analysis.check import check_events
from tilelink.analysis.check.device import residency
from tilelink.analysis.check.findings import Finding as Checked
from tilelink.analysis.events import Events
from tilelink.emulator.beside import NAME
from tilelink.errors import Site, StuckError, TileLinkError

CAUSES = {"unequal results": ("race", "written twice"), "race": ("written twice",)}
"""What is behind a finding, where that has another name."""


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
        case emulator.RaceError():
            return tuple(of_race(race) for race in error.races)
        case StuckError():
            return (_deadlock(error, error.lines),)
        case emulator.DeadlockError():
            sites = dict.fromkeys(wait.site for stuck in error.stuck for wait in stuck.waits)
            return (_deadlock(error, tuple(map(line_of, sites))),)
        case emulator.OutOfBoundsError():
            return (Finding("out of bounds", _lines(error), error.message),)
        case emulator.LivelockError():
            return (Finding("livelock", _lines(error), error.message),)
        case emulator.KernelError():
            return (Finding("kernel error", _lines(error), error.message),)
    raise error


def _deadlock(error: TileLinkError, lines: tuple[str, ...]) -> Finding:
    return Finding("deadlock", lines, error.message.removeprefix("deadlock: "))


def of_race(race: emulator.Race) -> Finding:
    """The finding that a race is, whichever side comes first."""
    sides = {line_of(site) for party in (race.first, race.second) for site in party.sites or (party.site,)}
    what = str(race).removesuffix(f"\n    remedy: {race.remedy}")
    return Finding("race", tuple(sorted(sides)), what, remedy=race.remedy)


def line_of(site: Site) -> str:
    """A place in the source, with what stands there."""
    return f"{site}: {site.text}" if site.text else str(site)


def _lines(error: TileLinkError) -> tuple[str, ...]:
    return (line_of(error.site),) if error.site else ()


class Advice:
    """The remedies for findings in the events of a program, of which at most `resident` workers of a rank are under way
    (None: all), where another kernel has `beside` blocks on each rank."""

    def __init__(self, events: Events, resident: int | None, beside: int = 0) -> None:
        self.events, self.resident, self.beside = events, resident, beside

    def __call__(self, finding: Finding) -> Finding:
        """The finding with a remedy: that of what the check finds in these lines, or in the program at all, else its
        own."""
        kinds = finding.kind, *CAUSES.get(finding.kind, ())
        if self.beside and finding.kind == "deadlock" and NAME in finding.what:
            return replace(finding, remedy=f"leave {self.beside} SMs to {NAME}, on every rank: reserved={self.beside}")
        alike = [f for f in self._checked if f.kind in kinds]
        near = [f for f in alike if set(f.lines) & set(finding.lines)]
        if finding.kind == "deadlock" and not alike:
            near = self._not_resident()
        found = near or (alike if finding.kind == "unequal results" or not finding.lines else [])
        return replace(finding, remedy=found[0].remedy) if found else finding

    @cached_property
    def _checked(self) -> tuple[Checked, ...]:
        return check_events(self.events).findings

    def _not_resident(self) -> list[Checked]:
        if self.resident is None:
            return []
        events = self.events
        return residency(events.program, events.allotment, events.sms, events.sms - self.resident)
