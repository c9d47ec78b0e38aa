"""Events: those of small programs by hand; for random sizes, that signals are given as often as they are waited for,
that every result is written once, and that a loop taken together reads what it reads step by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

import tilelink as tk
from tests.analysis.runs import (
    ATTENTION,
    RESULTS,
    RING,
    SIGNALS,
    Run,
    copying,
    runs,
    small,
)
from tests.parameters import random_tries
from tests.programs.attention import gathered_attention
from tests.programs.gathered import hierarchical_matmul
from tests.programs.reducing import ring_reduce_scatter
from tilelink.analysis.counting import expected_counts
from tilelink.analysis.events import DOT, NOTIFY, OPS, READ, WAIT, WRITE, Events
from tilelink.frontend.expressions import parts_of
from tilelink.kernels.all_gather_matmul import all_gather_matmul

Column = np.ndarray


def pairs(a: Column, b: Column) -> list[tuple[int, int]]:
    return list(zip(a.tolist(), b.tolist(), strict=True))


def boxes(events: Events, k: Column) -> list[tuple[slice, ...]]:
    """The regions of events, as indices of an array of their tensor."""
    return [tuple(slice(a, b) for a, b in zip(events.lo[j], events.hi[j], strict=True)) for j in k]


def zeros(events: Events, tensor: int) -> Column:
    """An array of a tensor over all ranks, with ones for dimensions that other tensors have."""
    values = {**events.sizes.values, "ranks": events.sizes.world}
    dims = [values[d] for d in events.program.tensors[tensor].dims]
    return np.zeros((*dims, *[1] * (events.lo.shape[1] - len(dims))), int)


def nbytes(events: Events) -> int:
    return sum(getattr(events, column).nbytes for column in Events.COLUMNS)


# ---- by hand


def test_events_of_a_push() -> None:
    """Two ranks with 16 rows each: one tile to gather for each reader, one to multiply for each home."""
    schedule = all_gather_matmul.schedule("push")
    gather = {"tile": (16, 32), "count": 1, "own": "copied"}
    schedule = schedule.changed(gather=gather, matmul={"tile": (16, 16, 16)})
    events = all_gather_matmul.unroll(schedule, world=2, M=32, N=16, K=32, dtypes="float16")
    mine = [events.describe(k) for k in range(len(events)) if events.rank[k] == 1]
    assert mine == [
        "rank 1 worker 0 gather tile 0: read x[M[16:32], K[0:32]] at rank 1, 1024 bytes",
        "rank 1 worker 0 gather tile 0: write full[M[16:32], K[0:32]] at rank 1, 1024 bytes",
        "rank 1 worker 0 gather tile 0: notify rank 1 of full[M[16:32], K[0:32]], cell 1",
        "rank 1 worker 0 gather tile 1: read x[M[16:32], K[0:32]] at rank 1, 1024 bytes",
        "rank 1 worker 0 gather tile 1: write full[M[16:32], K[0:32]] at rank 0, 1024 bytes",
        "rank 1 worker 0 gather tile 1: notify rank 0 of full[M[16:32], K[0:32]], cell 1",
        "rank 1 worker 1 matmul tile 0: wait full[M[16:32], K[0:32]] at rank 1, cell 1 until 1",
        "rank 1 worker 1 matmul tile 0: read full[M[16:32], K[0:32]] at rank 1, 1024 bytes",
        "rank 1 worker 1 matmul tile 0: read weight[K[0:32], N[0:16]] at rank 1, 1024 bytes",
        "rank 1 worker 1 matmul tile 0: dot 16384 operations",
        "rank 1 worker 1 matmul tile 0: write out[M[16:32], N[0:16]] at rank 1, 512 bytes",
        "rank 1 worker 2 matmul tile 1: wait full[M[0:16], K[0:32]] at rank 1, cell 0 until 1",
        "rank 1 worker 2 matmul tile 1: read full[M[0:16], K[0:32]] at rank 1, 1024 bytes",
        "rank 1 worker 2 matmul tile 1: read weight[K[0:32], N[0:16]] at rank 1, 1024 bytes",
        "rank 1 worker 2 matmul tile 1: dot 16384 operations",
        "rank 1 worker 2 matmul tile 1: write out[M[0:16], N[0:16]] at rank 1, 512 bytes",
    ]
    assert events.text().splitlines()[-len(mine) :] == mine
    assert events.workers == [(r, w) for r in range(2) for w in range(3)]
    assert [OPS[op] for op in events.op[events.of_worker(1, 2)]] == ["wait", "read", "read", "dot", "write"]
    assert len(events.of_worker(1, 3)) == 0
    assert len({s.line for s in events.sites}) == 4  # copy and notify stand on one line
    assert {Path(s.file).name for s in events.sites} == {"all_gather_matmul.py", "tiles.py"}


def test_events_of_a_pull() -> None:
    """The reader reads the memory of the home, and its signals stay with it."""
    schedule = all_gather_matmul.schedule("pull")
    schedule = schedule.changed(gather={"tile": (16, 32), "own": "copied"}, matmul={"tile": (16, 16, 16)})
    events = all_gather_matmul.unroll(schedule, world=3, M=48, N=16, K=32)
    reads = (events.op == READ) & (events.role == 0)
    assert sorted(pairs(events.rank[reads], events.home[reads])) == [(r, h) for r in range(3) for h in range(3)]
    notifies = events.op == NOTIFY
    assert notifies.any() and (events.home[notifies] == events.rank[notifies]).all()


def test_waits_in_a_ring() -> None:
    """A rank adds to the tiles of rank h what the rank before it sent, unless it is the first after h."""
    events = ring_reduce_scatter.unroll(RING, world=3, M=48, N=32, K=32)
    passed = events.tensor == [t.name for t in events.program.tensors].index("passed")
    sent = passed & (events.op == NOTIFY)
    assert set(pairs(events.rank[sent], events.home[sent])) == {(r, (r + 1) % 3) for r in range(3)}
    waits = passed & (events.op == WAIT)
    homes = np.searchsorted(events.sizes.values[parts_of("M")], events.lo[waits, 0], side="right") - 1
    assert set(pairs(events.rank[waits], homes)) == {(r, h) for r in range(3) for h in range(3) if r != (h + 1) % 3}


def test_causal_gather() -> None:
    """Only later ranks get the keys of a rank, and a tile waits for no key after its rows."""
    events = gathered_attention.unroll(ATTENTION, world=3, S=[20, 0, 33], D=16)
    sent = (events.op == WRITE) & (events.role == 0)
    assert set(pairs(events.rank[sent], events.home[sent])) == {(0, 0), (0, 1), (0, 2), (2, 2)}
    waits = np.flatnonzero(events.op == WAIT)
    assert len(waits)
    for k in waits:
        store = next(j for j in range(k, len(events)) if events.op[j] == WRITE)
        assert events.tile[k] == events.tile[store] and events.hi[k, 0] <= events.hi[store, 0]


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("parts", [(16, 40, 0, 1), (5, 5, 5, 5)])
def test_signals_of_another_ranks_memory(world: int, parts: tuple[int, ...]) -> None:
    """A relay is waited for by its node: signals go to who waits, not to where the region lies."""
    schedule = tk.Schedule(across=copying("home"), inside=copying("reader", (16, 32)), matmul=tk.SMs(tile=(16, 16, 32)))
    sizes = {"M": [*parts, *parts][:world], "N": 32, "K": 40}
    events = hierarchical_matmul.unroll(schedule, world=world, **sizes)
    check_signals(events)
    waits = events.op == WAIT
    assert (events.home[waits] != events.rank[waits]).any()


# ---- random


def check_signals(events: Events) -> None:
    """Every signal is given exactly as often as it is waited for, and as was derived."""
    notifies = events.op == NOTIFY
    for signals in events.program.signals:
        tensor = events.tensor == [t.name for t in events.program.tensors].index(signals.tensor)
        derived = expected_counts(signals, events.sizes)
        counted = np.zeros_like(derived)
        np.add.at(counted, (events.home[notifies & tensor], events.cell[notifies & tensor]), 1)
        assert (counted == derived).all(), signals.tensor
        waits = tensor & (events.op == WAIT)
        assert (events.expected[waits] == counted[events.rank[waits], events.cell[waits]]).all(), signals.tensor


@random_tries(20, 250, runs(RESULTS + SIGNALS))
def test_signals_are_given_as_often_as_derived(run: Run) -> None:
    """Those of notifications under conditions and in loops included."""
    check_signals(run.unroll())


@random_tries(20, 80, runs(RESULTS))
def test_results_are_written_once(run: Run) -> None:
    """Each element of an output by a rank that has it; and what is written is what is counted in bytes."""
    events = run.unroll()
    for index, tensor in enumerate(events.program.tensors):
        if tensor.kind != "output":
            continue
        writes = np.flatnonzero((events.op == WRITE) & (events.tensor == index))
        assert (events.home[writes] == events.rank[writes]).all()
        counts = zeros(events, index)
        for box in boxes(events, writes):
            counts[box] += 1
        assert (counts == (events.sizes.world if tensor.sharded is None else 1)).all()
        assert events.amount[writes].sum() == 4 * counts.sum()


@random_tries(20, 80, runs(RESULTS))
def test_waits_cover_what_is_read_of_buffers(run: Run) -> None:
    """What a tile reads of a buffer lies in what it waited for before, in the same memory."""
    events = run.unroll()
    buffers = [k for k, t in enumerate(events.program.tensors) if t.kind == "buffer"]
    waited: dict[tuple[int, ...], list[int]] = {}
    for k in range(len(events)):
        key = tuple(int(c[k]) for c in (events.rank, events.role, events.tile, events.tensor, events.home))
        if events.op[k] == WAIT:
            waited.setdefault(key, []).append(k)
        if events.op[k] == READ and events.tensor[k] in buffers:
            lo, hi = events.lo[k], events.hi[k]
            assert any((events.lo[w] <= lo).all() and (hi <= events.hi[w]).all() for w in waited.get(key, ())), (
                events.describe(k)
            )


def reads_of(events: Events) -> dict[tuple[int, ...], Column]:
    """How often each element is read, by rank, role, tile, tensor, home and line."""
    found: dict[tuple[int, ...], Column] = {}
    reads = np.flatnonzero(events.op == READ)
    for k, box in zip(reads, boxes(events, reads), strict=True):
        columns = (events.rank, events.role, events.tile, events.tensor, events.home)
        key = (*(int(c[k]) for c in columns), events.sites[events.site[k]].line)
        if key not in found:
            found[key] = zeros(events, int(events.tensor[k]))
        found[key][box] += 1
    return found


@random_tries(10, 60, runs(RESULTS))
def test_loops_taken_together_read_what_their_steps_read(run: Run) -> None:
    together, steps = run.unroll(), run.unroll(summarise=False)
    for op in (WRITE, NOTIFY, WAIT):
        for column in ("rank", "worker", "tile", "tensor", "home", "lo", "hi", "cell", "expected", "amount"):
            a, b = (getattr(e, column)[e.op == op] for e in (together, steps))
            assert a.shape == b.shape and (a == b).all(), (OPS[op], column)
    a, b = reads_of(together), reads_of(steps)
    assert a.keys() == b.keys()
    assert all((a[key] == b[key]).all() for key in a)
    for op in (READ, DOT):
        assert together.amount[together.op == op].sum() == steps.amount[steps.op == op].sum()
    assert len(together) <= len(steps)


@random_tries(20, 60, runs(RESULTS), st.integers(12, 200))
def test_tiles_are_dealt_to_the_workers_of_their_role(run: Run, sms: int) -> None:
    """One after the other, each to one worker; nobody has more workers than tiles, and all are on the device."""
    events = run.unroll(sms=sms)
    for index, role in enumerate(events.program.roles):
        a = events.allotment[role.name]
        mine = events.role == index
        assert (events.worker[mine] == a.first + events.tile[mine] % a.workers).all()
        assert a.first + a.workers <= sms
        assert role.resource.count is None or a.workers <= min(role.resource.count, max(1, a.tiles))
    for rank, worker in events.workers:
        k = events.of_worker(rank, worker)
        assert (events.rank[k] == rank).all() and (events.worker[k] == worker).all()
        assert (np.diff(events.role[k].astype(np.int64) << 32 | events.tile[k]) >= 0).all()


# ---- nothing to do, and much


@pytest.mark.parametrize("name", ["push", "pull"])
@pytest.mark.parametrize("tile", [(16, 16), (16, None)], ids=str)
@pytest.mark.parametrize("empty", ["M", "N", "K", "MNK"])
def test_empty_dimensions(name: str, tile: tuple[int | None, ...], empty: str) -> None:
    """What is not there is neither read nor waited for; a result of nothing is still written."""
    sizes = {d: 0 if d in empty else 40 for d in "MNK"}
    events = all_gather_matmul.unroll(small(name, tile).changed(matmul={"tile": (16, 16, 16)}), world=3, **sizes)
    check_signals(events)
    writes = (events.op == WRITE) & (events.tensor == 2)
    assert events.amount[writes].sum() == 3 * 4 * sizes["M"] * sizes["N"]
    assert (events.amount[(events.op == READ) | (events.op == WRITE)] > 0).all()
    if "M" in empty:
        assert len(events) == 0 and events.workers == [] and events.text() == ""


SPINE = dict(world=8, M=8192, N=3584, K=8192)
"""A projection of 8192 tokens on eight ranks: what the cost of unrolling is named for."""


def test_spine_is_small() -> None:
    events = all_gather_matmul.unroll("push,gather.own=copied", **SPINE)
    gathered = 8 * (8192 // 128) * (8192 // 2048)  # tiles, for each reader
    multiplied = 8 * (8192 // 128) * (3584 // 256)
    assert len(events) == 3 * gathered + 5 * multiplied
    assert nbytes(events) < 200e6
    assert events.amount[events.op == DOT].sum() == 8 * 2.0 * 8192 * 3584 * 8192
    assert (events.expected[events.op == WAIT] == 8192 // 2048).all()


@pytest.mark.parametrize("dim", ["M", "N"])
def test_events_grow_as_tiles_do(dim: str) -> None:
    copying = "pull,gather.own=copied"
    once, twice = (all_gather_matmul.unroll(copying, **{**SPINE, dim: f * SPINE[dim]}) for f in (1, 2))
    for index, (role, of_a_tile) in enumerate((("gather", 3), ("matmul", 5))):
        for events in (once, twice):
            assert (events.role == index).sum() == 8 * of_a_tile * events.allotment[role].tiles
    assert once.allotment["matmul"].tiles * 2 == twice.allotment["matmul"].tiles
    assert nbytes(twice) <= 2 * nbytes(once)
