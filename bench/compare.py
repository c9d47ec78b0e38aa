"""Compares two results, and finds what got worse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.records import WALL, Record

KEY = ("op", "shape", "dtype", "world", "schedule", "workers", "what")
TOLERANCE = 0.05
"""The share by which a figure may grow. Random schedules and a busier machine change figures by less."""


def regressions(before: Sequence[Record], after: Sequence[Record]) -> list[dict[str, Any]]:
    """Returns results that were right and are wrong or missing, and figures that grew. The interpreter's wall time is
    left out, since it depends on the machine."""
    now = {_key(r): r for r in after}
    found = []
    for old in before:
        new = now.get(_key(old))
        about = dict(zip(KEY, _key(old), strict=True))
        if not old["ok"]:
            continue
        if new is None or not new["ok"]:
            kind = "missing" if new is None else "wrong"
            found.append({**about, "kind": kind, "before": _figure(old), "after": None, "change": None})
            continue
        was, is_ = _figure(old), _figure(new)
        if was and is_ and is_ > was * (1 + TOLERANCE):
            found.append({**about, "kind": "slower", "before": was, "after": is_, "change": round(is_ / was - 1, 4)})
    return found


def _key(record: Record) -> tuple[Any, ...]:
    return tuple(record.get(k) for k in KEY)


def _figure(record: Record) -> float | None:
    """Returns the figure of a record that is compared, or None."""
    if record["what"] == WALL:
        return None
    logical = record.get("logical")
    return logical["median"] if logical else record.get("median_us")


def text(found: Sequence[dict[str, Any]], compared: int) -> str:
    """Returns the regressions as text."""
    lines = []
    for r in found:
        change = f"{r['before']:g} -> {r['after']:g} ({r['change']:+.1%})" if r["change"] is not None else "was right"
        name = f"{r['op']} {r['shape']} {r['dtype']}, {r['world']} ranks, {r['schedule']}"
        lines.append(f"{r['kind']}: {name}: {change}: {r['what']}\n")
    return "".join([*lines, f"{len(found)} regressions in {compared} figures and results\n"])
