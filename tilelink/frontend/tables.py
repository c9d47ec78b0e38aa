"""Running tables: sums over the counts of a route. The device makes them before a run, and everything else reads them.

A table has a row for each rank. Entry k of a row says where step k begins; the last entry says where the last step
ends. The expression `step` is the length of a step. A kernel and (for an analysis) numpy add up this same expression.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from tilelink.frontend.expressions import Expr, begin_of, own, running, segment_of

ROW, ENTRY = own("row"), own("entry")
"""The rank of a row, and the number of a step: symbols in the lengths of steps."""


@dataclass(frozen=True)
class Table:
    """A table. `steps`: steps of a row; `step`: the length of step ENTRY of row ROW; `first`: where row ROW begins."""

    name: Expr
    steps: Expr
    step: Expr
    first: Expr = sympy.S.Zero

    @property
    def key(self) -> str:
        """The key of the table among values and parameters."""
        return running(self.name)

    def begin(self, rank: Expr, k: Expr) -> Expr:
        """Where step k of a rank begins; for k = `steps`, where the last step ends."""
        return begin_of(self.name, rank * (self.steps + 1) + k)

    def find(self, rank: Expr, value: Expr, first: Expr = sympy.S.Zero, count: Expr | None = None) -> Expr:
        """Which of `count` steps of a rank, from step `first` on (default: all steps), holds a value."""
        return segment_of(self.name, value, rank * (self.steps + 1) + first, self.steps if count is None else count)
