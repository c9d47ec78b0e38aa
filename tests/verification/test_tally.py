"""The tables of labelled programs on the page of verification are what the tools say.

After a change that is meant, `TILELINK_RENEW=1 pytest -m verify -k tally tests/verification` writes them anew, in about
five minutes; make test that of the bugs.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.verification import tally
from tests.verification.cases import Case, Report
from tests.verification.registry import CASES
from tests.verification.tally import SUITES, bugs, finders, orders, table

PAGE = Path(__file__).parent.parent.parent / "docs" / "verification.md"


def written(name: str, text: str) -> bool:
    """Whether a part of the page is this text."""
    part = f"<!-- {name} -->\n{text}\n<!-- end of {name} -->"
    if os.environ.get("TILELINK_RENEW"):
        pattern = f"<!-- {name} -->\n.*?<!-- end of {name} -->"
        PAGE.write_text(re.sub(pattern, lambda _: part, PAGE.read_text(), flags=re.DOTALL))
    return part in PAGE.read_text()


@pytest.mark.verify
@pytest.mark.usefixtures("own_cache")
def test_the_page_has_the_tally() -> None:
    assert written("tally", table(CASES))


@pytest.mark.verify
def test_the_page_says_how_much_hangs_on_the_schedule() -> None:
    assert written("orders", orders(CASES))


def test_the_page_has_the_bugs() -> None:
    assert written("bugs", bugs(CASES))


RACY = [case for case in CASES if case.label == "racy"]


@pytest.mark.parametrize("case", RACY, ids=lambda case: case.name)
def test_only_a_report_of_the_mistake_counts(case: Case) -> None:
    """One of its kind that names its lines, or says what it has to; not one of another kind, of other lines, or of
    nothing."""
    lines = " ".join(sorted(case.lines))
    right = Report(case.tool or "execution", case.finding, f"{lines} {case.says}")
    assert case.told_by(right)
    others = [replace(right, kind="livelock"), replace(right, text=f"elsewhere.py:1 {case.says[1:]}")]
    others += [replace(right, text=f"{line} {case.says[1:]}") for line in case.lines if len(case.lines) > 1]
    others += [] if case.pair else [replace(right, tool="oracle")]
    assert not any(map(case.told_by, others))


def test_a_mistake_with_an_unrelated_report_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unrelated(case: Case) -> list[Report]:
        return [Report("check", "ScheduleError", f"{case.name}: no such role")]

    case = next(case for case in RACY if case.name == "twin-more-workers-than-SMs")
    monkeypatch.setattr(tally, "TOOLS", {"check": unrelated})
    assert finders(case) == frozenset()
    assert "| twins of real bugs | 1 | 0 | 1 | 0 | 0 | 0 |" in table([case])


def test_a_case_asks_for_something() -> None:
    with pytest.raises(AssertionError, match="any report would do"):
        replace(RACY[0], pair=(), says="")


def test_each_case_is_of_a_suite() -> None:
    assert {case.name.partition("-")[0] for case in CASES} == set(SUITES)
