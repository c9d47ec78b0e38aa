"""Pages in docs/ have the tables that the records give."""

from __future__ import annotations

import pytest

from bench import gates_page
from bench.pages import DOCS, PAGES, with_tables


@pytest.mark.parametrize("name", PAGES)
def test_the_page_has_the_tables_of_the_records(name: str) -> None:
    page, tables = (DOCS / name).read_text(), PAGES[name]()
    assert all(table.count("\n") > 2 for table in tables.values())
    assert with_tables(page, tables) == page, "python -m bench.pages writes them"


@pytest.mark.parametrize("text", ["nothing", "<!-- a -->\n", "<!-- a -->\nb\n<!-- end of a -->\n" * 2])
def test_a_page_that_has_no_one_place_for_a_table(text: str) -> None:
    with pytest.raises(ValueError, match="no one place for the table a"):
        with_tables(text, {"a": "new"})
    assert with_tables("x\n<!-- a -->\nold\n<!-- end of a -->\ny", {"a": "new"}).split("\n")[2] == "new"


def test_every_case_that_multiplies_is_in_a_table() -> None:
    shown = gates_page.records()[gates_page.SHOWN]
    made = gates_page.tables()
    for case, figures in shown.items():
        program, schedule, target = case.split()
        table = made["specialised" if target in gates_page.SPECIALISED else "portable"]
        if figures["step"] and target in (*gates_page.PORTABLE, *gates_page.SPECIALISED):
            (line,) = (x for x in table.splitlines() if f"`{program}` |" in x and f"{schedule} " in x)
            assert str(figures["step"]) in line
