"""The tools that look at labelled programs. Each returns what it reports, None where it can't take such a program."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

from tests.verification.cases import Case, Kernels, Report, Tiles
from tests.verification.primitives import Primitives, TwoDots
from tilelink.emulator import RaceError
from tilelink.errors import TileLinkError
from tilelink.tools.explore import Oracle, explore

SCHEDULES: tuple[Mapping[str, Any], ...] = (
    {"policy": "random", "seed": 0},
    {"policy": "random", "seed": 1},
    {"policy": "pct", "seed": 2},
)
"""Under which kernels written by hand are executed; for tile programs, which the check looks at, the first will do."""


def frontend(case: Case) -> list[Report] | None:
    """What is refused when the tile program is made from its source."""
    if not isinstance(case.subject, Tiles):
        return None
    try:
        case.subject.program.bind(case.subject.schedule)
    except TileLinkError as error:
        return [Report("frontend", type(error).__name__, str(error))]
    return []


def check(case: Case) -> list[Report] | None:
    """What the check says of the events of a run, at the sizes of the case."""
    if not isinstance(case.subject, Tiles) or frontend(case):
        return None
    subject = case.subject
    try:
        report = subject.program.check(subject.schedule, world=case.ranks, sms=subject.sms, **subject.sizes)
    except TileLinkError as error:
        return [Report("check", type(error).__name__, str(error))]
    return [Report("check", finding.kind, str(finding)) for finding in report.findings]


def oracle(case: Case) -> list[Report] | None:
    """What exploring the events of a run finds, without Triton; None where they can't be had. That results differ is
    told where nothing else says why."""
    if not isinstance(case.subject, Tiles) or frontend(case):
        return None
    subject = case.subject
    try:
        made = Oracle.of(subject.program, subject.schedule, world=case.ranks, sms=subject.sms, **subject.sizes)
    except TileLinkError:
        return None
    found = explore(made, range(8)).found
    found = [f for f in found if f.finding.kind != "unequal results"] or found
    return [Report("oracle", f.finding.kind, "\n".join([str(f), *f.finding.lines])) for f in found]


def execution(case: Case) -> list[Report] | None:
    """What is found when the kernels run, lowered or written by hand; the check is passed over."""
    if not isinstance(case.subject, Tiles | Kernels):
        return None
    if isinstance(case.subject, Tiles) and (case.subject.arguments is None or frontend(case)):
        return None
    schedules = SCHEDULES[: 1 if isinstance(case.subject, Tiles) else None]
    return list({r.text: r for schedule in schedules for r in executed(case, case.subject, schedule)}.values())


def executed(case: Case, subject: Tiles | Kernels, schedule: Mapping[str, Any]) -> list[Report]:
    """What is found under one schedule."""
    try:
        with mock.patch.dict(os.environ, TILELINK_CHECK="0"):
            subject.run(world=case.ranks, **schedule)
    except RaceError as error:
        return [Report("execution", "race", str(race)) for race in error.races]
    except TileLinkError as error:
        return [Report("execution", type(error).__name__, str(error))]
    return []


def gates(case: Case) -> list[Report] | None:
    """What the gates of lowering miss in what is compiled."""
    if not isinstance(case.subject, Primitives | TwoDots):
        return None
    return [Report("gates", finding.partition(":")[0], finding) for finding in case.subject.judged()]


TOOLS: Mapping[str, Callable[[Case], list[Report] | None]] = {
    "frontend": frontend,
    "check": check,
    "oracle": oracle,
    "execution": execution,
    "gates": gates,
}
