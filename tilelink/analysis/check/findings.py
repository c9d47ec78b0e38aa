"""The findings of a check, and the report that holds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tilelink.analysis.events import NOTIFY, WAIT, Events
from tilelink.errors import Site, UnsafeProgramError

SHOWN = 10
"""The most findings of a kind in a report. Each stands for all findings of its two source lines."""
TELL_ALL = (
    "notify, on every path, the stores to the region that is waited for, or wait for one that is notified; a view "
    "without .at(...) is on the rank that executes the tile"
)
TELL_ONCE = "notify a region once, after the last store to it"
COUNT_ALIKE = "let only ranks decide whether and how often a tile notifies, so that notifications can be counted"
"""Remedies for findings in the tile program and in its events."""


def release_all(tensor: str, buffers: int) -> str:
    """The remedy for a claim whose entry nobody releases."""
    return (
        f"a claim of entry e of {tensor} waits for the release of entry e - {buffers}: let every tile that waits for "
        f"an entry release it, tk.release(...) of what tk.wait({tensor}[...]) returned, after its last read"
    )


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One mistake. `tiles`, `ranks`, `regions` and `lines` have one entry for each tile of the finding, in the same
    order; they have none if no tile makes the mistake. `chain`: a shortest chain of events that leads to it. `remedy`:
    the correction if it is known, else ""."""

    kind: str
    tensor: str = ""
    what: str
    tiles: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    regions: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    chain: tuple[str, ...] = ()
    remedy: str = ""
    site: Site | None = None

    def __str__(self) -> str:
        text = [f"{self.kind}: {self.what}"]
        about = zip(self.tiles, self.ranks, self.regions, strict=False)
        text += [f"    {tile} of rank {rank}: {region}" for tile, rank, region in about]
        text += [f"    {line}" for line in dict.fromkeys(self.lines)]
        if self.chain:
            text += ["    events that lead to it:", *(f"    {n}. {step}" for n, step in enumerate(self.chain, 1))]
        text += [f"    remedy: {self.remedy}"] if self.remedy else []
        return "\n".join(text)


@dataclass(frozen=True)
class Report:
    """The result of a check of a program at given sizes.

    `proof`: "structural" if the structure of the program excludes races and deadlocks inside a run at all sizes,
    "unrolled" if this is shown for these sizes only. `because`: why the structure does not suffice. `notes`: safe
    things that look unintended. `peak_rss_bytes`: of the process.
    """

    program: str
    proof: str
    because: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    events: int
    seconds: float
    peak_rss_bytes: int

    @property
    def verdict(self) -> str:
        return "unsafe" if self.findings else "safe"

    def raise_if_unsafe(self) -> None:
        """Raises UnsafeProgramError with the findings."""
        if self.findings:
            first = "\n\n".join(map(str, self.findings[:3]))
            more = f"\n\nand {len(self.findings) - 3} more findings" if len(self.findings) > 3 else ""
            raise UnsafeProgramError(f"{self.program} is not safe to run\n{first}{more}", self.findings[0].site)

    def keys(self) -> dict[str, Any]:
        """The report as a dict, which the command line prints as JSON."""
        findings = [{k: v for k, v in asdict(f).items() if k != "site"} for f in self.findings]
        names = ("verdict", "proof", "because", "notes", "events", "seconds", "peak_rss_bytes")
        return {"findings": findings, **{name: getattr(self, name) for name in names}}

    def text(self) -> str:
        """The findings and notes as text."""
        return "\n".join(["\n\n".join(map(str, self.findings)), *(f"note: {n}" for n in self.notes)]).strip()

    def __str__(self) -> str:
        how = "for all sizes" if self.proof == "structural" else "for these sizes"
        count = f"{len(self.findings)} finding{'s' if len(self.findings) > 1 else ''}"
        found = count if self.findings else f"proof: {self.proof}, {how}"
        return f"{self.verdict} ({found}; {self.events} events)\n{self.text()}".strip() + "\n"


def finding(events: Events, kind: str, about: Sequence[int], what: str, chain: Iterable[str], remedy: str) -> Finding:
    """A finding about these events."""
    return Finding(
        kind=kind,
        what=what,
        tensor=events.touched(about[0]).name,
        tiles=tuple(tile_of(events, k) for k in about),
        ranks=tuple(int(events.rank[k]) for k in about),
        regions=tuple(region_of(events, k) for k in about),
        lines=tuple(line_of(events, k) for k in about),
        chain=tuple(chain),
        remedy=remedy,
        site=events.sites[events.site[about[-1]]],
    )


def tile_of(events: Events, k: int) -> str:
    """The tile of an event, by role and number."""
    return f"{events.program.roles[events.role[k]].name} tile {events.tile[k]}"


def region_of(events: Events, k: int) -> str:
    """The region of an event, and whose memory it is."""
    where = "" if events.op[k] == NOTIFY else f" at rank {events.home[k]}"
    return f"{events.region(k)}{where}"


def line_of(events: Events, k: int) -> str:
    """The source line of an event."""
    return events.sites[events.site[k]].quoted


def step(events: Events, k: int, remark: str = "") -> str:
    """An event as a step of a chain."""
    return f"{events.describe(k)} ({line_of(events, k)})" + (f"; {remark}" if remark else "")


def last_wait_before(events: Events, k: int) -> list[int]:
    """The last wait before an event in its tile; empty where there is none."""
    found = events.of_tile(k, WAIT)
    return [int(j) for j in found[found < k][-1:]]


def firsts(*columns: np.ndarray) -> np.ndarray:
    """The first index of each distinct combination of values in the columns, in order."""
    if not len(columns[0]):
        return np.zeros(0, np.int64)
    _, first = np.unique(np.stack([c.astype(np.int64) for c in columns], axis=1), axis=0, return_index=True)
    return np.sort(first)
