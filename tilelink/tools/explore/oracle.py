"""The oracle: executes the events of a tile program themselves, without Triton, under the policies of the scheduler.

Versions stand for computed values. A write gives its pieces of memory a version, made of all that its tile has read so
far. Two executions give the same results in every bit exactly if they give the same versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tilelink.analysis.check.cells import written_tensors
from tilelink.analysis.check.findings import Finding
from tilelink.analysis.events import NOTIFY, READ, WAIT, Events
from tilelink.analysis.unroll import BUDGET, DEFAULT_SMS, estimated, unroll
from tilelink.emulator.errors import Entry, folded
from tilelink.emulator.policies import Policy, made
from tilelink.errors import BudgetError, Site, counted
from tilelink.frontend.ir import TileProgram
from tilelink.frontend.schedule import Schedule
from tilelink.frontend.sizes import Sizes
from tilelink.programs.program import Program
from tilelink.tools.explore.findings import Advice
from tilelink.tools.explore.trial import Outcome, Residency, Result, Trial

_MASK, _PRIME = 0xFFFFFFFFFFFFFFFF, 0x100000001B3
SHOWN = 8


class Oracle:
    """The events of one run, as a subject of `explore`. `resident`: at most this many workers of a rank at a time, the
    last first; by default all or, if any number will do, a number that the schedule's seed gives. Raises WorldError for
    fewer than 1.

    For each event: `cells`, the pieces of memory that an access touches, each as a whole (inputs have none: nobody
    writes them); `signal` and `worker`, as numbers; `stretch`, 1 more than the synchronisations of its worker before
    it. `outputs`: the pieces of outputs, by tensor and rank.
    """

    def __init__(self, events: Events, resident: int | None = None) -> None:
        self.events, self.residency = events, Residency.asked(resident)
        self.advise = Advice(events, resident)
        self.cells: dict[int, list[int]] = {}
        self.outputs: dict[tuple[int, int], range] = {}
        self.pieces = 0
        for cells in written_tensors(events):
            first, self.pieces = self.pieces, self.pieces + int(np.prod(cells.shape))
            if events.program.tensors[cells.tensor].kind == "output":
                self.outputs[cells.tensor, cells.home] = range(first, self.pieces)
            for access, cell in zip(cells.access.tolist(), cells.cell.tolist(), strict=True):
                self.cells.setdefault(access, []).append(first + cell)
        self.op, self.tile, self.expected = events.op.tolist(), events.tile_at.tolist(), events.expected.tolist()
        synchronises, signal = np.isin(events.op, (NOTIFY, WAIT)), np.full(len(events), -1)
        words, signal[synchronises] = np.unique(events.words(np.flatnonzero(synchronises)), return_inverse=True)
        self.signal, self.signals = signal.tolist(), len(words)
        self.worker, self.stretch = [0] * len(events), [0] * len(events)
        self.steps: list[list[int]] = []  # of each worker
        for number, (rank, worker) in enumerate(events.workers):
            mine = events.of_worker(rank, worker)
            self.steps.append([k for k in mine.tolist() if synchronises[k] or k in self.cells])
            for k, before in zip(mine.tolist(), np.cumsum(synchronises[mine]) - synchronises[mine], strict=True):
                self.worker[k], self.stretch[k] = number, int(before) + 1

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
        """The oracle of a program with a schedule, which is not fitted. The arguments are as in `Lowered`."""
        bound, exact = program.bound_at(schedule, world=world, sizes=sizes, dtypes=dtypes, per_node=per_node)
        check_event_count(bound, exact, sms)
        return cls(unroll(bound, exact, sms=sms), resident)

    def run(self, trial: Trial) -> Outcome:
        """One execution."""
        residency = self.residency.under(self.events, trial.seed)
        return _Run(self, made(trial.word, trial.seed), residency).outcome()


def check_event_count(program: TileProgram, sizes: Sizes, sms: int) -> None:
    """Raises BudgetError for a run of more events than `BUDGET`, the default budget of a check."""
    events = estimated(program, sizes, sms=sms)
    if events > BUDGET:
        what = f"a run of {program.name} at these sizes has about {events:,} events"
        raise BudgetError(f"{what}; exploring takes at most {BUDGET:,}: explore smaller sizes", Site.of_user())


@dataclass(eq=False, slots=True)
class _State:
    """The state of a worker, or of an agent of a copy engine: its next step (`at`); for each worker, the stretches that
    came before its next step (`known`); for how many turns it is late; and the version made of what its tile has
    read."""

    number: int
    rank: int
    agent: bool
    steps: list[int]
    known: list[int]
    at: int = 0
    late: int = -1
    tile: int = -1
    version: int = 0


class _Run:
    """One execution of all steps, one at a time."""

    def __init__(self, oracle: Oracle, policy: Policy, residency: Residency) -> None:
        self.oracle, self.events, self.policy = oracle, oracle.events, policy
        self.found: dict[tuple[str, tuple[str, ...]], Finding] = {}
        self.hash = self.turns = 0
        workers = self.events.workers
        self.given = [0] * oracle.signals
        self.released = [[0] * len(workers) for _ in range(oracle.signals)]
        self.waiting: dict[int, list[_State]] = {}
        self.writer: list[int | None] = [None] * oracle.pieces
        self.readers: list[dict[int, int]] = [{} for _ in range(oracle.pieces)]
        self.version = [0] * oracle.pieces
        self.output = {cell for cells in oracle.outputs.values() for cell in cells}
        self.states = [
            _State(n, rank, worker >= self.events.kernel_workers, oracle.steps[n], [0] * len(workers))
            for n, (rank, worker) in enumerate(workers)
        ]
        self.ready: list[_State] = []
        self.outside: dict[int, list[_State]] = {}  # by rank, workers that are not resident yet
        for state in self.states:
            if state.agent or residency.most is None:
                self.begin(state)
            else:
                self.outside.setdefault(state.rank, []).append(state)
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
            self.hash = ((self.hash ^ state.number) * _PRIME + 1) & _MASK
            if not self.is_late(state):
                self.do(state, chosen)
        if any(s.at < len(s.steps) for s in self.states):
            self.stuck()
            return Outcome(self.hash, self.turns, findings=tuple(self.found.values()))
        return Outcome(self.hash, self.turns, self.results(), tuple(self.found.values()))

    # ---- turns

    def begin(self, state: _State) -> None:
        self.policy.arrive(state)
        if state.steps:
            self.stand(state)
        else:
            self.leave(state)

    def waits(self, state: _State) -> bool:
        """Whether the next step of a worker is a wait that is not over yet."""
        k = state.steps[state.at]
        return self.oracle.op[k] == WAIT and self.given[self.oracle.signal[k]] < self.oracle.expected[k]

    def stand(self, state: _State) -> None:
        """Puts the worker among the ready or the waiting ones, by its next step."""
        if self.waits(state):
            self.waiting.setdefault(self.oracle.signal[state.steps[state.at]], []).append(state)
        else:
            self.ready.append(state)

    def leave(self, state: _State) -> None:
        """Lets another worker of the rank begin, since this one is done."""
        queue = self.outside.get(state.rank)
        if queue and not state.agent:
            self.begin(queue.pop())

    def is_late(self, state: _State) -> bool:
        """Whether an agent lets this turn pass before it begins a copy."""
        if not state.agent or self.oracle.signal[state.steps[state.at]] >= 0:
            return False
        if state.late < 0:
            state.late = self.policy.delay()
        state.late -= 1
        return state.late >= 0

    def do(self, state: _State, chosen: int) -> None:
        """The worker does its next step."""
        k = state.steps[state.at]
        state.at += 1
        if self.oracle.tile[k] != state.tile:
            state.tile, state.version = self.oracle.tile[k], 0
        if self.oracle.signal[k] >= 0:
            self.synchronise(state, k)
        elif self.oracle.op[k] == READ:
            self.read(state, k)
        else:
            self.write(state, k)
        if state.at == len(state.steps):
            self.ready.pop(chosen)
            self.leave(state)
        elif self.waits(state):
            self.ready.pop(chosen)
            self.stand(state)

    # ---- steps

    def synchronise(self, state: _State, k: int) -> None:
        signal = self.oracle.signal[k]
        state.known[state.number] += 1
        if self.oracle.op[k] == WAIT:
            state.known = list(map(max, state.known, self.released[signal]))
            return
        self.released[signal] = list(map(max, state.known, self.released[signal]))
        self.given[signal] += 1
        for other in self.waiting.pop(signal, ()):
            self.stand(other)

    def read(self, state: _State, k: int) -> None:
        said, entry = self.events.describe, self.events.entry
        for cell in self.oracle.cells[k]:
            writer = self.writer[cell]
            if writer is None:
                self.find("unwritten read", f"{said(k)}: nobody has written it", k)
            else:
                self.meet(state, k, writer)
                if entry[writer] != entry[k]:
                    self.find("stale read", f"{said(k)}: what lies there is of\n    {said(writer)}", writer, k)
            self.readers[cell][state.number] = k
            state.version = (state.version * _PRIME ^ self.version[cell]) & _MASK

    def write(self, state: _State, k: int) -> None:
        said, version = self.events.describe, hash((k, state.version)) & (_MASK >> 1)
        for cell in self.oracle.cells[k]:
            writer = self.writer[cell]
            for earlier in (*([] if writer is None else [writer]), *self.readers[cell].values()):
                self.meet(state, k, earlier)
            if cell in self.output and writer is not None:
                told = f"{said(k)}: it was written before, by\n    {said(writer)}"
                self.find("written twice", told, writer, k)
            self.readers[cell].clear()
            self.writer[cell], self.version[cell] = k, version

    def meet(self, state: _State, k: int, earlier: int) -> None:
        """Finds a race if nothing orders two accesses to a piece of memory, one of them a write."""
        if state.known[self.oracle.worker[earlier]] < self.oracle.stretch[earlier]:
            one, two = self.events.describe(earlier), self.events.describe(k)
            self.find("race", f"{two}\n    vs {one}\n    nothing orders them", earlier, k)

    # ---- what comes out

    def find(self, kind: str, what: str, *steps: int) -> None:
        lines = tuple(sorted(set(map(self.line, steps))))
        self.found.setdefault((kind, lines), Finding(kind=kind, lines=lines, what=what))

    def line(self, k: int) -> str:
        return self.events.sites[self.events.site[k]].quoted

    def stuck(self) -> None:
        stuck = sorted(s.steps[s.at] for states in self.waiting.values() for s in states)
        told = folded(map(self.entry, stuck), SHOWN)
        for rank, queue in self.outside.items():
            waiting = counted(len(queue), "worker")
            told += [f"rank {rank}: {waiting} never started, no more may be resident"] if queue else []
        self.find("deadlock", "\n    ".join(["nobody can go on:", *told]), *stuck)

    def entry(self, k: int) -> Entry:
        """A worker that stands before a wait for ever, as an entry of the report."""
        events = self.events
        role, site = events.program.roles[events.role[k]].name, int(events.site[k])
        text = f"{events.describe(k)}, given {counted(self.given[self.oracle.signal[k]], 'time')}"
        return Entry(int(events.rank[k]), (role, site), f"worker of {role}", text)

    def results(self) -> tuple[Result, ...]:
        """The versions of all pieces of outputs. Pieces that nobody wrote are findings."""
        made = []
        for (tensor, rank), cells in self.oracle.outputs.items():
            name = self.events.program.tensors[tensor].name
            written = [w for c in cells if (w := self.writer[c]) is not None]
            if len(written) < len(cells):
                missing = f"{len(cells) - len(written)} of {len(cells)} pieces of {name} on rank {rank}"
                self.find("unwritten output", f"{missing}: no tile wrote them")
            lines = dict.fromkeys(map(self.line, sorted(written)))
            versions = torch.tensor([self.version[c] for c in cells], dtype=torch.int64)
            made.append(Result(f"rank {rank}: pieces of {name}", versions, tuple(lines), versions=True))
        return tuple(made)
