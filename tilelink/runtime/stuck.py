"""Describes in the words of a program: a deadlock (which rank, role and tile waits for which view, the expected and the
observed value), the sides of a data race (role, tile and line of the tile function), and the exceptions of kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilelink.analysis.counting import expected_counts
from tilelink.analysis.events import NOTIFY, READ, WAIT, WRITE, Events
from tilelink.backend.cache import file_name
from tilelink.emulator import DeadlockError, KernelError, StuckProgram, UnstartedPrograms
from tilelink.emulator import Wait as Poll
from tilelink.emulator.errors import AssertionFailed, Entry, folded
from tilelink.emulator.races import Party, Race
from tilelink.emulator.sites import KernelSite
from tilelink.errors import RowIndexError, Site, TileLinkError
from tilelink.frontend.ir import walk
from tilelink.runtime.lane import HOST, Reason, Report, entered
from tilelink.runtime.launch import Record
from tilelink.runtime.layout import CONTROL, CONTROL_WORDS, SIGNALS, HeapLayout
from tilelink.runtime.prepare import Prepared
from tilelink.runtime.trace import global_box

SHOWN, SHOWN_TILES = 20, 4
Launched = Mapping[tuple[int, str], Prepared]
"""The programs that were launched, by rank and by the launch's name in messages."""


def explain(deadlock: DeadlockError, launched: Launched, runs: Sequence[int] = ()) -> str:
    """The message of a deadlock, in the words of the stuck programs. `runs`: how many runs each rank launched."""
    lines = ["no rank can go on:"]
    entries = [_program(s, launched.get((s.rank, s.launch))) for s in deadlock.stuck]
    lines += [f"  {line}" for line in folded(entries, SHOWN)]
    lines += dict.fromkeys(f"  {_unstarted(u, launched.get((u.rank, u.launch)))}" for u in deadlock.unstarted[:SHOWN])
    most = max(runs, default=0)
    fewer = ", ".join(f"rank {r} made {n}" for r, n in enumerate(runs) if n < most)
    if fewer:
        calls = "1 call was" if most == 1 else f"{most} calls were"
        lines.append(f"  {calls} made by rank {runs.index(most)}; {fewer}: the ranks of a group make the same calls")
    return "\n".join(lines)


def told_of(error: KernelError, launched: Launched) -> TileLinkError:
    """The error of a kernel in the words of the program, at a line of a tile function; RowIndexError for an integer
    that picks a row out of range."""
    failed, prepared = error.__cause__, launched.get((error.rank, error.launch))
    if prepared is None:
        return error
    statements = [s for role in prepared.program.roles for s in walk(role.body)]
    if isinstance(failed, AssertionFailed):
        picking = ((s, v) for s in statements for v in s.read if v.picked_by and v.picking == failed.what)
        for statement, view in picking:
            row, count = failed.values["rows"], failed.values["count"]
            said = f"{view.picking} picks row {row} on rank {error.rank}, and there are {count} rows"
            return RowIndexError(f"{said}: 0 to {count - 1}, or -1 for none", statement.site)
    lowered = prepared.lowered
    own = file_name(lowered.source, lowered.program.name)
    places = (error.site, *error.site.callers) if isinstance(error.site, KernelSite) else ()
    sites = (lowered.site_of(place.line) for place in places if Path(place.file).name == own)
    return next((error.at(site) for site in sites if site is not None), error)


def lines_of(deadlock: DeadlockError, launched: Launched) -> tuple[str, ...]:
    """The lines that are stuck: lines of tile functions where a tile waits, else lines of kernels."""
    sites: dict[Site, None] = {}
    for stuck in deadlock.stuck:
        prepared = launched.get((stuck.rank, stuck.launch))
        for wait in _signals(stuck.waits):
            site: Site = wait.site
            if prepared is not None and wait.region != CONTROL:
                k = _tile_wait(stuck.rank, stuck.program, wait, prepared)
                site = wait.site if k is None else prepared.events.sites[prepared.events.site[k]]
            sites[site] = None
    return tuple(site.quoted for site in sites)


