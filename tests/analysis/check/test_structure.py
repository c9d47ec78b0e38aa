"""What the structure of a program shows holds at all sizes: where it suffices, unrolled runs are never unsafe."""

from __future__ import annotations

from hypothesis import given, settings

from tests.analysis.runs import RESULTS, SIGNALS, Run, runs
from tilelink.analysis.check import check_events


@settings(max_examples=60, deadline=None)
@given(runs(RESULTS + SIGNALS))
def test_programs_are_safe_at_random_sizes(run: Run) -> None:
    """And the structure says so of those that have no conditions; what it says depends on no size. Two have tiles
    that notify a region more than once, at some sizes: that is found, and nothing else."""
    report = check_events(run.unroll())
    several = not {"one_or_two", "as_often_as_the_reader_says"}.isdisjoint(run.schedule)
    twice = {"notified twice"} if several else set()
    assert {finding.kind for finding in report.findings} <= twice, report
    structural = {"all_gather_matmul", "matmul_reduce_scatter", "matmul_backward", "waits_for_two"}
    suffices = run.program.name in structural or "in_steps" in run.schedule
    assert report.proof == ("structural" if suffices else "unrolled")
