"""Findings about the accesses to memory in a run that comes to its end: races, reads of what nobody wrote or of another
entry, and outputs that are not written once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilelink.analysis.check.cells import Cells, Pairs, conflicts, written_tensors
from tilelink.analysis.check.findings import SHOWN, Finding, finding, firsts, last_wait_before, line_of, step, tile_of
from tilelink.analysis.check.synchronisation import Before, Synchronisation
from tilelink.analysis.events import NOTIFY, WRITE, Events
from tilelink.analysis.lanes import Tell
from tilelink.errors import ArgumentError
from tilelink.frontend.ir import If, Place, Role, TileProgram, Write, places
from tilelink.frontend.kept import kept


def wrong_accesses(sync: Synchronisation, done: np.ndarray, tell: Tell) -> tuple[list[Finding], list[str]]:
    """Findings and notes for all tensors on all ranks; the same finding about the same lines comes once. `done`: the
    steps of a complete execution, in order."""
    events, before = sync.events, Before(sync, done)
    turns = np.zeros(len(sync.at) + 1, np.int64)  # the last entry is for accesses before all steps
    turns[done] = np.arange(1, len(done) + 1)
    found: dict[tuple[str, str, frozenset[str]], Finding] = {}
    notes: dict[tuple[str, frozenset[str]], str] = {}
    for cells in written_tensors(events):
        tensor = events.program.tensors[cells.tensor]
        tell(f"accesses to {tensor.name} on rank {cells.home}")
        pairs, blank = conflicts(cells, turns[sync.after(cells.access)])
        ordered = before(pairs.one, pairs.other)
        early = pairs[ordered & pairs.blank]
        nobody = np.concatenate([cells.access[blank], early.one]), np.concatenate([cells.cell[blank], early.cell])
        here = [*stale(cells, pairs[ordered]), *unwritten(cells, *nobody)]
        if tensor.kind == "output":  # two writes are one too many, ordered or not
            here += [*missing(cells), *twice(cells)]
        else:
            here = [*races(cells, pairs[~ordered], before), *here]
            for lines, note in written_over(cells, pairs[ordered & pairs.next]):
                notes.setdefault((tensor.name, lines), note)
        for f in here:
            found.setdefault((f.kind, f.tensor, frozenset(f.lines)), f)
    return list(found.values()), list(notes.values())


def without_result(program: TileProgram) -> list[Finding]:
    """A finding if no tile touches some tensor of the call, or if the program's tiles store to none of them."""
    touched = {view.tensor for role in program.roles for view in role.touched}
    given = {t.name: t.kind for t in program.tensors if t.kind in ("input", "output")}
    measures = {d for r in program.routes for d in (r.sent, r.per_rank, r.everywhere)}  # a tensor may only give sizes
    unused = [n for n in given if n not in touched and not measures & set(program.tensor(n).dims)]
    if unused:
        what = f"no tile of {program.name} reads {' or '.join(unused)}, or stores to it"
        remedy = f"a result is stored, {unused[0]}[t].store(acc)"
    elif "output" not in given.values():
        what = f"{program.name} has no output: its tiles store to none of {', '.join(given)}"
        remedy = "a result is stored to a parameter, out[t].store(acc)"
    else:
        return []
    site = program.site
    return [Finding(kind="unwritten output", what=what, lines=(site.quoted,), remedy=remedy, site=site)]


@kept()
def check_results(program: TileProgram) -> None:
    """Raises ArgumentError for a tensor of the call that no tile touches, and if no tile stores to any tensor: the call
    would return no result, and leave a result that it was given unchanged."""
    for found in without_result(program):
        raise ArgumentError(f"{found.what}; {found.remedy}", program.site)


# ---- races


def races(cells: Cells, bad: Pairs, before: Before) -> Iterator[Finding]:
    """Findings for pairs of accesses that nothing orders."""
    events = cells.events
    kinds = firsts(events.site[bad.one], events.site[bad.other], events.op[bad.one], events.op[bad.other])
    for k in kinds[:SHOWN]:
        one, other = int(bad.one[k]), int(bad.other[k])
        where = cells.box(bad.cell[(bad.one == one) & (bad.other == other)])
        count = int(((events.site[bad.one] == events.site[one]) & (events.site[bad.other] == events.site[other])).sum())
        writer, reader = (other, one) if events.op[one] != WRITE else (one, other)
        words = "two writes" if events.op[reader] == WRITE else "a write and a read"
        more = f" ({count} such overlaps of these two lines on rank {cells.home})" if count > 1 else ""
        what = f"{words} of {where}, and nothing orders them{more}"
        chain, remedy = _chain(before, writer, reader), _remedy(events, writer, reader)
        yield finding(events, "race", [writer, reader], what, chain, remedy)


