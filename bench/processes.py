"""Runs jobs in parallel: each process runs one job at a time, and costly jobs begin first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

from bench import progress
from bench.cases import Case
from bench.measure import Measured, measure

J = TypeVar("J")
R = TypeVar("R")


def measure_all(cases: Sequence[Case], processes: int) -> list[Measured]:
    """Measures the cases; returns the results in the order of the cases."""

    def said(made: Measured) -> str:
        return f"{made.case.name}: {'right' if made.ok else 'WRONG'}"

    progress.say(f"{len(cases)} cases, {sum(len(c.seeds) for c in cases)} runs, {processes} at a time")
    return run_all(measure, cases, processes, cost=lambda case: case.cost, said=said)


def run_all(
    run: Callable[[J], R], jobs: Sequence[J], processes: int, *, cost: Callable[[J], float], said: Callable[[R], str]
) -> list[R]:
    """Returns `run(job)` for each job, in their order. With one process, jobs run in this process. Prints `said` of
    each finished job to stderr, with the time left, estimated from the `cost` of the other jobs."""
    began, whole, done = time.perf_counter(), sum(map(cost, jobs)), 0.0
    found: dict[int, R] = {}
    for k, result in finished(run, jobs, min(processes, len(jobs)), cost):
        found[k], done = result, done + cost(jobs[k])
        left = (time.perf_counter() - began) * (whole - done) / done
        progress.say(f"{len(found)} of {len(jobs)}, about {left:.0f} s left: {said(result)}")
    return [found[k] for k in range(len(jobs))]


def finished(
    run: Callable[[J], R], jobs: Sequence[J], processes: int, cost: Callable[[J], float] = lambda job: 1.0
) -> Iterator[tuple[int, R]]:
    """Yields the index of each job with `run(job)`, as soon as it is there. Arguments as for `run_all`."""
    order = sorted(range(len(jobs)), key=lambda k: -cost(jobs[k]))
    if processes <= 1:
        yield from ((k, run(jobs[k])) for k in range(len(jobs)))
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), progress.begin, (progress.began(),)) as pool:
        futures = {pool.submit(run, jobs[k]): k for k in order}
        yield from ((futures[f], f.result()) for f in as_completed(futures))
