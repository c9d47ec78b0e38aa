"""Damage to the events of a run: what a mistake in a program, or in what is derived from it, would make of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tilelink.analysis.events import NOTIFY, READ, WAIT, WRITE, Events

Damage = Callable[[Events, random.Random], Events]


def without(events: Events, drop: np.ndarray | list[int]) -> Events:
    """Events less some."""
    keep = np.ones(len(events), bool)
    keep[drop] = False
    return taken(events, np.flatnonzero(keep))


def taken(events: Events, order: np.ndarray) -> Events:
    """Some events, in this order."""
    return replace(events, **{c: getattr(events, c)[order] for c in Events.COLUMNS})


def with_column(events: Events, column: str, k: int | np.ndarray, value: object) -> Events:
    """Events with other values in some places."""
    values = getattr(events, column).copy()
    values[k] = value
    return replace(events, **{column: values})


def recounted(events: Events) -> Events:
    """Each wait is for as many notifications as its signal gets."""
    signal = [events.tensor, np.where(events.op == NOTIFY, events.home, events.rank), events.cell]
    keys = list(zip(*(c.tolist() for c in signal), strict=True))
    given: dict[tuple[int, ...], int] = {}
    for k in np.flatnonzero(events.op == NOTIFY):
        given[keys[k]] = given.get(keys[k], 0) + 1
    expected = [given.get(key, 0) if op == WAIT else -1 for key, op in zip(keys, events.op, strict=True)]
    return replace(events, expected=np.array(expected))


def _some(events: Events, rng: random.Random, *ops: int) -> int | None:
    """An event of these kinds, not about an input: those are never written."""
    inputs = [k for k, t in enumerate(events.program.tensors) if t.kind == "input"]
    found = np.flatnonzero(np.isin(events.op, ops) & ~np.isin(events.tensor, inputs))
    return int(rng.choice(found)) if len(found) else None


def drop(events: Events, rng: random.Random) -> Events:
    k = _some(events, rng, READ, WRITE, NOTIFY, WAIT)
    return events if k is None else without(events, [k])


def drop_tile(events: Events, rng: random.Random) -> Events:
    k = rng.randrange(len(events))
    own = (events.rank == events.rank[k]) & (events.role == events.role[k]) & (events.tile == events.tile[k])
    return without(events, np.flatnonzero(own))


def swap(events: Events, rng: random.Random) -> Events:
    """A step or access done before the one in front of it, on the same worker."""
    k = _some(events, rng, READ, WRITE, NOTIFY, WAIT)
    if not k or any(c[k] != c[k - 1] for c in (events.rank, events.worker)):
        return events
    order = np.arange(len(events))
    order[[k - 1, k]] = k, k - 1
    return taken(events, order)


def repeat(events: Events, rng: random.Random) -> Events:
    k = _some(events, rng, WRITE, NOTIFY, WAIT)
    return events if k is None else taken(events, np.insert(np.arange(len(events)), k, k))


def other_rank(events: Events, rng: random.Random) -> Events:
    k = _some(events, rng, READ, WRITE, NOTIFY)
    return events if k is None else with_column(events, "home", k, rng.randrange(events.sizes.world))


def other_cell(events: Events, rng: random.Random) -> Events:
    k = _some(events, rng, NOTIFY, WAIT)
    return events if k is None else with_column(events, "cell", k, int(rng.choice(events.cell[events.cell >= 0])))


def other_region(events: Events, rng: random.Random) -> Events:
    """An access moved to where another of the same tensor is, or one that ends earlier or later."""
    k = _some(events, rng, READ, WRITE)
    if k is None:
        return events
    alike = np.flatnonzero((events.tensor == events.tensor[k]) & np.isin(events.op, (READ, WRITE)))
    j = int(rng.choice(alike))
    moved = with_column(events, "hi", k, events.hi[j])
    return with_column(moved, "lo", k, np.minimum(events.lo[rng.choice([j, k])], events.hi[j] - 1))


def other_entry(events: Events, rng: random.Random) -> Events:
    """An access of another entry that lies in the same buffer."""
    turns = np.flatnonzero(events.entry >= 0)
    if not len(turns):
        return events
    k = int(rng.choice(turns))
    buffers = events.program.tensors[events.tensor[k]].buffers or 1
    return with_column(events, "entry", k, (events.entry[k] + buffers) % (2 * buffers))


def last_first(events: Events, rng: random.Random) -> Events:
    """The tiles of a worker in the opposite order."""
    rank, worker = rng.choice(events.workers)
    mine = events.of_worker(rank, worker)
    order = np.arange(len(events))
    key = np.stack([events.role[mine], -events.tile[mine]], axis=1)
    order[mine] = mine[np.lexsort((np.arange(len(mine)), key[:, 1], key[:, 0]))]
    return taken(events, order)


def roles_reversed(events: Events, rng: random.Random) -> Events:
    """The roles that share a worker in the opposite order."""
    return taken(events, np.lexsort((np.arange(len(events)), -events.role, events.worker, events.rank)))


DAMAGES: tuple[Damage, ...] = (
    drop, drop_tile, swap, swap, repeat, other_rank, other_cell, other_region, other_entry, last_first,
    roles_reversed,
)  # fmt: skip


Row = tuple[int, int, int, dict[str, int]]
"""Rank, worker, what it does, and where: `home`, `cell`, or `lo` and `hi` along the first dimension."""


def rows_of(like: Events, rows: list[Row]) -> Events:
    """Events of a buffer of another run's program: each worker does its rows in their order."""
    rows = sorted(rows, key=lambda row: row[:2])
    made = taken(like, np.zeros(len(rows), int))
    columns = {name: np.array([row[k] for row in rows], int) for k, name in enumerate(("rank", "worker", "op"))}
    columns |= {name: np.array([row[3].get(name, 0) for row in rows], int) for name in ("cell", "home")}
    buffer = next(k for k, t in enumerate(like.program.tensors) if t.kind == "buffer")
    columns |= {"tensor": np.full(len(rows), buffer), "tile": np.arange(len(rows))}
    columns["lo"], columns["hi"] = made.lo * 0, made.lo * 0 + 1
    for k, row in enumerate(rows):
        columns["lo"][k, 0], columns["hi"][k, 0] = row[3].get("lo", 0), row[3].get("hi", 1)
    return recounted(replace(made, **columns))


