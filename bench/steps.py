"""Shared parts of the command lines of `bench.gpu` and `bench.node`: options, file names, and how a step runs."""

from __future__ import annotations

import argparse
import faulthandler
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from bench.gpu.place import Place
from bench.gpu.report import OUT_OF_TIME, OutOfTimeError, Report
from bench.gpu.supervise import Ending

P = TypeVar("P")
R = TypeVar("R", bound=Report)
RESULTS = Path(__file__).resolve().parent / "results"


def parser(prog: str, steps: Iterable[str], alone: Iterable[str] = ()) -> argparse.ArgumentParser:
    """Returns a parser with the shared options. `prog` starts the script and ends with its module, whose docstring is
    the description. `alone`: steps that only `--step` runs."""
    made = argparse.ArgumentParser(
        prog=prog, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(sys.modules[prog.split()[-1]].__doc__ or ""),
    )  # fmt: skip
    without = f"; without --step, {', '.join(alone)} is left out" if alone else ""
    made.add_argument("--step", choices=[*steps, *alone], help=f"one of the steps alone{without}")
    made.add_argument("--dry", action="store_true", help="on CPU ranks, at tiny sizes: are the steps all right?")
    made.add_argument("--out", type=Path, help="folder for the results (default: $OUT, or bench/results)")
    made.add_argument("--began", type=float, help=argparse.SUPPRESS)
    return made


def folder(out: Path | None) -> Path:
    """Returns the folder for the results, which it makes if necessary: `out`, $OUT or bench/results."""
    found = out or Path(os.environ.get("OUT") or RESULTS)
    found.mkdir(parents=True, exist_ok=True)
    return found


def slug(device: str) -> str:
    """Returns the name of a device as part of the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


@contextmanager
def watched(seconds: float) -> Iterator[None]:
    """A context that prints where this process is if it is still inside after `seconds`."""
    faulthandler.dump_traceback_later(seconds)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def run_here(run: Callable[[P, R], None], place: P, report: R) -> None:
    """Runs a step in this process, until its end or until its time is over."""
    report.begun()
    with suppress(OutOfTimeError):
        run(place, report)


def add_ending(path: Path, step: str, place: Place, command: str, ending: Ending, **more: Any) -> None:
    """Writes the finding that a step did not end by itself. A step that is out of time may be right."""
    ok = None if ending.verdict == OUT_OF_TIME else False
    report = Report(path, step, place, command, 0)
    report.add("the step as a whole", ok=ok, verdict=ending.verdict, error=ending.error, **more)
