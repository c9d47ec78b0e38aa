"""Signals: each wait is for all that its signal is given in a run; and what is given that nobody waits for."""

from __future__ import annotations

import numpy as np

from tilelink.analysis.check.findings import SHOWN, Finding, about, firsts, step
from tilelink.analysis.check.synchronisation import Synchronisation


def miscounts(sync: Synchronisation) -> list[Finding]:
    """Waits that end before all notifications of their signal have come. (Those that never end get stuck.)"""
    events = sync.events
    waits = np.flatnonzero(~sync.notifies)
    given, expected = sync.given[sync.signal[waits]], events.expected[sync.at[waits]]
    early = waits[(expected < given) | (expected < 1)]
    found = []
    for j in firsts(events.site[sync.at[early]])[:SHOWN]:
        wait = int(early[j])
        k, times = int(sync.at[wait]), int(sync.given[sync.signal[wait]])
        gives = sync.at[sync.notifies & (sync.signal == sync.signal[wait])]
        found.append(
            Finding(
                kind="signal count",
                what=f"a wait ends after {events.expected[k]} of {times} notifications of cell {events.cell[k]} on "
                f"rank {events.rank[k]}: it does not say whose have come",
                chain=(*(step(events, int(n)) for n in gives[-1:]), step(events, k)),
                remedy="let whether and how often a tile notifies depend on ranks only, so that it can be counted",
                **about(events, [*map(int, gives[-1:]), k]),
            )
        )
    return found


def unheard(sync: Synchronisation) -> list[str]:
    """Notes on signals that are given and that nobody waits for."""
    events = sync.events
    tokens = [k for k, t in enumerate(events.program.tensors) if t.kind == "token"]  # of the last entries nobody asks
    silent = np.flatnonzero(sync.notifies & ~sync.awaited[sync.signal] & ~np.isin(events.tensor[sync.at], tokens))
    notes = []
    for j in firsts(events.tensor[sync.at[silent]]):
        k = int(sync.at[silent[j]])
        tensor, site = events.program.tensors[events.tensor[k]].name, events.sites[events.site[k]]
        of_tensor = silent[events.tensor[sync.at[silent]] == events.tensor[k]]
        count, signals = len(of_tensor), len(np.unique(sync.signal[of_tensor]))
        notes.append(
            f"{count} notifications of {signals} signals of {tensor} are made and nobody waits for them; the run "
            f"drains them ({site}: {site.text})"
        )
    return notes
