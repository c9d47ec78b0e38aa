"""The verdict of the check is that of brute force, on small programs with random damage."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.analysis.check.brute_force import BruteForce
from tests.analysis.check.damaged_programs import events_of
from tilelink.analysis.check import check_events

BY_RULE = {"notified twice"}
"""Refused though it may run: what is said twice says nothing the first time. Brute force knows no such rules."""


def compare(seed: int, *, most: int = 20_000) -> str:
    """Checks one damaged program both ways; returns what was found."""
    events = events_of(seed)
    report = check_events(events)
    brute = BruteForce(events)
    wrong = brute.miscounted() or brute.outputs_wrong() or brute.meets_itself()
    pairs = wrong or brute.unsafe_in_some_pair()
    kinds = {f.kind for f in report.findings}
    unsafe = bool(kinds - BY_RULE)
    assert unsafe == pairs, f"seed {seed}: {report}"
    interleavings = wrong or brute.unsafe_in_some_interleaving(most)
    assert interleavings is None or interleavings == pairs, f"seed {seed}: {report}"
    return ", ".join(sorted(kinds)) + ("" if interleavings is None else "; all")


def test_a_sample_agrees() -> None:
    found = Counter(compare(seed) for seed in range(20))
    assert sum(n for kinds, n in found.items() if kinds.startswith(";")) > 2, found
    kinds = {kind for kinds in found for kind in kinds.split(";")[0].split(", ")}
    assert kinds >= {"race", "unwritten read", "signal count"}, kinds


@pytest.mark.verify
def test_all_agree() -> None:
    found = Counter(compare(seed, most=30_000) for seed in range(600))
    kinds = {kind for kinds in found for kind in kinds.split(";")[0].split(", ")}
    assert kinds >= {"race", "deadlock", "lost signal", "unwritten read", "unwritten output", "written twice"}, kinds
    assert sum(n for kinds, n in found.items() if kinds.endswith("all")) > 300, found
