"""The oracle: executes the events of a tile program themselves, without Triton, under the policies of the scheduler.

What a tile computes stands for itself: a piece of memory holds the version that one write made of all that its tile has
read so far, and two executions give the same results in every bit exactly if they give the same versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tilelink.analysis.events import NOTIFY, READ, WAIT, Events
from tilelink.analysis.unroll import DEFAULT_SMS, unroll
from tilelink.emulator.errors import Entry, folded
from tilelink.emulator.policies import Policy, made
from tilelink.frontend.schedule import Schedule
from tilelink.programs.program import Program
from tilelink.tools.explore.findings import Advice, Finding, line_of
from tilelink.tools.explore.outcome import Outcome, Result
from tilelink.tools.explore.steps import Step, Steps, Worker, steps_of
from tilelink.tools.explore.trial import Residency, Trial

_MASK, _PRIME = 0xFFFFFFFFFFFFFFFF, 0x100000001B3
SHOWN = 8


class Oracle:
    """The events of one run, as `tilelink.tools.explore` takes them. `resident`: at most so many workers of a rank
    at a time, the last first; by default all, or where any number will do, one that is part of the schedule. Raises
    WorldError for fewer than 1."""

    def __init__(self, events: Events, resident: int | None = None) -> None:
        self.events, self.residency = events, Residency.asked(resident)
        self.steps, self.advise = steps_of(events), Advice(events, resident)

    @classmethod
    def of(
        cls,
        program: Program,
        schedule: Schedule,
        *,
        world: int,
        dtypes: Any = "float32",
        sms: int = DEFAULT_SMS,
        per_node: int | None = None,
        resident: int | None = None,
        **sizes: Any,
    ) -> Oracle:
        """The oracle of a program with a schedule, taken as it is; the arguments are those of `Lowered`."""
        bound, exact = program.bound_at(schedule, world=world, sizes=sizes, dtypes=dtypes, per_node=per_node)
        return cls(unroll(bound, exact, sms=sms), resident)

    def run(self, trial: Trial) -> Outcome:
        """One execution."""
        residency = self.residency.under(self.events, trial.seed)
        return _Run(self.steps, made(trial.word, trial.seed), residency).outcome()


@dataclass(eq=False, slots=True)
class _State:
    """A worker in a run: where it stands, what it knows of others (by worker, the stretches that came before what it
    does next), for how many turns it is late, and the versions that its tile has read."""

    worker: Worker
    known: list[int]
    at: int = 0
    late: int = -1
    tile: tuple[int, int] = (-1, -1)
    version: int = 0


class _Run:
    """One execution of all steps, one at a time."""

    def __init__(self, steps: Steps, policy: Policy, residency: Residency) -> None:
        self.steps, self.events, self.policy = steps, steps.events, policy
        self.found: dict[tuple[str, tuple[str, ...]], Finding] = {}
        self.hash = self.turns = 0
        self.given = [0] * steps.signals
        self.released = [[0] * len(steps.workers) for _ in range(steps.signals)]
        self.waiting: dict[int, list[_State]] = {}
        self.writer: list[Step | None] = [None] * steps.cells
        self.readers: list[dict[int, Step]] = [{} for _ in range(steps.cells)]
        self.version = [0] * steps.cells
        self.output = {cell for cells in steps.outputs.values() for cell in cells}
        self.states = [_State(w, [0] * len(steps.workers)) for w in steps.workers]
        self.ready: list[_State] = []
        self.outside: dict[int, list[_State]] = {}  # by rank, workers that are not resident yet
        for state in self.states:
            if state.worker.agent or residency.most is None:
                self.begin(state)
            else:
                self.outside.setdefault(state.worker.rank, []).append(state)
        for queue in self.outside.values():
            if residency.admit == "in order":
                queue.reverse()
            for _ in range(min(residency.most or 0, len(queue))):
                self.begin(queue.pop())

    def outcome(self) -> Outcome:
        while self.ready:
            self.turns += 1
            chosen = self.policy.choose(self.ready)
            state = self.ready[chosen]
            self.hash = ((self.hash ^ state.worker.number) * _PRIME + 1) & _MASK
            if not self.is_late(state):
                self.do(state, chosen)
        if any(s.at < len(s.worker.steps) for s in self.states):
            self.stuck()
            return Outcome(self.hash, self.turns, findings=tuple(self.found.values()))
        return Outcome(self.hash, self.turns, self.results(), tuple(self.found.values()))

    # ---- turns

    def begin(self, state: _State) -> None:
        self.policy.arrive(state)
        if state.worker.steps:
            self.stand(state)
        else:
            self.leave(state)

    def stand(self, state: _State) -> None:
        """The worker stands before its next step: ready, or waiting."""
        step = state.worker.steps[state.at]
        if step.op == WAIT and self.given[step.signal] < step.expected:
            self.waiting.setdefault(step.signal, []).append(state)
        else:
            self.ready.append(state)

    def leave(self, state: _State) -> None:
        """The worker is done: another of its rank may begin."""
        queue = self.outside.get(state.worker.rank)
        if queue and not state.worker.agent:
            self.begin(queue.pop())

    def is_late(self, state: _State) -> bool:
        """Whether an agent lets this turn pass before it begins a copy."""
        step = state.worker.steps[state.at]
        if not state.worker.agent or step.op in (NOTIFY, WAIT):
            return False
        if state.late < 0:
            state.late = self.policy.delay()
        state.late -= 1
        return state.late >= 0

    def do(self, state: _State, chosen: int) -> None:
        """The worker does its next step."""
        step = state.worker.steps[state.at]
        state.at += 1
        if step.tile != state.tile:
            state.tile, state.version = step.tile, 0
        if step.op in (NOTIFY, WAIT):
            self.synchronise(state, step)
        elif step.op == READ:
            self.read(state, step)
        else:
            self.write(state, step)
        if state.at < len(state.worker.steps):
            after = state.worker.steps[state.at]
            if after.op == WAIT and self.given[after.signal] < after.expected:
                self.ready.pop(chosen)
                self.stand(state)
        else:
            self.ready.pop(chosen)
            self.leave(state)

    # ---- steps

    def synchronise(self, state: _State, step: Step) -> None:
        own = state.worker.number
        state.known[own] += 1
        if step.op == WAIT:
            state.known = list(map(max, state.known, self.released[step.signal]))
            return
        self.released[step.signal] = list(map(max, state.known, self.released[step.signal]))
        self.given[step.signal] += 1
        waiting = self.waiting.pop(step.signal, None)
        for other in waiting or ():
            self.stand(other)

    def read(self, state: _State, step: Step) -> None:
        said, entry = self.events.describe, self.events.entry
        for cell in step.cells:
            writer = self.writer[cell]
            if writer is None:
                self.find("unwritten read", f"{said(step.event)}: nobody has written it", step)
            else:
                self.meet(state, step, writer)
                if entry[writer.event] != entry[step.event]:
                    told = f"{said(step.event)}: what lies there is of\n    {said(writer.event)}"
                    self.find("stale read", told, writer, step)
            self.readers[cell][step.worker] = step
            state.version = (state.version * _PRIME ^ self.version[cell]) & _MASK

    def write(self, state: _State, step: Step) -> None:
        said, version = self.events.describe, hash((step.event, state.version)) & (_MASK >> 1)
        for cell in step.cells:
            writer = self.writer[cell]
            for earlier in (*([] if writer is None else [writer]), *self.readers[cell].values()):
                self.meet(state, step, earlier)
            if cell in self.output and writer is not None:
                told = f"{said(step.event)}: it was written before, by\n    {said(writer.event)}"
                self.find("written twice", told, writer, step)
            self.readers[cell].clear()
            self.writer[cell], self.version[cell] = step, version

    def meet(self, state: _State, step: Step, earlier: Step) -> None:
        """Two accesses to a piece of memory, one of them a write: a race where nothing orders them."""
        if state.known[earlier.worker] < earlier.stretch:
            one, two = self.events.describe(earlier.event), self.events.describe(step.event)
            self.find("race", f"{two}\n    vs {one}\n    nothing orders them", earlier, step)

    # ---- what comes out

    def find(self, kind: str, what: str, *steps: Step) -> None:
        lines = tuple(sorted(set(map(self.line, steps))))
        self.found.setdefault((kind, lines), Finding(kind, lines, what))

    def line(self, step: Step) -> str:
        return line_of(self.events.sites[self.events.site[step.event]])

    def stuck(self) -> None:
        stuck = [s.worker.steps[s.at] for states in self.waiting.values() for s in states]
        stuck.sort(key=lambda step: step.event)
        told = folded(map(self.entry, stuck), SHOWN)
        for rank, queue in self.outside.items():
            told += [f"rank {rank}: {len(queue)} workers never started, no more may be resident"] if queue else []
        what = "\n    ".join(["nobody can go on:", *told])
        self.find("deadlock", what, *stuck)

    def entry(self, step: Step) -> Entry:
        """A worker that stands before a wait for ever."""
        events, k = self.events, step.event
        role, site = events.program.roles[events.role[k]].name, int(events.site[k])
        text = f"{events.describe(k)}, given {self.given[step.signal]} times"
        return Entry(int(events.rank[k]), (role, site), f"worker of {role}", text)

    def results(self) -> tuple[Result, ...]:
        """The versions of all pieces of outputs; what nobody wrote is a finding."""
        made = []
        for (tensor, rank), cells in self.steps.outputs.items():
            name, written = self.events.program.tensors[tensor].name, [w for c in cells if (w := self.writer[c])]
            if len(written) < len(cells):
                missing = f"{len(cells) - len(written)} of {len(cells)} pieces of {name} on rank {rank}"
                self.find("unwritten output", f"{missing}: no tile wrote them")
            lines = dict.fromkeys(map(self.line, sorted(written, key=lambda step: step.event)))
            versions = torch.tensor([self.version[c] for c in cells], dtype=torch.int64)
            made.append(Result(f"rank {rank}: pieces of {name}", versions, tuple(lines), versions=True))
        return tuple(made)