def _chain(before: Before, writer: int, reader: int) -> list[str]:
    """The steps of both tiles to their accesses: what the reader's tile awaited, and what the writer's tile
    notifies."""
    events, chain = before.sync.events, []
    waits = last_wait_before(events, reader)
    for wait in waits:
        chain += [step(events, k, "the next step waits for it") for k in _notification(before, wait)]
        chain.append(step(events, wait, "which does not cover the write"))
    chain.append(step(events, reader, "" if waits else "no wait of its tile comes before it"))
    chain.append(step(events, writer, "at the same time"))
    tells = _tells(events, writer)[:1]
    return chain + [step(events, k, "which is too late, or nobody waits for it") for k in tells]


def _tells(events: Events, writer: int) -> list[int]:
    """The notifications of a write that come later in its tile."""
    tensor = events.program.tensors[events.tensor[writer]].name
    by_home = any(s.by_home for s in events.program.signals if s.tensor == tensor)
    return [
        k
        for k in map(int, events.of_tile(writer, NOTIFY))
        if k > writer
        and all((c[k] == c[writer]).all() for c in (events.tensor, events.lo, events.hi))
        and (by_home or events.home[k] == events.home[writer])
    ]


def _notification(before: Before, wait: int) -> list[int]:
    """The last notification that a wait needs, in the execution that was made."""
    sync = before.sync
    signal = sync.signal[np.searchsorted(sync.at, wait)]
    given = before.done[sync.notifies[before.done] & (sync.signal[before.done] == signal)]
    return [int(k) for k in sync.at[given[-1:]]]


def _remedy(events: Events, writer: int, reader: int) -> str:
    turns = events.program.tensors[events.tensor[writer]]
    tensor = turns.name
    if turns.buffers:
        return (
            f"entries of {tensor} take turns in {turns.buffers} buffers: store to the view that tk.claim(...) of the "
            "entry returns, and tk.release(...) the entry in every tile that has read it"
        )
    if events.op[reader] == WRITE:
        own = "give the second its own buffer or entry"
        return f"let each element of {tensor} be written by one tile of a run, or {own}"
    if _overwrites(events, writer, reader):
        return (
            f"{line_of(events, writer)} overwrites what others may still read: let the tile that reads "
            f"({line_of(events, reader)}) notify a buffer after the read, and let the tile that writes wait for it "
            "before the write; or write to another buffer"
        )
    if not _tells(events, writer):
        return f"notify what {line_of(events, writer)} writes, after it: tk.notify(...) of the view that it returns"
    if not last_wait_before(events, reader):
        return f"read the view that tk.wait({tensor}[...]) returns"
    return f"wait for {events.region(reader)} at rank {events.home[reader]} before the read"


def _overwrites(events: Events, writer: int, reader: int) -> bool:
    """Whether the write replaces something that may still be read: another role writes it, too; or both tiles have
    waited for it before their accesses."""
    same = (events.op == WRITE) & (events.tensor == events.tensor[writer]) & (events.home == events.home[writer])
    if events.meets(np.flatnonzero(same & (events.role != events.role[writer])), reader).any():
        return True
    waits = [last_wait_before(events, k) for k in (writer, reader)]
    return all(waits) and all(
        events.tensor[w] == events.tensor[writer] and events.home[w] == events.home[writer] and events.meets(w, writer)
        for (w,) in waits
    )


# ---- reads without the right write


def unwritten(cells: Cells, access: np.ndarray, cell: np.ndarray) -> Iterator[Finding]:
    """Findings for reads of what nobody has written before. `access` has an entry for each cell that it reads."""
    events = cells.events
    for k in firsts(events.site[access])[:SHOWN]:
        one = int(access[k])
        what = f"{cells.box(cell[access == one])} is read, and no tile of the run has written it before"
        chain = (step(events, j) for j in (*last_wait_before(events, one), one))
        remedy = "let the tiles that write cover the whole read, or read less"
        yield finding(events, "unwritten read", [one], what, chain, remedy)


