"""How often the signals of a run are notified: derived counts, and their comparison with the unrolled tiles."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import sympy

from tilelink.analysis.events import NOTIFY, Events
from tilelink.errors import ScheduleError, SignalCountError, counted
from tilelink.frontend.arithmetic import evaluate
from tilelink.frontend.cells import CELL, cell_count, cell_filled, position, times_notified
from tilelink.frontend.expressions import RANK
from tilelink.frontend.ir import Notifier, Notify, Signals, every
from tilelink.frontend.sizes import Sizes


def expected_counts(signals: Signals, sizes: Sizes) -> np.ndarray:
    """The derived number of notifications of each cell of a tensor in a run: (world, cells)."""
    cells = int(evaluate(cell_count(signals), sizes.values))
    values: dict[str, Any] = {**sizes.values, RANK.name: np.arange(sizes.world)[:, None], CELL.name: np.arange(cells)}
    for name, e in position(signals):
        values[name] = evaluate(e, values)
    total = np.zeros((sizes.world, cells), np.int64)
    for n in signals.notifiers:
        tiles = evaluate(times_notified(signals, replace(n, times=sympy.S.One)), values)
        total += _notifications(n, values) * tiles
    return total


TERMS = 1 << 22
"""The most terms of sums that are evaluated at once; this bounds their memory."""


def _notifications(n: Notifier, values: dict[str, Any]) -> np.ndarray:
    """How often a notifier notifies each cell, for one tile. The sum is evaluated once for each combination of its
    ranks, parts and entries; each cell takes the result of its combination."""
    if not n.sums:
        return np.where(evaluate(n.condition, values), evaluate(n.times, values), 0)
    used = map(str, n.condition.free_symbols | n.times.free_symbols)
    names = sorted(name for name in used if isinstance(values.get(name), np.ndarray))
    several = [int(np.max(values[name], initial=0)) + 1 for name in names]
    known = values | dict(zip(names, (k[:, None] for k in _combinations(several)), strict=True))
    bounds = [range(int(evaluate(a, values)), int(evaluate(b, values))) for _, a, b in n.sums]
    terms = list(zip((name for name, _, _ in n.sums), _combinations(list(map(len, bounds))), strict=True))
    total, count, step = np.zeros(prod(several), np.int64), len(terms[0][1]), max(1, TERMS // prod(several))
    for first in range(0, count, step):
        some = slice(first, first + step)
        known |= {name: k[some] + b.start for (name, k), b in zip(terms, bounds, strict=True)}
        made = np.where(evaluate(n.condition, known), evaluate(n.times, known), 0)
        total += np.broadcast_to(made, (len(total), min(step, count - first))).sum(axis=1)
    if not names:
        return total
    return total[np.ravel_multi_index(tuple(np.broadcast_arrays(*(values[name] for name in names))), several)]


def _combinations(lengths: list[int]) -> list[np.ndarray]:
    """All combinations of numbers below these lengths, in columns."""
    return [k.reshape(-1) for k in np.indices(lengths)]


def filled(signals: Signals, values: dict[str, Any]) -> Any:
    """Whether each cell holds anything; the cells that a shorter part lacks do not."""
    values = dict(values)
    for name, e in position(signals):
        values[name] = evaluate(e, values)
    return np.asarray(evaluate(cell_filled(signals), values)) > 0


class Counts:
    """The derived counts of the signals of a run, kept by tensor: how often each cell is notified, and whether it holds
    anything; both (world, cells)."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.made: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def __call__(self, signals: Signals) -> tuple[np.ndarray, np.ndarray]:
        if signals.tensor not in self.made:
            expected = expected_counts(signals, self.sizes)
            world, cells = expected.shape
            place = {RANK.name: np.arange(world)[:, None], CELL.name: np.arange(cells)}
            holds = np.broadcast_to(filled(signals, {**self.sizes.values, **place}), expected.shape)
            self.made[signals.tensor] = expected, holds
        return self.made[signals.tensor]


def miscounted(events: Events, counts: Counts, roles: Container[str]) -> SignalCountError | None:
    """A SignalCountError if the derived counts differ from the unrolled notifications, else None. Signals that are also
    notified by roles outside `roles` are not compared."""
    program = events.program
    for signals in program.signals:
        if any(n.role not in roles for n in signals.notifiers):
            continue
        index = program.numbers[signals.tensor]
        derived, _ = counts(signals)
        mine = (events.op == NOTIFY) & (events.tensor == index)
        given = np.zeros_like(derived)
        np.add.at(given, (events.home[mine], events.cell[mine]), 1)
        if (derived != given).any():
            rank, cell = map(int, np.argwhere(derived != given)[0])
            notifies = (s for r in program.roles for s in every(Notify, r.body))
            site = next(s.site for s in notifies for v in s.views if v.tensor == signals.tensor)
            times = counted(given[rank, cell], "time")
            return SignalCountError(
                f"signal {cell} of {signals.tensor} on rank {rank} is given {times} in a run; {derived[rank, cell]} "
                "were derived. Let whether and how often a tile notifies depend on ranks only",
                site,
            )
    return None


def check_engine_signals(events: Events) -> None:
    """Raises ScheduleError if a copy engine gives a signal that is given more than once: it can only write 1."""
    program = events.program
    given = np.flatnonzero(events.op == NOTIFY)
    _, signal, times = np.unique(events.words(given), return_inverse=True, return_counts=True)
    wrong = np.flatnonzero((events.worker[given] >= events.kernel_workers) & (times[signal] > 1))
    if not len(wrong):
        return
    k, same = int(given[wrong[0]]), given[signal == signal[wrong[0]]]
    tensor, copier = program.tensors[events.tensor[k]].name, program.roles[events.role[k]]
    role, own = copier.name, copier.resource.own == "stored"
    longer = ', and with own="stored" no cell is shorter than a tile of the role that makes what it copies'
    givers = sorted({program.roles[r].name for r in events.role[same]} - {role})
    by = f" (by {', '.join(givers)}, too)" if givers else ""
    raise ScheduleError(
        f"signal {events.cell[k]} of {tensor} on rank {events.home[k]} is given {len(same)} times in a run{by}, and a "
        f"copy engine writes 1, it does not count. A cell is {_cell(program.signals_of(tensor))}: let one tile of "
        f"{role} cover it"
        + (longer if own else ""),
        events.sites[events.site[k]],
    )


def _cell(signals: Signals) -> str:
    """The size of a cell, as text."""
    whole = {True: "a whole part", False: "the whole"}
    return " x ".join(f"{c.size or whole[c.cut]} along {c.dim}" for c in signals.grid)
