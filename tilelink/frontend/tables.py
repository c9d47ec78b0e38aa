"""Running tables: sums over the counts of a route, which the device makes before a run and everything else reads.

A table has a row for each rank. Entry k of a row is where its step k begins, and the last entry is where the last step
ends; `step` is how long one is. So one expression is what a kernel adds up, and what numpy does for an analysis.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from tilelink.frontend.expressions import Expr, begin_of, own, running, segment_of

ROW, ENTRY = own("row"), own("entry")
"""The rank of a row, and the number of a step, in the lengths of steps."""


@dataclass(frozen=True)
class Table:
    """`steps` of a row; `step`: how long step ENTRY of row ROW is; `first`: where row ROW begins."""

    name: Expr
    steps: Expr
    step: Expr
    first: Expr = sympy.S.Zero

    @property
    def key(self) -> str:
        """What the table is called among values and parameters."""
        return running(self.name)

    def begin(self, rank: Expr, k: Expr) -> Expr:
        """Where step k of a rank begins; k may be `steps`: where the last one ends."""
        return begin_of(self.name, rank * (self.steps + 1) + k)

    def find(self, rank: Expr, value: Expr, first: Expr = sympy.S.Zero, count: Expr | None = None) -> Expr:
        """In which of `count` steps of a rank from step `first` on (of all, by default) a value lies."""
        return segment_of(self.name, value, rank * (self.steps + 1) + first, self.steps if count is None else count)
