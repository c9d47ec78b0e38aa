"""Refusals of the unrolling as findings: tiles that reach outside tensors, ranks or the regions they waited for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilelink import errors
from tilelink.analysis.check.findings import (
    COUNT_ALIKE,
    TELL_ALL,
    Finding,
    finding,
    line_of,
    region_of,
    release_all,
    step,
    tile_of,
)
from tilelink.analysis.events import NOTIFY, READ, WAIT, WRITE, Events
from tilelink.analysis.lanes import Refusal

KINDS: dict[type[errors.TileLinkError], tuple[str, str]] = {
    errors.GuardError: ("unguarded read", "wait for the whole region that is read, or read less"),
    errors.ViewError: (
        "out of bounds",
        "let views end with their tensor, or with its part on a rank: tk.steps(..., stop=...), or a condition",
    ),
    errors.RankError: (
        "no such rank",
        "take the rank modulo tk.world(), or put the statement under a condition on ranks",
    ),
    errors.HomeError: (
        "foreign output",
        "store it to a buffer on the rank of the output, notify it, and let that rank wait for it",
    ),
    errors.WaitWithoutNotifyError: ("lost signal", TELL_ALL),
    errors.SignalCountError: ("signal count", COUNT_ALIKE),
}
"""The kind and the remedy of a finding, by the error of the unrolling."""


def refusals(events: Events, refused: Sequence[Refusal]) -> list[Finding]:
    """The refusals of the unrolling as findings."""
    return [_unguarded(events, r.error) or _refusal(r) for r in refused]


def _refusal(refused: Refusal) -> Finding:
    error = refused.error
    kind, remedy = KINDS[type(error)]
    if refused.claims:
        remedy = release_all(refused.tensor, refused.claims)
    role, number, rank = error.tile or ("", 0, 0)
    return Finding(
        kind=kind,
        tensor=refused.tensor,
        what=error.message,
        tiles=(f"{role} tile {number}",) if error.tile else (),
        ranks=(rank,) if error.tile else (),
        regions=(refused.region,) if error.tile else (),
        lines=(error.site.quoted,) if error.site else (),
        remedy=remedy,
        site=error.site,
    )


def _unguarded(events: Events, error: errors.TileLinkError) -> Finding | None:
    """A finding with the read beyond its wait, and the tile that writes there; None if no tile writes there."""
    if not isinstance(error, errors.GuardError) or error.tile is None:
        return None
    role, number, rank = error.tile
    index = next(k for k, r in enumerate(events.program.roles) if r.name == role)
    mine = np.flatnonzero((events.role == index) & (events.tile == number) & (events.rank == rank))
    for k in mine[events.op[mine] == READ].tolist():
        if events.sites[events.site[k]] != error.site:
            continue
        waits = [w for w in mine[events.op[mine] == WAIT].tolist() if w < k and events.tensor[w] == events.tensor[k]]
        same = (events.op == WRITE) & (events.tensor == events.tensor[k]) & (events.home == events.home[k])
        writes = np.flatnonzero(same)
        writes = writes[events.meets(writes, k)]
        for w in waits:
            writes = writes[~events.meets(writes, w)]
        if len(writes) and waits:
            return _read_beyond(events, int(writes[0]), k, waits[-1])
    return None


def _read_beyond(events: Events, write: int, read: int, wait: int) -> Finding:
    what = (
        f"{region_of(events, read)} is read, but {events.region(wait)} was waited for: "
        f"{tile_of(events, write)} of rank {events.rank[write]} may still be writing the rest"
    )
    tells = events.of_tile(write, NOTIFY)
    tells = tells[events.tensor[tells] == events.tensor[write]]
    chain = [
        step(events, wait, f"which does not cover {events.region(write)}"),
        step(events, read),
        step(events, write, "at the same time"),
        *(step(events, int(k), "no wait before the read covers it") for k in tells[:1]),
    ]
    remedy = (
        f"read no further than {events.region(wait)}, or let this tile wait for {events.region(read)}, too: "
        f"{line_of(events, wait)}"
    )
    return finding(events, KINDS[errors.GuardError][0], [write, read], what, chain, remedy)