def tangled(like: Events, rng: random.Random) -> Events:
    """Random accesses of a few workers to a buffer; chains of signals order most of them, and some are lost."""
    workers = [(r, w) for r in range(like.sizes.world) for w in range(2)]
    rows: list[Row] = []
    touched: dict[int, list[tuple[int, int]]] = {}
    cells = 0

    def tell(sender: int, receiver: int) -> None:
        nonlocal cells
        rows.append((*workers[sender], NOTIFY, {"home": workers[receiver][0], "cell": cells}))
        rows.append((*workers[receiver], WAIT, {"cell": cells}))
        cells += 1

    for _ in range(rng.randrange(3, 9)):
        worker, place = rng.randrange(len(workers)), rng.randrange(2)
        op = WRITE if place not in touched else rng.choice([READ, WRITE])
        for other, before in touched.get(place, []):
            if other != worker and (op == WRITE or before == WRITE) and rng.random() < 0.97:
                between = rng.randrange(len(workers))
                for a, b in ((other, between), (between, worker)):
                    if a != b:
                        tell(a, b)
        other = rng.randrange(len(workers))
        if other != worker:  # of which nothing depends
            tell(other, worker)
        rows.append((*workers[worker], op, {"lo": 16 * place, "hi": 16 * min(place + 1 + rng.randrange(2), 3)}))
        touched[place] = [*([] if op == WRITE else touched.get(place, [])), (worker, op)]
    return rows_of(like, [row for row in rows if rng.random() < 0.97])


def damaged(events: Events, rng: random.Random) -> Events:
    """Events with none to three damages; then every wait is counted anew, or not."""
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        events = rng.choice(DAMAGES)(events, rng)
    return recounted(events) if rng.random() < 0.6 else events
