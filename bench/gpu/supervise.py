"""A step in a process of its own, with a time of its own: that it began, what it was at, and how it ended is on record
whatever becomes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.report import now_of
from bench.progress import say

RIGHT, FOUND, NO_DEVICE, NO_END = 0, 4, 2, 3
"""Exit codes of steps: no finding, findings, no device; and of a script whose steps did not all come to an end. A
Python that dies of an error ends with 1, and so do we for findings alone."""
GRACE = 10.0
"""Seconds from when a step should end by itself to when it is ended."""
QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
"""Each virtual rank needs a queue of its own on the device, beside those of torch. CUDA reads it once."""


@dataclass(frozen=True)
class Ending:
    """How a step ended. `code`: its exit code, None where it was ended; `error`: what a record says of one that came
    to no end by itself, or ""."""

    code: int | None
    error: str


def supervised(
    module: str, arguments: Sequence[str], step: str, seconds: float, path: Path, **environment: str
) -> Ending:
    """Runs `python -m module arguments` as a step whose findings go to `path`. What it started ends with it."""
    command = [sys.executable, "-m", module, *arguments]
    began = time.monotonic()
    process = subprocess.Popen(command, env=QUEUES | os.environ | environment, start_new_session=True)
    try:
        code: int | None = process.wait(seconds + GRACE)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        end_session(process)
    say(f"step {step}: {time.monotonic() - began:.0f} s")
    if code in (RIGHT, FOUND):
        return Ending(code, "")
    at = now_of(path)
    where = f" at {at.read_text()}" if at.exists() else ""
    ending = f"was ended after {seconds + GRACE:.0f} s" if code is None else f"ended with exit code {code}"
    return Ending(code, ending + where)


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
