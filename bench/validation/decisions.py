"""Decisions of `tilelink plan` for published rows: with its own schedules, on machines as described."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.validation.fit import cases
from bench.validation.rows import AG, Source
from tilelink.plans import MARGIN, choose


@dataclass(frozen=True)
class Decision:
    """A published fused row with its unfused row. `published` and `predicted`: how many times as fast as unfused;
    `form`: the fastest fused form of `tilelink plan`, which is predicted."""

    source: str
    row: str
    implementation: str
    published: float
    predicted: float
    form: str

    def fused(self, margin: float = MARGIN) -> bool:
        """Whether `tilelink plan` fuses with this margin."""
        return self.predicted >= 1 + margin


def decisions(source: Source) -> tuple[Decision, ...]:
    """Returns the decisions for all fused rows of a source that are speed-ups or have a published unfused time."""
    unfused = {id(c.row): c.published.value for c in cases(source) if c.published.form is None}
    found = []
    for case in cases(source):
        row, of = case.row, case.published
        if of.form is None or not (of.speedup or id(row) in unfused):
            continue
        operator = "all_gather_linear" if row.operator == AG else "linear_reduce_scatter"
        choice = choose(operator, M=row.m, N=row.n, K=row.k, world=source.world, machine=source.machine)
        assert choice.fused is not None and choice.fused_us is not None
        published = of.value if of.speedup else unfused[id(row)] / of.value
        name = f"{row.operator}, {row.shape}"
        ratio = choice.unfused_us / choice.fused_us
        found.append(Decision(source.name, name, of.implementation, published, ratio, choice.fused.plan))
    return tuple(found)


def gained(made: Sequence[Decision], margin: float = MARGIN) -> float:
    """Returns how many times as fast as unfused the decisions are (geometric mean)."""
    return math.exp(sum(math.log(d.published) for d in made if d.fused(margin)) / len(made))


def counted(made: Sequence[Decision], margin: float = MARGIN) -> tuple[int, int, int]:
    """Returns how many rows are fused, how many of these were slower than unfused, and how many others were faster."""
    fused = [d for d in made if d.fused(margin)]
    missed = sum(not d.fused(margin) and d.published > 1 for d in made)
    return len(fused), sum(d.published < 1 for d in fused), missed
