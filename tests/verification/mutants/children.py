"""Jobs done side by side, each in a fork of this process: what is there need not be made again, and what a job does to
itself, or a mutant to it, ends with it."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch

A = TypeVar("A")
R = TypeVar("R")


def each(
    function: Callable[[A], R], jobs: Iterable[A], processes: int, seconds: float
) -> Iterator[tuple[A, R | str]]:
    """`function` of each job, as they end; a text where the process of a job ended itself, or took too long."""
    forking = multiprocessing.get_context("fork")
    waiting, running = iter(jobs), dict[Connection, tuple[A, Any, float]]()
    more = True
    while more or running:
        while more and len(running) < processes:
            job = next(waiting, None)
            more = job is not None
            if job is None:
                break
            here, there = forking.Pipe(duplex=False)
            child = forking.Process(target=_send, args=(function, job, there))
            child.start()
            there.close()
            running[here] = job, child, time.monotonic() + seconds
        for here in wait(list(running), timeout=1.0):
            assert isinstance(here, Connection)
            job, child, _ = running.pop(here)
            try:
                yield job, here.recv()
            except EOFError:
                child.join()
                yield job, f"the process ended with {child.exitcode}"
            child.join()
        for here, (job, child, until) in list(running.items()):
            if time.monotonic() > until:
                del running[here]
                child.kill()
                child.join()
                yield job, f"no answer in {seconds:.0f} s"


def _send(function: Callable[[A], R], job: A, there: Connection) -> None:
    torch.set_num_threads(1)  # a fork has none of the threads that torch began, and would wait for them
    there.send(function(job))
