"""Jobs on all cores, a process each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

from tilelink.errors import TileLinkError

J = TypeVar("J")
R = TypeVar("R")


def on_all_cores(run: Callable[[J], R], jobs: Sequence[J]) -> Iterator[tuple[int, R | TileLinkError]]:
    """The number of each job, and what `run` gave of it or the error of ours that it raised, as they come."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tilelink.plans"])  # what takes long to import is imported once
    with ProcessPoolExecutor(min(len(jobs), os.cpu_count() or 1), context) as pool:
        futures = {pool.submit(_tried, run, job): k for k, job in enumerate(jobs)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)  # of whom nobody wants to hear any more


def _tried(run: Callable[[J], R], job: J) -> R | TileLinkError:
    """In a process of its own: errors come back without their place, which is in code of ours."""
    try:
        return run(job)
    except TileLinkError as e:
        return type(e)(e.message)
