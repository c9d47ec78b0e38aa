"""The table of labelled programs on the page of verification is what the tools say.

After a change that is meant, TILELINK_RENEW=1 make verify ARGS="-k tally" writes it anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.verification.registry import CASES
from tests.verification.tally import SUITES, table

PAGE = Path(__file__).parent.parent.parent / "docs" / "verification.md"


@pytest.mark.verify
def test_the_page_has_the_tally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path / "kernels"))
    made = f"<!-- tally -->\n{table(CASES)}\n<!-- end of tally -->"
    page = PAGE.read_text()
    written = re.sub(r"<!-- tally -->\n.*?<!-- end of tally -->", lambda _: made, page, flags=re.DOTALL)
    if os.environ.get("TILELINK_RENEW"):
        PAGE.write_text(written)
    assert made in PAGE.read_text()


def test_each_case_is_of_a_suite() -> None:
    assert {case.name.partition("-")[0] for case in CASES} == set(SUITES)
