"""The events of a run as steps of its workers: which pieces of memory each touches, which signal it gives or awaits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tilelink.analysis.check.cells import Cells, written_tensors
from tilelink.analysis.events import NOTIFY, READ, WAIT, WRITE, Events


@dataclass(frozen=True)
class Step:
    """What a worker does at once. `event`: its index; `worker`: its number; `cells`: the pieces of memory that it reads
    or writes, of those that no step touches in part; `signal`: the one it gives or awaits, `expected` times; `stretch`:
    how many times its worker synchronised before, and once more; `tile`: its role and its tile."""

    event: int
    op: int
    worker: int
    stretch: int
    tile: tuple[int, int]
    cells: tuple[int, ...] = ()
    signal: int = -1
    expected: int = 0


@dataclass(eq=False)
class Worker:
    """A worker of a rank, or an agent of its copy engine, with all its steps in order."""

    number: int
    rank: int
    agent: bool
    steps: list[Step]


@dataclass(eq=False)
class Steps:
    """The steps of a run. `outputs`: cells of outputs, by tensor and rank; `cells`, `signals`: how many there are."""

    events: Events
    workers: list[Worker] = field(default_factory=list)
    outputs: dict[tuple[int, int], range] = field(default_factory=dict)
    cells: int = 0
    signals: int = 0


def steps_of(events: Events) -> Steps:
    """Numbers pieces of memory and signals. Inputs are left out, which nobody writes."""
    made = Steps(events)
    touched: dict[int, list[int]] = {}
    for cells in written_tensors(events):
        _add(made, cells, touched)
    signals: dict[tuple[int, int, int], int] = {}
    for number, (rank, worker) in enumerate(events.workers):
        mine = Worker(number, rank, worker >= events.kernel_workers, [])
        stretch = 1
        for k in events.of_worker(rank, worker).tolist():
            op, tile = int(events.op[k]), (int(events.role[k]), int(events.tile[k]))
            if op in (READ, WRITE) and k in touched:
                mine.steps.append(Step(k, op, number, stretch, tile, tuple(touched[k])))
            elif op in (NOTIFY, WAIT):
                holder = int(events.home[k]) if op == NOTIFY else rank
                key = int(events.tensor[k]), holder, int(events.cell[k])
                signal, expected = signals.setdefault(key, len(signals)), int(events.expected[k])
                mine.steps.append(Step(k, op, number, stretch, tile, signal=signal, expected=expected))
                stretch += 1
        made.workers.append(mine)
    made.signals = len(signals)
    return made


def _add(made: Steps, cells: Cells, touched: dict[int, list[int]]) -> None:
    """Numbers the pieces of one rank's tensor, behind those of others."""
    count = int(np.prod(cells.shape))
    if made.events.program.tensors[cells.tensor].kind == "output":
        made.outputs[cells.tensor, cells.home] = range(made.cells, made.cells + count)
    for access, cell in zip(cells.access.tolist(), cells.cell.tolist(), strict=True):
        touched.setdefault(access, []).append(made.cells + cell)
    made.cells += count
