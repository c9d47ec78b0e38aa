"""Progress on stderr: lines from all processes, with the time since the command began."""

from __future__ import annotations

import sys
import time

_began = time.time()


def begin(at: float) -> None:
    """Sets the time that `say` counts from, in a process that was started later."""
    global _began
    _began = at


def began() -> float:
    return _began


def say(text: str) -> None:
    sys.stderr.write(f"[{time.time() - _began:4.0f} s] {text}\n")  # one write, so that lines stay whole
    sys.stderr.flush()
