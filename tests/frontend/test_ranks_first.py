"""tk.ranks_first: over the rows of a route all experts of one rank come before those of the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilelink as tk
from tests.kernels.routed import Routed, in_tiles, random_counts, run_and_check
from tests.parameters import each_once, first_of
from tilelink.analysis.events import WRITE
from tilelink.errors import ScheduleError
from tilelink.frontend.orders import Order
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.kernels.mixture_of_experts import mixture_of_experts
from tilelink.programs.schedule_text import read_schedule

TILE, N = 16, 32
ORDERS = (tk.own_rank_first, tk.next_rank_first, tk.ring)


def by_rank(order: Order = tk.own_rank_first, group: int = 1) -> tk.Schedule:
    ranks = tk.ranks_first(order)
    changes = {"dispatch": {"order": ranks}, "matmul": {"order": tk.grouped(group, ranks) if group > 1 else ranks}}
    return in_tiles(dispatch_matmul, "push", TILE).changed(**changes)


def walked(schedule: tk.Schedule, counts: Any, tensor: str, rank: int) -> list[tuple[int, int]]:
    """(row, column) where the tiles begin that a rank stores to a tensor, in the order in which it walks them."""
    world = len(counts[0])
    sizes: dict[str, Any] = {"tokens": 8, "K": 16, "N": N, "experts": len(counts) // world, "routed": counts}
    events = dispatch_matmul.unroll(schedule, world=world, **sizes)
    number = [t.name for t in events.program.tensors].index(tensor)
    mine = np.flatnonzero((events.op == WRITE) & (events.tensor == number) & (events.rank == rank))
    mine = mine[np.argsort(events.tile[mine], kind="stable")]
    return [(int(lo), int(at)) for lo, at in events.lo[mine, :2]]


def complete(counts: Any, rank: int, order: Order) -> list[tuple[int, int]]:
    """The step of the order, and the expert, with which the rows of each tile of a rank are complete, by row."""
    world, each = len(counts[0]), len(counts) // len(counts[0])
    mine = np.array(counts)[rank * each : (rank + 1) * each]
    steps = {order.parts(step, rank, world): step for step in range(world)}
    found, begin = [], int(np.array(counts)[: rank * each].sum())
    for expert, of_sources in enumerate(mine):
        sources = np.repeat(np.arange(world), of_sources)
        for lo in range(0, len(sources), TILE):
            some = sources[lo : lo + TILE]
            found.append((begin + lo, expert, max(steps[s] for s in set(some.tolist()))))
        begin += len(sources)
    return [(lo, step) for lo, _, step in found]


@pytest.mark.parametrize("seed", range(4))
def test_a_tile_is_walked_when_its_rows_are_complete(seed: int) -> None:
    """Where a source has a tile of rows or more of each expert: then a tile has rows of two sources at most."""
    counts = (np.array(random_counts(3, 2, seed, empty=0)) + TILE).tolist()
    for rank in range(3):
        step_of = dict(complete(counts, rank, tk.own_rank_first))
        steps = [step_of[lo] for lo, _ in walked(by_rank(), counts, "out", rank)]
        assert steps == sorted(steps)


@each_once("order, group", ORDERS, [1, 2])
def test_each_tile_is_walked_once_whatever_the_routing(order: Order, group: int) -> None:
    usual = in_tiles(dispatch_matmul, "push", TILE)
    for seed in range(6):
        counts = random_counts(3, 3, seed, most=(1, 5, 40, 90)[seed % 4], empty=(0.1, 0.5, 0.9)[seed % 3])
        for rank in range(3):
            found = walked(by_rank(order, group), counts, "out", rank)
            assert sorted(found) == sorted(walked(usual, counts, "out", rank))


def test_rows_of_all_experts_of_a_rank_are_sent_before_those_of_the_next() -> None:
    counts = random_counts(3, 2, seed=5, empty=0)
    begins = np.cumsum([0, *np.array(counts).sum(1).reshape(3, 2).sum(1)])
    for rank in range(3):
        rows = [lo for lo, _ in walked(by_rank(tk.ring), counts, "rows", rank)]
        homes = [int(np.searchsorted(begins, lo, "right")) - 1 for lo in rows]
        assert list(dict.fromkeys(homes)) == [(rank - step) % 3 for step in range(3)]


@pytest.mark.parametrize("world", first_of([2, 3, 1]))
def test_results_are_the_same(world: int) -> None:
    form: tuple[Any, Any] = dispatch_matmul, by_rank(group=2)
    calls = [Routed(form, random_counts(world, 2, seed, 20), K=16, N=N, integers=True, seed=seed) for seed in (1, 2)]
    run_and_check(*calls, Routed(form, [[0] * world] * 2 * world, K=16, N=N, integers=True))
    sizes: dict[str, Any] = {"tokens": 8, "K": 16, "N": N, "experts": 2, "routed": random_counts(2, 2, 1)}
    report = dispatch_matmul.check(form[1], world=2, **sizes)
    assert (report.verdict, report.proof) == ("safe", "structural")


def test_it_is_for_tiles_of_rows_and_takes_no_turns() -> None:
    sizes: dict[str, Any] = {"tokens": 8, "K": 512, "N": 512, "experts": 2, "routed": random_counts(2, 2, 1)}
    ranks = {"order": tk.ranks_first()}
    with pytest.raises(ScheduleError, match=r"order=ranks_first\(own_rank_first\) goes through the tiles of an expert"):
        dispatch_matmul.check(by_rank().changed(matmul={"tile": (None, 16, 16)}), world=2, **sizes)
    waves = mixture_of_experts.schedule("push").changed(gate_up=ranks, down=ranks)
    with pytest.raises(ScheduleError, match=r"its order ranks_first\(own_rank_first\) does not go expert by expert"):
        mixture_of_experts.check(waves, world=2, top=2, **sizes)


def test_it_is_read_and_written_as_text() -> None:
    read = read_schedule(dispatch_matmul, "push,matmul.by_rank=1,matmul.group=4")
    order = read.changed(dispatch_matmul.schedule("push"))["matmul"].order  # type: ignore[union-attr]
    assert order == tk.grouped(4, tk.ranks_first()) and str(order) == "grouped(4, ranks_first(own_rank_first))"
    assert "matmul.by_rank=1" in str(read) and read_schedule(dispatch_matmul, str(read)) == read
    assert str(tk.columns_first(2, tk.ranks_first(tk.ring))) == "columns_first(2, ranks_first(ring))"