def stale(cells: Cells, pairs: Pairs) -> Iterator[Finding]:
    """Findings for ordered pairs of a write and a read that are of different entries, where entries take turns in
    buffers."""
    events = cells.events
    reads = (events.op[pairs.one] == WRITE) & (events.op[pairs.other] != WRITE)
    bad = pairs[reads & (events.entry[pairs.one] != events.entry[pairs.other])]
    for k in firsts(events.site[bad.one], events.site[bad.other])[:SHOWN]:
        write, read = int(bad.one[k]), int(bad.other[k])
        held, meant = int(events.entry[write]), int(events.entry[read])
        tensor = events.program.tensors[events.tensor[read]]
        if held > meant:
            what = f"but entry {held} has taken its place"
            remedy = (
                f"read entry {meant} of {tensor.name} before entry {held} may take its place: tk.release(...) it after "
                f"the last read, in every tile that reads it, or give {tensor.name} more buffers"
            )
        else:
            what = f"but the buffer still holds entry {held}"
            remedy = f"let the tile that notifies entry {meant} of {tensor.name} store all of it before that"
        what = f"a tile reads entry {meant} of {tensor.name} at rank {cells.home}, {what}"
        chain = [step(events, k) for k in (write, *last_wait_before(events, read))]
        chain.append(step(events, read, f"which finds entry {held}"))
        yield finding(events, "stale read", [write, read], what, chain, remedy)


# ---- outputs


def twice(cells: Cells) -> Iterator[Finding]:
    """Findings for parts of an output that are written more than once."""
    events, tensor = cells.events, cells.events.program.tensors[cells.tensor]
    writes = events.op[cells.access] == WRITE
    cell, access = cells.cell[writes], cells.access[writes]
    times = np.bincount(cell, minlength=int(np.prod(cells.shape)))
    order = np.lexsort((access, cell))
    order = order[times[cell[order]] > 1]
    one, other = order[:-1], order[1:]
    same = cell[one] == cell[other]
    one, other = one[same], other[same]
    for k in firsts(events.site[access[one]], events.site[access[other]])[:SHOWN]:
        both = [int(access[one[k]]), int(access[other[k]])]
        where = cells.box(cell[one[(access[one] == both[0]) & (access[other] == both[1])]])
        what = f"{where} is written {int(times[cell[one[k]]])} times in a run, but an output must be written once"
        remedy = f"let each tile of {tensor.name} be stored by one tile of one role"
        yield finding(events, "written twice", both, what, (step(events, j) for j in both), remedy)


def written_over(cells: Cells, pairs: Pairs) -> Iterator[tuple[frozenset[str], str]]:
    """Notes, with their lines, on what is written again before anybody reads it. `pairs`: with nothing between them."""
    events = cells.events
    writes = (events.op[pairs.one] == WRITE) & (events.op[pairs.other] == WRITE)
    bad = pairs[writes & (events.entry[pairs.one] == events.entry[pairs.other])]
    for k in firsts(events.site[bad.one], events.site[bad.other])[:SHOWN]:
        one, other = int(bad.one[k]), int(bad.other[k])
        where = cells.box(bad.cell[(bad.one == one) & (bad.other == other)])
        lines = line_of(events, one), line_of(events, other)
        yield frozenset(lines), (
            f"{where} is written by {tile_of(events, one)}, and again by {tile_of(events, other)} before anybody "
            f"reads it ({' and '.join(dict.fromkeys(lines))}); the last one stays"
        )


def missing(cells: Cells) -> Iterator[Finding]:
    """A finding for the parts of an output that nobody writes."""
    events, tensor = cells.events, cells.events.program.tensors[cells.tensor]
    written = np.zeros(int(np.prod(cells.shape)), bool)
    written[cells.cell[events.op[cells.access] == WRITE]] = True
    never = np.flatnonzero(~written)
    if not len(never):
        return
    more = f", and {len(never) - 1} more such pieces of {cells.box(never)} are missing" if len(never) > 1 else ""
    stores = [
        (role, place)
        for role in events.program.roles
        for place in places(role.body)
        if isinstance(place.statement, Write) and place.statement.target.tensor == tensor.name
    ]
    yield Finding(
        kind="unwritten output",
        tensor=tensor.name,
        what=f"no tile writes {cells.box(never[:1])}{more}",
        ranks=(cells.home,),
        regions=(cells.box(never),),
        lines=tuple(dict.fromkeys(place.statement.site.quoted for _, place in stores)),
        remedy=_whole_output(tensor.name, stores),
        site=events.program.site,
    )


def _whole_output(tensor: str, stores: list[tuple[Role, Place]]) -> str:
    """The remedy for an output with parts that nobody writes. `stores`: who stores it, and where."""
    roles = " and ".join(dict.fromkeys(role.launched for role, _ in stores)) or "a role"
    under = {place.statement.site.line for _, place in stores if any(isinstance(s, If) for s, _ in place.outer)}
    if not under:
        return f"launch {roles} over tk.tiles({tensor}), and let each tile store all of {tensor}[t]"
    numbers = " and ".join(map(str, sorted(under)))
    which = f"line {numbers} is" if len(under) == 1 else f"lines {numbers} are"
    return (
        f"store {tensor} on every path of {roles} ({which} under an if), and launch {roles} over tk.tiles({tensor})"
    )
