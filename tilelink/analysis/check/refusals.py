"""What the unrolling refuses, as findings: tiles that reach outside of tensors, ranks or what they waited for."""

from __future__ import annotations

import numpy as np

from tilelink.analysis.check.findings import (
    COUNT_ALIKE,
    TELL_ALL,
    Finding,
    about,
    line_of,
    region_of,
    step,
    tile_of,
)
from tilelink.analysis.events import NOTIFY, READ, WAIT, WRITE, Events
from tilelink.analysis.unroll import unroll
from tilelink.errors import GuardError, TileLinkError
from tilelink.frontend.ir import TileProgram
from tilelink.frontend.sizes import Sizes

KINDS = {
    "GuardError": "unguarded read",
    "ViewError": "out of bounds",
    "RankError": "no such rank",
    "HomeError": "foreign output",
    "WaitWithoutNotifyError": "lost signal",
    "SignalCountError": "signal count",
}
"""What findings are called, by the class of the error that the unrolling raises."""

REMEDIES = {
    "GuardError": "wait for all that is read, or read no more than was waited for",
    "ViewError": "let views end where their tensor, or its part on a rank, does: tk.steps(..., stop=...), a condition",
    "RankError": "take the rank modulo tk.world(), or put the statement under a condition on ranks",
    "HomeError": "store it to a buffer of the rank that the output is of, notify it, and let that rank wait for it",
    "WaitWithoutNotifyError": TELL_ALL,
    "SignalCountError": COUNT_ALIKE,
}
"""What would be right, by the class of the error."""


def refusal(program: TileProgram, sizes: Sizes, sms: int, error: TileLinkError) -> Finding:
    """The finding that an error of the unrolling is."""
    if isinstance(error, GuardError) and error.tile is not None:
        found = _unguarded(unroll(program, sizes, sms=sms, guards=False), error, error.tile)
        if found is not None:
            return found
    role, number, rank = error.tile or ("", 0, 0)
    return Finding(
        kind=KINDS[type(error).__name__],
        tensor="",
        what=error.message,
        tiles=(f"{role} tile {number}",) if error.tile else (),
        ranks=(rank,) if error.tile else (),
        regions=(),
        lines=(f"{error.site}: {error.site.text}",) if error.site else (),
        chain=(),
        remedy=REMEDIES[type(error).__name__],
        site=error.site,
    )


def _unguarded(events: Events, error: GuardError, tile: tuple[str, int, int]) -> Finding | None:
    """The read that goes beyond its wait, and the tile that writes what lies beyond; None where none writes it."""
    role, number, rank = tile
    index = next(k for k, r in enumerate(events.program.roles) if r.name == role)
    mine = np.flatnonzero((events.role == index) & (events.tile == number) & (events.rank == rank))
    for k in mine[events.op[mine] == READ].tolist():
        if events.sites[events.site[k]] != error.site:
            continue
        waits = [w for w in mine[events.op[mine] == WAIT].tolist() if w < k and events.tensor[w] == events.tensor[k]]
        same = (events.op == WRITE) & (events.tensor == events.tensor[k]) & (events.home == events.home[k])
        writes = np.flatnonzero(same & _meets(events, np.arange(len(events)), k))
        for w in waits:
            writes = writes[~_meets(events, writes, w)]
        if len(writes) and waits:
            return _finding(events, int(writes[0]), k, waits[-1])
    return None


def _finding(events: Events, write: int, read: int, wait: int) -> Finding:
    tensor = events.program.tensors[events.tensor[read]].name
    tells = np.flatnonzero(
        (events.op == NOTIFY)
        & (events.tensor == events.tensor[write])
        & (events.role == events.role[write])
        & (events.tile == events.tile[write])
        & (events.rank == events.rank[write])
    )
    chain = [
        step(events, wait, f"which says nothing of {events.region(write)}"),
        step(events, read),
        step(events, write, "at the same time"),
        *(step(events, int(k), "which nobody waits for before the read") for k in tells[:1]),
    ]
    return Finding(
        kind=KINDS["GuardError"],
        what=f"{region_of(events, read)} is read, but {events.region(wait)} was waited for: "
        f"{tile_of(events, write)} of rank {events.rank[write]} may still be writing the rest",
        chain=tuple(chain),
        remedy=f"read no further than {events.region(wait)}, or let this tile wait for {events.region(read)}, too: "
        f"{line_of(events, wait)}",
        **about(events, [write, read]) | {"tensor": tensor},
    )


def _meets(events: Events, some: np.ndarray, k: int) -> np.ndarray:
    """Whether the regions of events overlap that of one."""
    return ((events.lo[some] < events.hi[k]) & (events.lo[k] < events.hi[some])).all(axis=1)