def first_wait(deadlock: DeadlockError, run: Record, reason: Reason) -> Report:
    """A rank's report about one worker that can't go on, if possible one that waits for a signal, not for a rank."""
    prepared = run.counted
    programs = [replace(s, waits=_signals(s.waits)) for s in deadlock.stuck]
    every = [(s, w) for s in programs for w in s.waits]
    waits = [(s, w) for s, w in every if len(s.waits) == 1 or _short(w, prepared)] or every
    stuck, wait = min(waits, key=lambda e: (e[1].region == CONTROL, e[0].program))
    word, expected = wait.index[0] * 8, entered(run.number)
    if wait.region != CONTROL:
        name = wait.region.removeprefix(SIGNALS)
        word = next(at for n, at, _ in run.signals if n == name)
        word += prepared.lowered.target.signal_bytes * wait.index[0]
        k = _tile_wait(stuck.rank, stuck.program, wait, prepared)
        expected = int(prepared.events.expected[k]) if k is not None else _due(wait, prepared)
    return Report(stuck.rank, run.number, stuck.program, word, expected, int(wait.observed), reason)


def of_report(report: Report, layout: HeapLayout, run: Record | None) -> str:
    """A report in the words of the program; `run` is the run it is about, if this rank launched it."""
    who = "host" if report.waiter == HOST else f"worker {report.waiter}"
    label = run.label if run else f"run {report.run}"
    head = f"rank {report.rank} {who} of {label}"
    if report.word < layout.control_bytes:
        source = report.word // 8 - CONTROL_WORDS
        return f"{head}: {_awaited(source, report.observed)}: expected {report.expected}, observed {report.observed}"
    if run is None:
        return f"{head}: waits for a signal: expected {report.expected}, observed {report.observed}"
    for name, at, cells in run.signals:
        cell = (report.word - at) // run.prepared.lowered.target.signal_bytes
        if 0 <= cell < cells:
            wait = Poll(SIGNALS + name, report.rank, (cell,), report.observed, Site("", 0))
            return f"{head}: {_poll(report.rank, report.waiter, wait, run.counted)[-1]}"
    return f"{head}: waits for byte {report.word} of its heap: expected {report.expected}, observed {report.observed}"


def _program(stuck: StuckProgram, prepared: Prepared | None) -> Entry:
    head = f"rank {stuck.rank} worker {stuck.program} of {stuck.launch}"
    stuck = replace(stuck, waits=_signals(stuck.waits))
    if prepared is None or not stuck.waits:
        return Entry(stuck.rank, (stuck.launch, stuck.sites), f"program of {stuck.launch}", str(stuck))
    missing = [w for w in stuck.waits if len(stuck.waits) == 1 or _short(w, prepared)] or list(stuck.waits)
    role, how, text = _poll(stuck.rank, stuck.program, missing[0], prepared)
    return Entry(stuck.rank, (stuck.launch, role, how), f"worker of {role or stuck.launch}", f"{head}: {text}")


def _signals(waits: Iterable[Poll]) -> tuple[Poll, ...]:
    """The polls, with the words of one signal added up."""
    found: dict[tuple[str, int, int], Poll] = {}
    for w in waits:
        key = w.region, w.region_rank, w.index[0]
        found[key] = replace(w, observed=w.observed + found[key].observed) if key in found else w
    return tuple(found.values())


def _unstarted(unstarted: UnstartedPrograms, prepared: Prepared | None) -> str:
    """A line about unstarted programs. A rank's launches run in order; some workers of the running one have begun."""
    first, last = unstarted.programs[0], unstarted.programs[-1]
    if prepared is not None and first >= prepared.events.kernel_workers:
        agent = prepared.events.worker_name(first)
        return f"rank {unstarted.rank} {agent} of {unstarted.launch}: not begun, because a launch before it is not done"
    workers = f"worker {first}" if first == last else f"workers {first} to {last}"
    head = f"rank {unstarted.rank} {workers} of {unstarted.launch}: never started"
    if not unstarted.begun:
        return f"{head}, because a launch before it is not done"
    if prepared is None or not unstarted.launch.startswith(f"{prepared.lowered.main.name} run "):
        return f"{head}, because no more workers may be resident"
    allotted = prepared.allotment.items()
    roles = [n for n, a in allotted if a.first <= last and first < a.first + a.workers]
    return f"{head}, because no more workers may be resident (of role {', '.join(roles)})"


def _short(poll: Poll, prepared: Prepared) -> bool:
    """Whether a polled signal has fewer notifications than it gets in the run; control words always count as such."""
    return poll.region == CONTROL or int(poll.observed) < _due(poll, prepared)


def _due(poll: Poll, prepared: Prepared) -> int:
    """How many notifications a signal gets in the run."""
    signals = prepared.program.signals_of(poll.region.removeprefix(SIGNALS))
    return int(np.asarray(expected_counts(signals, prepared.sizes))[poll.region_rank, poll.index[0]])


