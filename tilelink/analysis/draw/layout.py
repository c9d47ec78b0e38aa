"""How the PNG of a timeline looks: colours, inches on the paper, and rows and times in the plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from tilelink.analysis.timeline import Timeline

# Okabe and Ito's palette, which colour-blind readers can tell apart; after its last colour it starts again.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")


def colours_of(roles: Sequence[str], palette: Sequence[str] = PALETTE) -> dict[str, str]:
    """The colour of each role."""
    return {role: palette[k % len(palette)] for k, role in enumerate(roles)}


@dataclass(frozen=True)
class Layout:
    """Where things are: inches on the page, and rows (which grow downwards) in the plot."""

    timeline: Timeline

    width = 15.0
    left = 1.3
    right = 2.7
    top = 1.3
    bottom = 0.65
    gap = 0.7  # between ranks, in rows
    thick = 0.84  # of a bar, in rows

    @cached_property
    def rows(self) -> dict[tuple[int, int], float]:
        """The middle of the row of each (rank, worker)."""
        found, row = {}, 0.5
        for rank in self.timeline.ranks:
            for worker in self.timeline.workers(rank):
                found[rank, worker] = row
                row += 1
            row += self.gap
        return found

    @cached_property
    def row(self) -> float:
        """Inches of a row: as high as few workers allow, low enough for all on a page."""
        return min(0.55, max(0.15, 7.5 / len(self.rows)), 30 / len(self.rows))

    @cached_property
    def edge(self) -> float:
        """Points of the white line around tiles: thin enough to leave something of small ones."""
        width = median(s.duration for s in self.timeline.spans if s.kind == "tile") / self.per_inch
        return min(0.7, 0.1 * 72 * width, 0.06 * 72 * self.row)

    @property
    def extent(self) -> float:
        """Rows in all, with the gaps."""
        return max(self.rows.values()) + 0.5

    @property
    def height(self) -> float:
        return self.top + self.bottom + self.extent * self.row

    @cached_property
    def whole(self) -> float:
        """The time axis; never empty, though all spans may be instants."""
        return self.timeline.makespan or 1.0

    @property
    def per_inch(self) -> float:
        """Time that an inch stands for."""
        return self.whole / (self.width - self.left - self.right)

    @property
    def least(self) -> float:
        """Time that is drawn for tiles that take none, which would not be seen."""
        return 0.008 * self.per_inch

    def text_size(self, text: str, duration: float) -> float:
        """Points of the largest text that fits into a tile; a letter is about 0.62 of its size wide."""
        lines = text.split("\n")
        wide = duration / self.per_inch * 72 / (0.62 * max(map(len, lines)) + 0.8)
        high = self.row * 72 * self.thick / (1.35 * len(lines) + 0.3)
        return min(8.0, wide, high)

    def box(self, left: float, width: float) -> tuple[float, float, float, float]:
        """As fractions of the page, as high as the plot."""
        high = 1 - (self.top + self.bottom) / self.height
        return left / self.width, self.bottom / self.height, width / self.width, high

    def band(self, rank: int) -> tuple[float, float]:
        """First and last row of a rank."""
        rows = [row for (r, _), row in self.rows.items() if r == rank]
        return min(rows) - 0.5, max(rows) + 0.5

    def time(self, time: float) -> float:
        """As drawn: the picture starts at 0, whatever the clock of the source."""
        return time - self.origin

    @cached_property
    def origin(self) -> float:
        return self.timeline.start

    @cached_property
    def colours(self) -> dict[str, str]:
        return colours_of(self.timeline.roles)
