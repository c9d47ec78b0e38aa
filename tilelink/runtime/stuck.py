"""Names for a deadlock: which rank, role and tile waits for which view, what was expected and what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilelink.analysis.unroll import WAIT, expected_counts
from tilelink.runtime.cpu import DeadlockError, StuckProgram, UnstartedPrograms
from tilelink.runtime.cpu import Wait as Poll
from tilelink.runtime.layout import CONTROL_WORDS
from tilelink.runtime.prepare import Prepared

SHOWN = 20


Launched = Mapping[tuple[int, str], Prepared]
"""What was launched: by rank, and what messages call the launch."""


def explain(deadlock: DeadlockError, launched: Launched, runs: Sequence[int]) -> str:
    """The message of a deadlock in the words of the programs that are stuck. `runs`: how many each rank launched."""
    lines = ["no rank can go on:"]
    lines += [f"  {line}" for s in deadlock.stuck[:SHOWN] for line in _program(s, launched.get((s.rank, s.launch)))]
    if len(deadlock.stuck) > SHOWN:
        lines.append(f"  and {len(deadlock.stuck) - SHOWN} more workers")
    lines += [f"  {_unstarted(u, launched.get((u.rank, u.launch)))}" for u in deadlock.unstarted[:SHOWN]]
    most = max(runs)
    fewer = ", ".join(f"rank {r} made {n}" for r, n in enumerate(runs) if n < most)
    if fewer:
        calls = "1 call was" if most == 1 else f"{most} calls were"
        lines.append(f"  {calls} made by rank {runs.index(most)}; {fewer}: the ranks of a group make the same calls")
    return "\n".join(lines)


def _program(stuck: StuckProgram, prepared: Prepared | None) -> list[str]:
    head = f"rank {stuck.rank} worker {stuck.program} of {stuck.launch}"
    if prepared is None or not stuck.waits:
        return [str(stuck)]
    missing = [w for w in stuck.waits if len(stuck.waits) == 1 or _short(w, prepared)] or list(stuck.waits)
    return [f"{head}: {_poll(stuck, missing[0], prepared)}"]


def _unstarted(unstarted: UnstartedPrograms, prepared: Prepared | None) -> str:
    """A rank's launches run one after the other: of the one that runs, some workers have started."""
    first, last = unstarted.programs[0], unstarted.programs[-1]
    workers = f"worker {first}" if first == last else f"workers {first} to {last}"
    head = f"rank {unstarted.rank} {workers} of {unstarted.launch}: never started"
    if first == 0:
        return f"{head}, because a launch before it is not done"
    if prepared is None or unstarted.launch.startswith(f"{prepared.lowered.publish} "):
        return f"{head}, because no more workers may be resident"
    allotted = prepared.allotment.items()
    roles = [n for n, a in allotted if a.first <= last and first < a.first + a.workers]
    return f"{head}, because no more workers may be resident (of role {', '.join(roles)})"


def _short(poll: Poll, prepared: Prepared) -> bool:
    """Whether a signal that a drain polls has not come in full."""
    name = poll.region.removeprefix("signals of ")
    signals = next((s for s in prepared.program.signals if s.tensor == name), None)
    if signals is None:
        return True
    expected = expected_counts(prepared.program, signals, prepared.sizes)
    return poll.observed < int(expected[poll.region_rank, poll.index[0]])


def _poll(stuck: StuckProgram, poll: Poll, prepared: Prepared) -> str:
    program, events = prepared.program, prepared.events
    if poll.region == "control":
        return _progress(poll)
    name = poll.region.removeprefix("signals of ")
    mine = events.of_worker(stuck.rank, stuck.program)
    tensor = next(k for k, t in enumerate(program.tensors) if t.name == name)
    waits = mine[(events.op[mine] == WAIT) & (events.tensor[mine] == tensor) & (events.cell[mine] == poll.index[0])]
    if len(waits) and len(stuck.waits) == 1:
        k = int(waits[0])
        role = program.roles[events.role[k]].name
        site = events.sites[events.site[k]]
        return (
            f"role {role}, tile {events.tile[k]}, waits for {events.region(k)} of rank {events.home[k]} "
            f"(signal {poll.index[0]}): expected {events.expected[k]}, observed {poll.observed} ({site}: {site.text})"
        )
    expected = expected_counts(program, program.signals_of(name), prepared.sizes)
    due = int(np.asarray(expected)[poll.region_rank, poll.index[0]])
    return (
        f"leaving the run, waits for all notifications of {name} on rank {poll.region_rank} (signal {poll.index[0]}): "
        f"expected {due}, observed {poll.observed}"
    )


def _progress(poll: Poll) -> str:
    source = poll.index[0] - CONTROL_WORDS
    done = int(poll.observed)
    state = "has not entered any run" if done == 0 else f"has {'entered' if done % 2 else 'left'} run {(done - 1) // 2}"
    return f"waits for rank {source} to go on, which {state} (progress {done}; {poll.site})"
