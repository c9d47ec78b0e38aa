"""Exploring anything that ranks of a world run: hand-written kernels, and calls of programs one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tilelink.emulator import Execution
from tilelink.errors import TileLinkError
from tilelink.tools.explore.findings import Finding, findings_of
from tilelink.tools.explore.outcome import Outcome, Result, Subject
from tilelink.tools.explore.trial import Residency, Trial


class World(Protocol):
    """A `KernelWorld` or a `CpuWorld`."""

    latest: Execution | None

    def run(self, function: Any, /) -> Sequence[Any]: ...


Make = Callable[..., tuple[World, Callable[[Any], Any]]]


def outcome_of(world: World, run: Callable[[], tuple[Sequence[Result], Sequence[Finding]]]) -> Outcome:
    """What a run on a world came to. A finding may end it."""
    results: Sequence[Result] = ()
    findings: Sequence[Finding] = ()
    try:
        results, findings = run()
    except TileLinkError as error:
        findings = findings_of(error)
    assert world.latest is not None
    return Outcome(world.latest.schedule_hash, world.latest.turns, tuple(results), tuple(findings))


@dataclass(frozen=True)
class _OfWorld:
    make: Make
    residency: Residency

    def run(self, trial: Trial) -> Outcome:
        most, admit = self.residency.most, self.residency.admit
        world, on_rank = self.make(seed=trial.seed, policy=trial.word, switch="memory", resident=most, admit=admit)

        def run() -> tuple[Sequence[Result], Sequence[Finding]]:
            return [r for rank, value in enumerate(world.run(on_rank)) for r in _results(f"rank {rank}", value)], ()

        return outcome_of(world, run)

    def advise(self, finding: Finding) -> Finding:
        """As it is: only races of kernels written by hand have a remedy that is known, and they say it."""
        return finding


def of_world(make: Make, resident: int | None = None) -> Subject:
    """What ranks of a world do, as a subject for `explore`. `make(**schedule)` makes a world with fresh memory, given
    `schedule` as keywords, and says what each rank runs; the tensors that this returns (one, several in a list or
    tuple, or none) are what has to be the same under all schedules. `resident`: at most so many programs of a rank at a
    time, the last of a launch first, so that a grid which waits for what is not resident shows. Raises WorldError for
    fewer than 1.

        def make(**schedule):
            world = KernelWorld(2, **schedule)
            inbox, ready = world.symmetric("inbox", (64,)), world.signals("ready")
            return world, lambda rank: exchange(rank, inbox, ready)

        print(explore(of_world(make), range(200), "pct"))
    """
    return _OfWorld(make, Residency.asked(resident))


def _results(name: str, value: Any) -> list[Result]:
    if isinstance(value, torch.Tensor):
        return [Result(name, value.detach().clone())]
    if isinstance(value, list | tuple):
        return [r for k, v in enumerate(value) for r in _results(f"{name}, result {k}", v)]
    return []
