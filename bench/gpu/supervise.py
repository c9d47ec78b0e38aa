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

from bench.gpu.report import DIED, OUT_OF_TIME, now_of
from bench.progress import say

FINDINGS, NO_DEVICE, NO_END = 1, 2, 3
"""Exit codes of a script: for something wrong; without a device; where something did not come to its end."""
IN_ORDER = 0
"""The exit code of a step that came to its end, whatever it found. A Python that dies of an error ends with 1."""
DRY = 5.0
"""So much longer than on a GPU a step may take where kernels are interpreted, on a machine of any speed."""
GRACE = 10.0
"""Seconds from when a step should end by itself to when it is ended."""
QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
"""Each virtual rank needs a queue of its own on the device, beside those of torch. CUDA reads it once."""


@dataclass(frozen=True)
class Ending:
    """How a step ended. `code`: its exit code, None where it was ended; `verdict`, `error`: what a record says of one
    that came to no end by itself, or ""."""

    code: int | None
    verdict: str = ""
    error: str = ""


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
    at = now_of(path)
    where = f" at {at.read_text()}" if at.exists() else ""
    at.unlink(missing_ok=True)
    if code == IN_ORDER:
        return Ending(code)
    if code is None:
        return Ending(code, OUT_OF_TIME, f"was ended after {seconds + GRACE:.0f} s{where}")
    return Ending(code, DIED, f"ended with exit code {code}{where}")


def patience(seconds: float, on_gpu: bool) -> float:
    """How long a step may take here that may take so many seconds on a GPU."""
    return seconds if on_gpu else DRY * seconds


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
