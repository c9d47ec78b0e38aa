"""What a check finds: findings, and the report that holds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tilelink.analysis.events import NOTIFY, Events
from tilelink.errors import Site, UnsafeProgramError

SHOWN = 10
"""How many findings of a kind a report holds; each stands for all that its two lines of source do."""
TELL_ALL = "notify, on every path, what is stored to the region that is waited for"
COUNT_ALIKE = "let whether and how often a tile notifies depend on ranks only, so that it can be counted"
"""Remedies, of what is found in the tile program as of what is found in its events."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong. `tiles`, `ranks`, `regions` and `lines` have an entry for each of the tiles it is about,
    in the same order (where it is about what no tile does, there is no tile); `chain`: a shortest chain of events that
    leads there; `remedy`: what would be right, where that is known, else ""."""

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
            text += ["    how it comes to that:", *(f"    {n}. {step}" for n, step in enumerate(self.chain, 1))]
        text += [f"    remedy: {self.remedy}"] if self.remedy else []
        return "\n".join(text)


@dataclass(frozen=True)
class Report:
    """What a check of a program at given sizes has shown.

    `proof`: "structural" where the structure of the program excludes races and deadlocks inside a run at all sizes,
    "unrolled" where that is shown for these sizes alone; `because` says why the structure does not suffice. `notes`:
    what is safe, but looks unintended. `peak_rss_bytes` is that of the process.
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
        """For programs: what the command line prints as JSON."""
        findings = [{k: v for k, v in asdict(f).items() if k != "site"} for f in self.findings]
        names = ("verdict", "proof", "because", "notes", "events", "seconds", "peak_rss_bytes")
        return {"findings": findings, **{name: getattr(self, name) for name in names}}

    def text(self) -> str:
        """For a person."""
        return "\n".join(["\n\n".join(map(str, self.findings)), *(f"note: {n}" for n in self.notes)]).strip()

    def __str__(self) -> str:
        how = "for all sizes" if self.proof == "structural" else "for these sizes"
        count = f"{len(self.findings)} finding{'s' if len(self.findings) > 1 else ''}"
        found = count if self.findings else f"proof: {self.proof}, {how}"
        return f"{self.verdict} ({found}; {self.events} events)\n{self.text()}".strip() + "\n"


def finding(events: Events, kind: str, about: Sequence[int], what: str, chain: Iterable[str], remedy: str) -> Finding:
    """A finding that is about some events."""
    return Finding(
        kind=kind,
        what=what,
        tensor=events.program.tensors[events.tensor[about[0]]].name,
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
    site = events.sites[events.site[k]]
    return f"{site}: {site.text}"


def step(events: Events, k: int, remark: str = "") -> str:
    """An event as a step of a chain."""
    return f"{events.describe(k)} ({line_of(events, k)})" + (f"; {remark}" if remark else "")


def last_before(events: Events, k: int, op: int) -> list[int]:
    """The last event of a kind before an event in its tile; empty where there is none."""
    found = events.of_tile(k, op)
    return [int(j) for j in found[found < k][-1:]]


def firsts(*columns: np.ndarray) -> np.ndarray:
    """The first index of each distinct combination of values in the columns, in order."""
    if not len(columns[0]):
        return np.zeros(0, np.int64)
    _, first = np.unique(np.stack([c.astype(np.int64) for c in columns], axis=1), axis=0, return_index=True)
    return np.sort(first)
