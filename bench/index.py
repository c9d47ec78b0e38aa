"""The page that links all other pages: it has a table of findings, and every file that a run of the harness wrote."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from bench.records import Record

PAGE = "index.html"
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.15em .8em;text-align:left;border-bottom:1px solid #ddd}"
    ".wrong{color:#b00020;font-weight:600}pre{overflow-x:auto}"
)


def write(text: str, records: Sequence[Record], files: Sequence[str], folder: Path) -> Path:
    """Writes the page to a folder; returns its path. `text`: the tables; `files`: of the same folder."""
    names = [Path(file).name for file in files]
    pages = [n for n in names if n.endswith(".html")]
    others = [n for n in names if not n.endswith(".html")]
    of = {r["page"]: r for r in records if r.get("page")}
    wrong = sum(not r["ok"] for r in records)
    state = f'<p class="wrong">{wrong} results are wrong.</p>' if wrong else "<p>All results are right.</p>"
    body = [
        "<h1>TileLink: make bench</h1>", state, "<h2>Timelines</h2>",
        "<p>Each shows tiles by worker and what they wait for. Predicted ones are in microseconds, executed ones in "
        "memory operations.</p>",
        "<ul>", *(f"<li>{_link(name)}{_about(of.get(name))}</li>" for name in pages), "</ul>",
        "<h2>Tables</h2>", f"<pre>{escape(text)}</pre>",
        "<h2>Other files</h2>", "<ul>", *(f"<li>{_link(name)}</li>" for name in others), "</ul>",
    ]  # fmt: skip
    path = folder / PAGE
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>make bench</title><style>{STYLE}</style>'
        + "\n".join(body) + "</html>\n"
    )  # fmt: skip
    return path


def _link(name: str) -> str:
    return f'<a href="{escape(name)}">{escape(name)}</a>'


def _about(record: Record | None) -> str:
    """Returns the shape and predicted time that a page of a prediction shows, else ""."""
    if record is None:
        return ""
    return f": {escape(record['shape'])}, predicted {record['min_us']:,.0f} to {record['max_us']:,.0f} us"
