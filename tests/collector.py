"""Python's garbage collector in processes that run tests."""

from __future__ import annotations

import gc


def calm() -> None:
    """The collector leaves out what there is by now, and looks for garbage less often.

    Modules, torch and Triton are hundreds of thousands of objects that live to the end. Every full collection would
    visit them again: that was a fifth of the time of a test on CPU ranks."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
