"""On small programs, correct and damaged, the check, a closure over all pairs of events, and exploring agree."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.analysis.check.brute_force import BruteForce
from tests.analysis.check.damaged_programs import events_of
from tilelink.analysis.check import check_events
from tilelink.tools.explore import Oracle, explore

SEEDS = 10
HAPPENS = {"race", "deadlock", "lost signal", "unwritten read", "unwritten output", "written twice"}
"""What the check finds and an execution can show. That a wait ends early shows only in what comes of it."""


def compare(seed: int) -> str:
    """What exploring found in one program, after holding it against the check and the closure."""
    events = events_of(seed)
    report = check_events(events)
    brute = BruteForce(events)
    closure = brute.miscounted() or brute.outputs_wrong() or brute.meets_itself() or brute.unsafe_in_some_pair()
    assert (report.verdict == "unsafe") == closure, f"seed {seed}: {report}"
    found: set[str] = set()
    for policy in ("random", "pct"):
        explored = explore(Oracle(events), range(SEEDS), policy)
        found |= {f.kind for f in explored.findings}
        assert report.findings or not found, f"seed {seed}: the check finds nothing, {policy} schedules do: {explored}"
    shown = {f.kind for f in report.findings} & HAPPENS
    assert found or not shown, f"seed {seed}: no schedule shows what the check finds: {report}"
    return ", ".join(sorted(found)) or ("nothing, and the wait is short" if report.findings else "nothing")


def test_a_sample_agrees() -> None:
    found = Counter(compare(seed) for seed in range(40))
    assert found["nothing"] > 5 and len(found) > 4, found


@pytest.mark.verify
def test_all_agree() -> None:
    found = Counter(compare(seed) for seed in range(1000, 1500))
    kinds = {kind for kinds in found for kind in kinds.split(", ")}
    assert kinds >= {"race", "deadlock", "unwritten read", "unwritten output", "written twice"}, found
    assert found["nothing"] > 100, found
