"""Signals that are derived: between whom, how fine, and how often each is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilelink as tk
from tests.programs.ring_attention import ring_attention
from tilelink.frontend.arithmetic import evaluate
from tilelink.frontend.ir import Cell, TileProgram
from tilelink.frontend.sizes import Sizes
from tilelink.kernels.all_gather_matmul import all_gather_matmul, pull, push
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.kernels.matmul_reduce_scatter import push as scatter

IN_TILES = push.changed(gather={"tile": (128, 256), "own": "copied"})


@pytest.mark.parametrize(("schedule", "scope"), [(push, "sys"), (pull, "gpu")], ids=["push", "pull"])
def test_scope(schedule: tk.Schedule, scope: str) -> None:
    """Signals that only their own rank gives need not be seen by others."""
    (signals,) = all_gather_matmul.bind(schedule).signals
    assert signals.tensor == "full" and signals.scope == scope


@pytest.mark.parametrize(("at", "partial", "inbox"), [("source", "gpu", "sys"), ("home", "sys", "gpu")])
def test_scope_of_each_tensor(at: str, partial: str, inbox: str) -> None:
    """Who sends decides between whom partial sums are handed on, and between whom what was sent is."""
    bound = matmul_reduce_scatter.bind(scatter.changed(send={"at": at}))
    assert bound.signals_of("partial").scope == partial
    assert bound.signals_of("inbox").scope == inbox


def test_grid_is_coarse_where_waits_cover_a_dimension() -> None:
    """matmul waits for whole rows, so tiles of gather along K share a signal."""
    (signals,) = all_gather_matmul.bind(push).signals
    assert signals.grid == (Cell("M", 128, True, False), Cell("K", None, False, False))
    (notifier,) = signals.notifiers
    assert notifier.role == "gather" and notifier.tiles == (128, 2048)


def test_grid_is_fine_where_waits_are() -> None:
    """send waits for a tile, reduce for a smaller one: cells are the tiles that notify."""
    bound = matmul_reduce_scatter.bind(scatter)
    assert [c.size for c in bound.signals_of("partial").grid] == [128, 256]
    assert [c.size for c in bound.signals_of("inbox").grid] == [1, 128, 512]
    assert [c.local for c in bound.signals_of("inbox").grid] == [False, True, False]


def test_grid_of_the_schedule() -> None:
    bound = all_gather_matmul.bind(tk.Schedule(cells={"full": (256, 4096)}, **push.roles))
    assert [c.size for c in bound.signals_of("full").grid] == [256, 4096]


def expected_counts(bound: TileProgram, world: int, **sizes: Any) -> np.ndarray:
    from tilelink.analysis.counting import expected_counts as counts

    (signals,) = bound.signals
    return counts(signals, Sizes.of(bound, world, sizes))


def test_thresholds() -> None:
    """A cell of 128 whole rows is full when all tiles along K have come: 3 of 256 for 600 columns."""
    counts = expected_counts(all_gather_matmul.bind(IN_TILES), 2, M=512, N=256, K=600)
    assert (counts == 3).all() and counts.shape == (2, 4)


def test_thresholds_of_uneven_parts() -> None:
    """Each part has cells for the longest one; those that a shorter part lacks are never given."""
    counts = expected_counts(all_gather_matmul.bind(IN_TILES), 3, M=(200, 0, 90), N=256, K=256)
    assert counts.tolist() == [[1, 1, 0, 0, 1, 0]] * 3


def test_sums_over_ranks_and_steps_are_evaluated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often entries are released depends on two ranks; what that takes does not grow with the world."""
    from tilelink.analysis import counting

    asked: list[Any] = []
    monkeypatch.setattr(counting, "evaluate", lambda e, values: asked.append(e) or evaluate(e, values))
    ring = tk.SMs(2, tile=(16, 16))
    bound = ring_attention.bind(tk.Schedule(pass_on=ring, attend=tk.SMs(2, tile=(16, 16, 16))))
    took = []
    for world in (4, 24):
        sizes = Sizes.of(bound, world, {"Q": 32, "T": 16, "D": 16})
        counts = counting.expected_counts(bound.signals_of("ring"), sizes)
        assert counts.tolist() == [[1] * world] * world
        took.append(len(asked))
        asked.clear()
    assert took[0] == took[1] < 40
