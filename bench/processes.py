"""All cases, side by side: a process runs one at a time, the costly ones first."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from bench import progress
from bench.cases import Case
from bench.measure import Measured, measure


def measure_all(cases: Sequence[Case], jobs: int) -> list[Measured]:
    """What came of each case, in the order of the cases, with `jobs` processes; one job is done in this process."""
    jobs = min(jobs, len(cases))
    progress.say(f"{len(cases)} cases, {sum(len(c.seeds) for c in cases)} runs, {jobs} at a time")
    if jobs == 1:
        return [measure(case) for case in cases]
    order = sorted(range(len(cases)), key=lambda k: -cases[k].cost)
    with ProcessPoolExecutor(jobs, get_context("spawn"), progress.begin, (progress.began(),)) as pool:
        done = dict(zip(order, pool.map(measure, [cases[k] for k in order]), strict=True))
    return [done[k] for k in range(len(cases))]
