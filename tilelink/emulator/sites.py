"""Finds the line of a kernel that is running: lines of the functions in `files` are looked up on the stack."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from traceback import walk_tb
from types import CodeType, FrameType, TracebackType
from typing import Any

from tilelink.errors import Site

files: set[str] = set()
"""The files whose functions run as kernels."""
outermost: CodeType | None = None
"""The code that runs programs: below it on the stack there are no kernels."""


@dataclass(frozen=True)
class KernelSite(Site):
    """A line of a kernel, or of a device function that it called; `callers`: the calls, innermost first."""

    callers: tuple[Site, ...] = ()

    def __str__(self) -> str:
        return " called at ".join([super().__str__(), *map(str, self.callers)])


def current() -> KernelSite:
    """The line that is running. Equal lines with equal callers are one object."""
    places: tuple[tuple[str, int], ...] = ()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not outermost:
        file = frame.f_code.co_filename
        if file in files:
            places += ((file, frame.f_lineno),)
        frame = frame.f_back
    return _site(places)


def names() -> Mapping[str, Any]:
    """The local names, with their values, of the kernel function that is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename not in files:
        frame = frame.f_back
    return {} if frame is None else frame.f_locals


def of_traceback(traceback: TracebackType | None) -> KernelSite | None:
    """The line that raised, None if no kernel did."""
    lines = [(frame.f_code.co_filename, line) for frame, line in walk_tb(traceback)]
    places = tuple(place for place in reversed(lines) if place[0] in files)
    return _site(places) if places else None


@cache
def _site(places: tuple[tuple[str, int], ...]) -> KernelSite:
    sites = [Site.at(*place) for place in places]
    first = sites[0] if sites else Site("<unknown>", 0)
    return KernelSite(first.file, first.line, first.text, tuple(sites[1:]))
