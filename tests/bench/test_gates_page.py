"""The tables of docs/targets.md are those of the records of the gates."""

from __future__ import annotations

import pytest

from bench import gates_page


def test_the_page_has_the_records() -> None:
    page = gates_page.PAGE.read_text()
    assert gates_page.with_tables(page) == page, "python -m bench.gates_page writes them"


def test_every_case_that_multiplies_is_in_a_table() -> None:
    shown = gates_page.records()[gates_page.SHOWN]
    made = gates_page.tables()
    for case, figures in shown.items():
        program, schedule, target = case.split()
        table = made["specialised" if target in gates_page.SPECIALISED else "portable"]
        if figures["step"] and target in (*gates_page.PORTABLE, *gates_page.SPECIALISED):
            (line,) = (x for x in table.splitlines() if f"`{program}` |" in x and f"{schedule} " in x)
            assert str(figures["step"]) in line


def test_a_page_without_a_place_for_a_table_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no one place for the table portable"):
        gates_page.with_tables("nothing")
