"""Every labelled program: a racy one is found, with the right two lines; a clean one passes every tool."""

from __future__ import annotations

from collections import Counter
from types import ModuleType

import pytest

from tests.parameters import seldom
from tests.verification import atomic, conflict, sync
from tests.verification.cases import Case, Kernels, Tiles
from tests.verification.registry import CASES
from tests.verification.tools import TOOLS
from tilelink.backend.targets import TARGETS
from tilelink.inspect.compile import compiled
from tilelink.inspect.gates import judge

pytestmark = pytest.mark.usefixtures("own_cache")


def every_run() -> set[str]:
    """The names of some of the cases: of each suite and label the first of each kind of finding, and every sixth of
    those written after other suites; of bugs that were shipped the program without the bug, too."""
    kinds, names = set[tuple[str, ...]](), set[str]()
    for case in CASES:
        suite, number, *_ = case.name.split("-")
        kind = suite, case.label, case.tool, case.finding
        if (kind not in kinds and not case.name.endswith("-mended")) or (suite != "twin" and int(number) % 6 == 0):
            names |= {case.name, f"{case.name}-mended"}
        kinds.add(kind)
    return names


EVERY_RUN = every_run()


@pytest.mark.parametrize("case", seldom(CASES, lambda case: case.name not in EVERY_RUN), ids=lambda case: case.name)
def test_the_label_is_what_tools_say(case: Case) -> None:
    reports = [report for tool in TOOLS.values() for report in tool(case) or ()]
    if case.label == "clean":
        assert (case.lines or not case.pair) and not reports, "\n".join(report.text for report in reports)
        return
    assert reports, f"no tool finds {case.name}"
    elsewhere = [report for report in reports if not case.told_by(report)]
    told = {(report.tool, report.kind) for report in reports if report not in elsewhere}
    if case.bug:  # one mistake may be more than one race
        assert (case.tool, case.finding) in told, reports
    else:
        assert not elsewhere, "\n".join(report.text for report in elsewhere)


@pytest.mark.verify
@pytest.mark.parametrize("case", [case for case in CASES if case.label == "clean"], ids=lambda case: case.name)
def test_clean_cases_stay_clean_in_many_orders(case: Case) -> None:
    if isinstance(case.subject, Kernels | Tiles):
        for seed in range(20):
            case.subject.run(world=case.ranks, policy=("random", "pct")[seed % 2], seed=seed)


@pytest.mark.verify
@pytest.mark.parametrize("case", [case for case in CASES if case.label == "clean"], ids=lambda case: case.name)
def test_clean_tile_programs_pass_the_gates(case: Case) -> None:
    if isinstance(case.subject, Tiles):
        at = {"world": case.ranks, "sizes": case.subject.sizes}
        made = case.subject.program.lowered_at(case.subject.schedule, target=TARGETS["sm_90"], **at)
        assert judge(made[0], compiled(*made)).findings == ()


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize(("suite", "racy", "clean"), [(conflict, 35, 14), (sync, 12, 12), (atomic, 5, 4)])
def test_the_discipline_is_whole(suite: ModuleType, racy: int, clean: int) -> None:
    cases: list[Case] = suite.CASES
    assert [case.name.split("-")[1] for case in cases] == [f"{n:03}" for n in range(1, racy + clean + 1)]
    assert Counter(case.label for case in cases) == {"racy": racy, "clean": clean}
