"""The explorer on hand-written kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink as tk
from tests.programs.exchanging import push, take
from tests.programs.kernels import last_wins, wait_for_one
from tilelink.tools.explore import Subject, explore, of_world


def exchange(**changes: Any) -> Subject:
    """Every rank puts 32 numbers in its right neighbour's inbox, by two programs."""

    def make(**schedule: Any) -> Any:
        world = tk.KernelWorld(2, **schedule)
        inbox, ready = world.symmetric("inbox", (32,)), world.signals("ready")
        x = torch.arange(64.0).view(2, 32)

        def on_rank(rank: Any) -> torch.Tensor:
            r, out = rank.rank, torch.empty(32)
            rank.launch(push, 2, x[r], inbox.table, ready.table, r, WORLD=2, N=16, NOTIFY=changes.get("notify", True))
            rank.launch(take, 2, inbox[r], ready[r], out, changes.get("expected", 2), N=16, stream="other")
            return out

        return world, on_rank

    return of_world(make, changes.get("resident"))


@pytest.mark.parametrize("policy", ["random", "pct"])
def test_hand_written_kernels_that_are_right(policy: str) -> None:
    explored = explore(exchange(), range(6), policy)
    assert not explored.findings and explored.distinct > 4


@pytest.mark.parametrize("policy", ["random", "pct"])
def test_a_wait_for_one_too_few(policy: str) -> None:
    explored = explore(exchange(expected=1), range(20), policy)
    (race,) = (f for f in explored.found if f.finding.kind == "race")
    assert any("tl.store(there + at" in line for line in race.finding.lines)
    assert explore(exchange(expected=1), [race.seed], policy).found[0] == race


def test_a_signal_that_never_comes() -> None:
    (found,) = explore(exchange(notify=False), range(2)).findings
    assert found.kind == "deadlock" and "while tl.atomic_add(signal, 0" in found.lines[0]


def test_results_that_depend_on_the_schedule_are_told_where_nothing_races() -> None:
    def make(**schedule: Any) -> Any:
        world = tk.KernelWorld(1, **schedule)

        def on_rank(rank: Any) -> torch.Tensor:
            word = torch.zeros(1, dtype=torch.int32)
            rank.launch(last_wins, 2, word)
            return word

        return world, on_rank

    (found,) = explore(of_world(make), range(10)).findings
    assert found.kind == "unequal results"
    assert found.what == "rank 0[0]: it is 0, and 1 in the first schedule"


def grid_of_four(resident: int | None) -> Subject:
    def make(**schedule: Any) -> Any:
        world = tk.KernelWorld(1, **schedule)

        def on_rank(rank: Any) -> torch.Tensor:
            flag = torch.zeros(1, dtype=torch.int32)
            rank.launch(wait_for_one, 4, flag, 0)
            return flag

        return world, on_rank

    return of_world(make, resident)


def test_a_grid_that_is_not_resident_gets_stuck() -> None:
    assert not explore(grid_of_four(None), range(3)).findings
    assert not explore(grid_of_four(4), range(3)).findings
    (found,) = explore(grid_of_four(3), range(3)).findings
    assert found.kind == "deadlock" and "never started" in found.what
