"""Runs a step in its own process, for a bounded time. The record says that the step began, which case it was at, and
how it ended, even if it hangs or dies."""

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
"""Exit codes of a script: something is wrong; there is no device; something died or ran out of time."""
IN_ORDER = 0
"""The exit code of a step that ended by itself, also with findings. A Python that dies of an error returns 1."""
DRY = 5.0
"""The factor by which a step may take longer than on a GPU if kernels are interpreted, on a machine of any speed."""
GRACE = 10.0
"""Seconds between the time when a step should end by itself and the time when it is ended."""
QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
"""Environment of CUDA, which CUDA reads once: each virtual rank needs its own queue, in addition to torch's queues."""


@dataclass(frozen=True)
class Ending:
    """How a step ended. `code`: its exit code, None if it was ended; `verdict`, `error`: for the record of a step that
    did not end by itself, else ""."""

    code: int | None
    verdict: str = ""
    error: str = ""


def supervised(
    module: str, arguments: Sequence[str], step: str, seconds: float, path: Path, **environment: str
) -> Ending:
    """Runs `python -m module arguments` as a step whose findings go to `path`. Ends all processes that it started."""
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
    """Returns how long a step may take here, if it may take `seconds` on a GPU."""
    return seconds if on_gpu else DRY * seconds


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
