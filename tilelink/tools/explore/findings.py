"""Findings of exploring: one thing that went wrong in one schedule, and its remedy, if the check knows it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tilelink import emulator
from tilelink.analysis.check import check_events
from tilelink.analysis.check.device import residency
from tilelink.analysis.check.findings import Finding
from tilelink.analysis.events import Events
from tilelink.emulator.beside import NAME
from tilelink.errors import StuckError, TileLinkError

CAUSES = {"unequal results": ("race", "written twice"), "race": ("written twice",)}
"""The kinds under which the check may know the cause of a finding."""


@dataclass(frozen=True)
class Found:
    """A finding, and the seed of the schedule that shows it. Its kind is "race", "deadlock", "livelock", "out of
    bounds", "kernel error", "unwritten read", "stale read", "unwritten output", "written twice", "unequal results" or
    "signals left", or is a kind that unrolling refuses."""

    seed: int
    finding: Finding

    def keys(self) -> dict[str, Any]:
        """The finding as a dict, which the command line prints as JSON."""
        names = ("kind", "lines", "what", "remedy")
        return {"seed": self.seed, **{name: getattr(self.finding, name) for name in names}}

    def __str__(self) -> str:
        finding = self.finding
        told = [f"{finding.kind} (seed {self.seed}): {finding.what}"]
        told += [f"    {line}" for line in finding.lines if line not in finding.what]
        told += [f"    remedy: {finding.remedy}"] if finding.remedy else []
        return "\n".join(told)


def findings_of(error: TileLinkError) -> tuple[Finding, ...]:
    """The findings in an error that ended a run. Raises the error again if it is no finding but bad input."""
    match error:
        case emulator.RaceError():
            return tuple(of_race(race) for race in error.races)
        case StuckError():
            return (_deadlock(error, error.lines),)
        case emulator.DeadlockError():
            sites = dict.fromkeys(wait.site for stuck in error.stuck for wait in stuck.waits)
            return (_deadlock(error, tuple(site.quoted for site in sites)),)
        case emulator.OutOfBoundsError():
            return (Finding(kind="out of bounds", lines=_lines(error), what=error.message),)
        case emulator.LivelockError():
            return (Finding(kind="livelock", lines=_lines(error), what=error.message),)
        case emulator.KernelError():
            return (Finding(kind="kernel error", lines=_lines(error), what=error.message),)
    raise error


def _deadlock(error: TileLinkError, lines: tuple[str, ...]) -> Finding:
    return Finding(kind="deadlock", lines=lines, what=error.message.removeprefix("deadlock: "))


def of_race(race: emulator.Race) -> Finding:
    """The finding for a race, whichever side comes first."""
    sides = {site.quoted for party in (race.first, race.second) for site in party.sites or (party.site,)}
    what = str(race).removesuffix(f"\n    remedy: {race.remedy}")
    return Finding(kind="race", lines=tuple(sorted(sides)), what=what, remedy=race.remedy)


def _lines(error: TileLinkError) -> tuple[str, ...]:
    return (error.site.quoted,) if error.site else ()


class Advice:
    """Remedies for findings in the events of a program, if at most `resident` workers of a rank are under way (None:
    all), and another kernel has `beside` blocks on each rank."""

    def __init__(self, events: Events, resident: int | None, beside: int = 0) -> None:
        self.events, self.resident, self.beside = events, resident, beside

    def __call__(self, finding: Finding) -> Finding:
        """The finding with the remedy that the check has for these lines; for unequal results, and without lines, with
        any remedy of the check; else unchanged."""
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
    def _checked(self) -> tuple[Finding, ...]:
        return check_events(self.events).findings

    def _not_resident(self) -> list[Finding]:
        if self.resident is None:
            return []
        events = self.events
        return residency(events.program, events.allotment, events.sms, events.sms - self.resident)
