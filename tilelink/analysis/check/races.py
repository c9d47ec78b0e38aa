"""Races, and reads of what nobody wrote, or of another entry: one sweep over all accesses to each written tensor.

The accesses to a cell are put in the order of one execution. If each write comes before the accesses up to the next
write, and those before that, in every execution, then so do all that conflict: the relation is transitive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilelink.analysis.check.before import Before
from tilelink.analysis.check.cells import Cells
from tilelink.analysis.check.findings import SHOWN, Finding, about, firsts, line_of, step
from tilelink.analysis.events import NOTIFY, WAIT, WRITE, Events


@dataclass(frozen=True, eq=False)
class Pairs:
    """Accesses `one` and `other` (events) that conflict in `cell`, `one` being earlier in some execution; `blank`: it
    is a read, and nobody has written before."""

    one: np.ndarray
    other: np.ndarray
    cell: np.ndarray
    blank: np.ndarray

    def __getitem__(self, mask: np.ndarray) -> Pairs:
        return Pairs(self.one[mask], self.other[mask], self.cell[mask], self.blank[mask])


def conflicts(cells: Cells, turn: np.ndarray) -> tuple[Pairs, np.ndarray]:
    """The pairs that have to be ordered; and which entries of `cells` are reads where nobody writes at all. `turn`:
    for each entry, when its access comes in the execution."""
    order = np.lexsort((cells.access, turn, cells.cell))
    access, cell = cells.access[order], cells.cell[order]
    n, at = len(order), np.arange(len(order))
    writes = cells.events.op[access] == WRITE
    new = np.concatenate([[True], cell[1:] != cell[:-1]])[:n]
    begin = np.maximum.accumulate(np.where(new, at, 0))
    end = np.minimum.accumulate(np.where(np.append(new[1:], True)[:n], at, n)[::-1])[::-1]
    earlier = np.concatenate([[-1], np.maximum.accumulate(np.where(writes, at, -1))[:-1]])[:n]
    later = np.minimum.accumulate(np.where(writes, at, n)[::-1])[::-1]
    follows = earlier >= begin
    precedes = ~writes & (later <= end)
    one = np.concatenate([earlier[follows], at[precedes]])
    other = np.concatenate([at[follows], later[precedes]])
    blank = np.concatenate([np.zeros(follows.sum(), bool), ~follows[precedes]])
    unwritten = ~writes & ~follows & ~precedes
    return Pairs(access[one], access[other], cell[one], blank), order[unwritten]


def races(cells: Cells, pairs: Pairs, ordered: np.ndarray, before: Before) -> list[Finding]:
    """Findings for the pairs that nothing orders; `ordered` says which something does."""
    events, bad = before.sync.events, pairs[~ordered]
    kinds = firsts(events.site[bad.one], events.site[bad.other], events.op[bad.one], events.op[bad.other])
    found = []
    for k in kinds[:SHOWN]:
        same = (events.site[bad.one] == events.site[bad.one[k]]) & (events.site[bad.other] == events.site[bad.other[k]])
        one, other = int(bad.one[k]), int(bad.other[k])
        both = (bad.one == one) & (bad.other == other)
        found.append(_race(cells, before, one, other, bad.cell[both], int(same.sum())))
    return found


def _race(cells: Cells, before: Before, one: int, other: int, where: np.ndarray, count: int) -> Finding:
    events = before.sync.events
    writer, reader = (other, one) if events.op[one] != WRITE else (one, other)
    words = {True: "two writes", False: "a write and a read"}[bool(events.op[reader] == WRITE)]
    more = f" ({count} such overlaps of these two lines on rank {cells.home})" if count > 1 else ""
    return Finding(
        kind="race",
        what=f"{words} of {cells.box(where)}, and nothing orders them{more}",
        chain=_chain(before, writer, reader),
        remedy=_remedy(before, writer, reader),
        **about(events, [writer, reader]),
    )


def _chain(before: Before, writer: int, reader: int) -> tuple[str, ...]:
    """The way of both tiles to their accesses: what the one has waited for, and what the other tells afterwards."""
    events = before.sync.events
    chain = []
    wait = _in_tile(before, reader, WAIT, later=False)
    if wait is not None:
        gives = _notification(before, wait)
        chain += [step(events, gives, "which the next waits for")] if gives is not None else []
        chain.append(step(events, wait, "which says nothing of the write"))
    chain.append(step(events, reader, "" if wait is not None else "no wait of its tile comes before it"))
    chain.append(step(events, writer, "at the same time"))
    notify = _tells(before, writer)
    if notify is not None:
        chain.append(step(events, notify, "which comes too late, or is not waited for"))
    return tuple(chain)


def _tells(before: Before, writer: int) -> int | None:
    """The notification, later in its tile, of what a write wrote."""
    events = before.sync.events
    name = events.program.tensors[events.tensor[writer]].name
    notify = _in_tile(before, writer, NOTIFY, later=True)
    while notify is not None:
        region = all((c[notify] == c[writer]).all() for c in (events.tensor, events.lo, events.hi))
        signals = next(s for s in events.program.signals if s.tensor == name) if region else None
        if signals is not None and (signals.by_home or events.home[notify] == events.home[writer]):
            return notify
        notify = _in_tile(before, notify, NOTIFY, later=True)
    return None


def _in_tile(before: Before, k: int, op: int, *, later: bool) -> int | None:
    """The nearest step of a kind in the tile of an event, after or before it."""
    sync, events = before.sync, before.sync.events
    steps = range(int(np.searchsorted(sync.at, k, "right")), len(sync.at))
    if not later:
        steps = range(int(np.searchsorted(sync.at, k)) - 1, -1, -1)
    for s in steps:
        at = int(sync.at[s])
        if any(c[at] != c[k] for c in (events.rank, events.role, events.tile)):
            return None
        if events.op[at] == op:
            return at
    return None


def _notification(before: Before, wait: int) -> int | None:
    """The last notification that ends a wait, in the execution that was made."""
    sync = before.sync
    signal = sync.signal[np.searchsorted(sync.at, wait)]
    given = before.done[sync.notifies[before.done] & (sync.signal[before.done] == signal)]
    return int(sync.at[given[-1]]) if len(given) else None


def _remedy(before: Before, writer: int, reader: int) -> str:
    events = before.sync.events
    turns = events.program.tensors[events.tensor[writer]]
    tensor = turns.name
    if turns.buffers:
        return (
            f"entries of {tensor} take turns in {turns.buffers} buffers: store to what tk.claim(...) of the entry "
            "returns, and tk.release(...) what was read, in every tile that reads it"
        )
    if events.op[reader] == WRITE:
        return (
            f"let each element of {tensor} be written by one tile of a run, or give the second its own buffer or entry"
        )
    if _overwrites(before, writer, reader):
        return (
            f"{line_of(events, writer)} overwrites what others may still read: let the tile that reads "
            f"({line_of(events, reader)}) notify a buffer after it has read, and the tile that writes wait for that "
            f"before it writes; or write to another buffer"
        )
    if _tells(before, writer) is None:
        return f"notify what {line_of(events, writer)} writes, after it: tk.notify(...) of the view that it returns"
    wait = _in_tile(before, reader, WAIT, later=False)
    if wait is None:
        return f"read what tk.wait({tensor}[...]) returns"
    return f"wait for all that is read: {events.region(reader)}, at rank {events.home[reader]}, before it is read"


def _overwrites(before: Before, writer: int, reader: int) -> bool:
    """Whether the tile of a write has waited for what was there before, and another one that reads it has waited for
    the same."""
    events = before.sync.events
    waits = [_in_tile(before, k, WAIT, later=False) for k in (writer, reader)]
    return None not in waits and all(
        events.tensor[w] == events.tensor[writer]
        and events.home[w] == events.home[writer]
        and (events.lo[w] < events.hi[writer]).all()
        and (events.lo[writer] < events.hi[w]).all()
        for w in waits
    )


def unwritten(cells: Cells, access: np.ndarray, cell: np.ndarray) -> list[Finding]:
    """Findings for reads of what nobody has written before; an access may stand here several times, with each cell."""
    events = cells.events
    found = []
    for k in firsts(events.site[access])[:SHOWN]:
        one = int(access[k])
        where = cells.box(cell[access == one])
        wait = _wait_for(events, one)
        found.append(
            Finding(
                kind="unwritten read",
                what=f"{where} is read, and no tile of the run has written it before",
                chain=tuple(step(events, j) for j in ([wait] if wait is not None else []) + [one]),
                remedy="let the tiles that write cover all that is read, or read less",
                **about(events, [one]),
            )
        )
    return found


def _wait_for(events: Events, k: int) -> int | None:
    """The last wait before an event in its tile."""
    for j in range(k - 1, -1, -1):
        if any(c[j] != c[k] for c in (events.rank, events.role, events.tile)):
            return None
        if events.op[j] == WAIT:
            return j
    return None


def stale(cells: Cells, pairs: Pairs) -> list[Finding]:
    """Findings for ordered pairs of a write and a read of a buffer whose entries take turns, where the one is not of
    the entry that the other is of."""
    events = cells.events
    reads = (events.op[pairs.one] == WRITE) & (events.op[pairs.other] != WRITE)
    bad = pairs[reads & (events.entry[pairs.one] != events.entry[pairs.other])]
    found = []
    for k in firsts(events.site[bad.one], events.site[bad.other])[:SHOWN]:
        write, read = int(bad.one[k]), int(bad.other[k])
        held, meant = int(events.entry[write]), int(events.entry[read])
        tensor = events.program.tensors[events.tensor[read]]
        wait = _wait_for(events, read)
        if held > meant:
            what = f"and entry {held} has taken its place"
            remedy = (
                f"read entry {meant} of {tensor.name} before entry {held} may take its place: tk.release(...) what is "
                f"read after its last read, in every tile that reads it, or give {tensor.name} more buffers"
            )
        else:
            what = f"and the buffer still holds entry {held}"
            remedy = f"let the tile that notifies entry {meant} of {tensor.name} store all of it, before"
        found.append(
            Finding(
                kind="stale read",
                what=f"what is read is entry {meant} of {tensor.name} at rank {cells.home}, {what}",
                chain=(
                    step(events, write),
                    *([step(events, wait)] if wait is not None else []),
                    step(events, read, f"which finds entry {held}"),
                ),
                remedy=remedy,
                **about(events, [write, read]),
            )
        )
    return found
