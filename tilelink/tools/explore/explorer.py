"""The explorer: runs a subject under one schedule after the other, and gathers the findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tilelink.analysis.check.findings import Finding
from tilelink.errors import counted, listed
from tilelink.tools.explore.findings import Found
from tilelink.tools.explore.trial import FIRST, POLICIES, Outcome, Subject, Trial, differences, unwritten


@dataclass
class Exploration:
    """The result of exploring. `hashes`: hashes of the schedules that were run. `found`: the first finding of each kind
    and lines. `times`: in how many schedules each kind and lines showed."""

    policy: str
    hashes: list[int] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    times: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)

    @property
    def findings(self) -> list[Finding]:
        """The findings without their seeds."""
        return [f.finding for f in self.found]

    @property
    def schedules_run(self) -> int:
        return len(self.hashes)

    @property
    def distinct(self) -> int:
        """How many different schedules were run."""
        return len(set(self.hashes))

    @property
    def schedule_hash(self) -> str:
        """A hash of all schedules that were run, in order; the hash of the schedule if it was one."""
        combined = 0
        for h in self.hashes:
            combined = (combined * 0x100000001B3 ^ h) & 0xFFFFFFFFFFFFFFFF
        return f"{combined:016x}"

    def add(self, trial: Trial, outcome: Outcome, advise: Callable[[Finding], Finding]) -> None:
        self.hashes.append(outcome.schedule_hash)
        for key, finding in {(f.kind, f.lines): f for f in reversed(outcome.findings)}.items():
            if key not in self.times:
                self.found.append(Found(trial.seed, advise(finding)))
            self.times[key] = self.times.get(key, 0) + 1

    def __str__(self) -> str:
        runs = f"{counted(self.schedules_run, 'schedule')}, {self.distinct} of them distinct ({self.policy})"
        if not self.found:
            return f"no finding in {runs}\n"
        times = [self.times.get((f.kind, f.lines), 0) for f in self.findings]
        seen = [f"\n    in {n} of {counted(self.schedules_run, 'schedule')}" if n else "" for n in times]
        texts = [f"{finding}{often}" for finding, often in zip(self.found, seen, strict=True)]
        return "\n".join([f"{counted(len(texts), 'finding')} in {runs}", "", *texts]) + "\n"


def explore(
    subject: Subject,
    seeds: Iterable[int],
    policy: str = "random",
    progress: Callable[[Exploration], None] = lambda exploration: None,
) -> Exploration:
    """Runs a subject once for each seed, under a policy ("random" or "pct"), and compares the results with the results
    of the first schedule, in which all take turns. The first schedule has seed 0. It is always run, and counts if 0 is
    among the seeds. `progress` is called after every schedule."""
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}; there is {listed(POLICIES, policy)}")
    exploration = Exploration(policy)
    first = judged(subject.run(Trial(FIRST, policy)), None)
    for seed in seeds:
        trial = Trial(seed, policy, first.turns)
        outcome = first if seed == FIRST else judged(subject.run(trial), first)
        exploration.add(trial, outcome, subject.advise)
        progress(exploration)
    return exploration


def judged(outcome: Outcome, first: Outcome | None) -> Outcome:
    """The outcome, with findings about its results."""
    found = unwritten(outcome.results)
    if first is not None and not (outcome.ended_early or first.ended_early or found):
        found = differences(outcome.results, first.results)
    return replace(outcome, findings=outcome.findings + found)