def _tile_wait(rank: int, worker: int, poll: Poll, prepared: Prepared) -> int | None:
    """The event of a worker's wait that is not fulfilled; None if all are, because the worker is leaving the run."""
    events = prepared.events
    name = poll.region.removeprefix(SIGNALS)
    tensor = prepared.program.numbers[name]
    mine = events.of_worker(rank, worker)
    waits = mine[(events.op[mine] == WAIT) & (events.tensor[mine] == tensor) & (events.cell[mine] == poll.index[0])]
    waits = waits[events.expected[waits] > poll.observed]
    return int(waits[0]) if len(waits) else None


def _poll(rank: int, worker: int, poll: Poll, prepared: Prepared) -> tuple[str, str, str]:
    """The role whose tile waits ("" if none does), the way in which it is stuck, and the whole text."""
    program, events = prepared.program, prepared.events
    if poll.region == CONTROL:
        done = int(poll.observed)
        how = _awaited(poll.index[0] - CONTROL_WORDS, done)
        return "", how, f"{how} (progress {done}; {poll.site})"
    k = _tile_wait(rank, worker, poll, prepared)
    if k is not None:
        role, site = program.roles[events.role[k]].name, events.sites[events.site[k]]
        text = (
            f"role {role}, tile {events.tile[k]}, waits for {events.region(k)} of rank {events.home[k]} "
            f"(signal {poll.index[0]}): expected {events.expected[k]}, observed {poll.observed} ({site.quoted})"
        )
        return role, str(site), text
    how = f"leaving the run, waits for all notifications of {poll.region.removeprefix(SIGNALS)}"
    return "", how, (
        f"{how} on rank {poll.region_rank} (signal {poll.index[0]}): expected {_due(poll, prepared)}, observed "
        f"{poll.observed}"
    )  # fmt: skip


def _awaited(rank: int, progress: int) -> str:
    state = "entered" if progress % 2 else "left"
    where = "has not entered any run" if progress == 0 else f"has {state} run {(progress - 1) // 2}"
    return f"waits for rank {rank} to go on, which {where}"


# ---- data races


def with_tiles(races: Sequence[Race], launched: Launched) -> list[Race]:
    """The races, with the tiles of both sides."""

    def named(party: Party) -> Party:
        prepared = launched.get((party.rank, party.launch))
        main = prepared is not None and party.launch.startswith(f"{prepared.lowered.main.name} run ")
        return _named(party, prepared.events) if prepared is not None and main else party

    return [replace(race, first=named(race.first), second=named(race.second)) for race in races]


def _named(party: Party, events: Events) -> Party:
    """A party with the tiles of its worker that touch its elements in the same way; between two runs, no tile does."""
    mine = events.of_worker(party.rank, party.program)
    mine = mine[_touches(party, events, mine)]
    found: dict[tuple[int, int], list[int]] = {}
    for k in map(int, mine):
        tiles = found.setdefault((int(events.role[k]), int(events.site[k])), [])
        if events.tile[k] not in tiles:
            tiles.append(int(events.tile[k]))
    tile = " or ".join(
        f"role {events.program.roles[role].name}, {_numbers(tiles)} ({events.sites[site]}: {events.sites[site].text})"
        for (role, site), tiles in found.items()
    )
    return replace(party, tile=tile, sites=tuple(dict.fromkeys(events.sites[site] for _, site in found)))


def _touches(party: Party, events: Events, mine: np.ndarray) -> np.ndarray:
    """Which of these events access the elements of a party as it does: none if its region is not a tensor, such as the
    times of a run."""
    name = party.region.removeprefix(SIGNALS)
    tensor = events.program.numbers.get(name)
    if tensor is None:
        return np.zeros(len(mine), bool)
    same = events.tensor[mine] == tensor
    if party.region.startswith(SIGNALS):
        low, high = party.box[0]
        given = (events.op[mine] == NOTIFY) & (events.home[mine] == party.region_rank)
        awaited = (events.op[mine] == WAIT) & (events.rank[mine] == party.region_rank)
        return same & (given | awaited) & (events.cell[mine] >= low) & (events.cell[mine] < high)
    op = READ if party.kind.endswith("load") else WRITE
    same &= (events.op[mine] == op) & (events.home[mine] == party.region_rank)
    for d, (low, high) in enumerate(global_box(events, party.region, party.region_rank, party.box)):
        same &= (events.lo[mine, d] < high) & (events.hi[mine, d] > low)
    return same


def _numbers(tiles: list[int]) -> str:
    more = f" and {len(tiles) - SHOWN_TILES} more" if len(tiles) > SHOWN_TILES else ""
    return ("tile " if len(tiles) == 1 else "one of tiles ") + ", ".join(map(str, tiles[:SHOWN_TILES])) + more
