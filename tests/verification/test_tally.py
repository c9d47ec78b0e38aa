"""The tables of labelled programs on the page of verification are what the tools say.

After a change that is meant, TILELINK_RENEW=1 make verify ARGS="-k tally" writes them anew; make test the second.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.verification.registry import CASES
from tests.verification.tally import SUITES, bugs, table

PAGE = Path(__file__).parent.parent.parent / "docs" / "verification.md"


def written(name: str, text: str) -> bool:
    """Whether a part of the page is this text."""
    part = f"<!-- {name} -->\n{text}\n<!-- end of {name} -->"
    if os.environ.get("TILELINK_RENEW"):
        pattern = f"<!-- {name} -->\n.*?<!-- end of {name} -->"
        PAGE.write_text(re.sub(pattern, lambda _: part, PAGE.read_text(), flags=re.DOTALL))
    return part in PAGE.read_text()


@pytest.mark.verify
def test_the_page_has_the_tally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path / "kernels"))
    assert written("tally", table(CASES))


def test_the_page_has_the_bugs() -> None:
    assert written("bugs", bugs(CASES))


def test_each_case_is_of_a_suite() -> None:
    assert {case.name.partition("-")[0] for case in CASES} == set(SUITES)
