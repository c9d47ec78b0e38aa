"""The parts of commands: flags, a function from arguments to an answer, errors, progress, and jobs on all cores."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, TypeVar

from tilelink.errors import TileLinkError

J = TypeVar("J")
R = TypeVar("R")
EVERY = 2.0
"""Seconds between two lines of progress."""


class UsageError(TileLinkError):
    """A command line that can't be carried out. `file`: the file of the target, if the error is about it."""

    def __init__(self, message: str, file: str | None = None) -> None:
        self.file = file
        super().__init__(message)


@dataclass(frozen=True)
class Answer:
    """The answer of a command: `keys` for programs; `text` and `note` (for stderr) tell people the same."""

    keys: dict[str, Any]
    text: str
    note: str = ""
    status: str = "ok"


class Flag:
    """An argument of a command, as `ArgumentParser.add_argument` takes it."""

    def __init__(self, name: str, **options: Any) -> None:
        self.name, self.options = name, options


@dataclass(frozen=True)
class Command:
    """A command: the function that runs it, an example for its help, and its flags."""

    run: Callable[[argparse.Namespace], Answer]
    example: str
    flags: Sequence[Flag] = ()


def now_and_then(said: Callable[[R], str]) -> Callable[[R], None]:
    """A function that prints progress to stderr, at most every `EVERY` seconds, as `said` puts it."""
    last = time.monotonic()

    def tell(progress: R) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            sys.stderr.write(f"{said(progress)}\n")

    return tell


def progress() -> Callable[[str], None]:
    """`now_and_then`, with the seconds since this call."""
    began = time.monotonic()
    return now_and_then(lambda what: f"{time.monotonic() - began:.0f} s: {what}")


def columns(heads: Sequence[str], lines: Sequence[Sequence[str]], left: Container[int] = ()) -> list[str]:
    """The lines of a table under their heads. Columns in `left` are flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    return [
        "  ".join(c.ljust(w) if k in left else c.rjust(w) for k, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in [heads, *lines]
    ]


def on_all_cores(run: Callable[[J], R], jobs: Sequence[J]) -> Iterator[tuple[int, R | TileLinkError]]:
    """Yields the number of each job as it is done, with the result of `run` or the TileLinkError it raised."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tilelink.plans"])  # what takes long to import is imported once
    with ProcessPoolExecutor(min(len(jobs), os.cpu_count() or 1), context) as pool:
        futures = {pool.submit(tried, run, job): k for k, job in enumerate(jobs)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)  # nobody wants the results of other jobs any more


def tried(run: Callable[[J], R], job: J) -> R | TileLinkError:
    """The result of `run`, in a worker process. Errors come back without their place, which is in code of ours."""
    try:
        return run(job)
    except TileLinkError as e:
        return type(e)(e.message)
