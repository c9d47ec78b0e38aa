"""`python -m bench.pages` writes the tables of pages in docs/ from the records. A table stands between two comments
with its name."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from pathlib import Path

from bench import gates_page
from bench.gpu import page as gpu_page

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES: Mapping[str, Callable[[], dict[str, str]]] = {
    "targets.md": gates_page.tables, "performance.md": gpu_page.tables,
}  # fmt: skip


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """Returns the text of a page with its tables in place of those that it has. Raises ValueError if it has not exactly
    one place for each."""
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, *rest = text.split(begin)
        if len(rest) != 1 or end not in rest[0]:
            raise ValueError(f"the page has no one place for the table {name}")
        text = before + begin + table + end + rest[0].partition(end)[2]
    return text


def main() -> None:
    """Writes all pages."""
    ArgumentParser(prog="python -m bench.pages", description=__doc__).parse_args()
    for name, tables in PAGES.items():
        page = DOCS / name
        page.write_text(with_tables(page.read_text(), tables()))


if __name__ == "__main__":
    main()
