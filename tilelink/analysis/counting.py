"""How often signals come in a run, in numbers: what was derived, held against what the unrolled tiles do."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilelink.analysis.events import NOTIFY, Events
from tilelink.errors import SignalCountError
from tilelink.frontend.cells import cell_count, cell_filled, position, times_notified
from tilelink.frontend.expressions import Expr, evaluate
from tilelink.frontend.ir import Notifier, Notify, Signals, TileProgram
from tilelink.frontend.signals import uses
from tilelink.frontend.sizes import Sizes


def expected_counts(program: TileProgram, signals: Signals, sizes: Sizes) -> np.ndarray:
    """How often each cell of a tensor is notified in a run, as derived: (world, cells)."""
    values = {**sizes.values}
    cells = int(evaluate(cell_count(signals), values))
    values["rank"], values["cell"] = np.arange(sizes.world)[:, None], np.arange(cells)[None, :]
    return np.broadcast_to(expected(signals, values), (sizes.world, cells)).astype(np.int64)


Sum = tuple[str, Expr, Expr]


def expected(signals: Signals, values: dict[str, Any], *, inside: bool = False) -> Any:
    """How often the cells `values["cell"]` are notified in a run. `inside`: they are known to hold elements."""
    values = dict(values)
    for name, e in position(signals):
        values[name] = evaluate(e, values)
    total: Any = 0
    for n in signals.notifiers:
        times = times_notified(signals, n, inside=inside)

        def add(sums: tuple[Sum, ...], known: dict[str, Any], n: Notifier = n, times: Expr = times) -> Any:
            if not sums:
                return np.where(evaluate(n.condition, known), evaluate(times, known), 0)
            (name, start, stop), *rest = sums
            bounds = range(int(evaluate(start, known)), int(evaluate(stop, known)))
            return sum(add(tuple(rest), {**known, name: v}) for v in bounds)

        total = total + add(n.sums, values)
    return total


def filled(signals: Signals, values: dict[str, Any]) -> Any:
    """Whether there is anything in a cell, or it is one of those that shorter parts lack."""
    values = dict(values)
    for name, e in position(signals):
        values[name] = evaluate(e, values)
    return np.asarray(evaluate(cell_filled(signals), values)) > 0


def check_counts(events: Events) -> None:
    """The derived counts have to be those of the unrolled notifications: two ways to the same number."""
    program = events.program
    for signals in program.signals:
        index = next(k for k, t in enumerate(program.tensors) if t.name == signals.tensor)
        derived = expected_counts(program, signals, events.sizes)
        mine = (events.op == NOTIFY) & (events.tensor == index)
        counted = np.zeros_like(derived)
        np.add.at(counted, (events.home[mine], events.cell[mine]), 1)
        if (derived != counted).any():
            rank, cell = map(int, np.argwhere(derived != counted)[0])
            sites = [u.site for r in program.roles for u in uses(r, Notify) if u.view.tensor == signals.tensor]
            raise SignalCountError(
                f"signal {cell} of {signals.tensor} on rank {rank} is given {counted[rank, cell]} times in a run; "
                f"{derived[rank, cell]} were derived. Let whether and how often a tile notifies depend on ranks only",
                sites[0],
            )
