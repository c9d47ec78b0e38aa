"""Every labelled program: a racy one is found, with the right two lines; a clean one passes every tool."""

from __future__ import annotations

import pytest

from tests.verification.cases import Case
from tests.verification.registry import CASES
from tests.verification.tools import TOOLS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_label_is_what_tools_say(case: Case) -> None:
    reports = [report for tool in TOOLS.values() for report in tool(case) or ()]
    if case.label == "clean":
        assert case.lines and not reports, "\n".join(report.text for report in reports)
        return
    assert reports, f"no tool finds {case.name}"
    elsewhere = [report.text for report in reports if not case.lines <= report.lines]
    assert not elsewhere, "\n".join(elsewhere)


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
