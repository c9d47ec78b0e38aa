"""Where in the source of a kernel something happens."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from types import FrameType, TracebackType

from tilelink.errors import Site


@dataclass(frozen=True)
class KernelSite(Site):
    """A line of a kernel, or of a device function that it called; `callers`: the calls, innermost first."""

    callers: tuple[Site, ...] = ()

    def __str__(self) -> str:
        return " called at ".join([super().__str__(), *map(str, self.callers)])


Place = tuple[str, int]


class SiteFinder:
    """Finds the lines of kernels on the stack. `files` are the files whose functions run as kernels."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._sites: dict[tuple[Place, ...], KernelSite] = {}

    def current(self) -> KernelSite:
        """The line that is running. Equal lines with equal callers are one object."""
        places: tuple[Place, ...] = ()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if file in self.files:
                places += ((file, frame.f_lineno),)
            frame = frame.f_back
        return self._site(places)

    def of_traceback(self, traceback: TracebackType | None) -> KernelSite | None:
        """The line that raised, None if no kernel did."""
        places: tuple[Place, ...] = ()
        while traceback is not None:
            file = traceback.tb_frame.f_code.co_filename
            if file in self.files:
                places = ((file, traceback.tb_lineno), *places)
            traceback = traceback.tb_next
        return self._site(places) if places else None

    def _site(self, places: tuple[Place, ...]) -> KernelSite:
        site = self._sites.get(places)
        if site is None:
            sites = [Site(file, line, linecache.getline(file, line).strip()) for file, line in places]
            first = sites[0] if sites else Site("<unknown>", 0)
            site = self._sites[places] = KernelSite(first.file, first.line, first.text, tuple(sites[1:]))
        return site
