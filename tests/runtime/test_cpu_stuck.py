"""Deadlocks on the CPU, in the words of the program: who waits for what, and who never began."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import tilelink as tk
from tests.kernels.gather_gemm import small_world
from tests.programs.exchanges import own_workers, readers_first, shared_workers
from tests.programs.gathered import gather, take
from tests.programs.lines import line_of
from tests.runtime.small_worlds import K, check_usable, gathered
from tilelink.errors import StuckError, UnsafeProgramError, shown
from tilelink.runtime.group import Group

WAIT, NOTIFY = line_of(take, "tk.wait("), line_of(gather, "tk.notify(")


def gather_readers_first(schedule: tk.Schedule, calls: int = 1, **options: Any) -> list[torch.Tensor]:
    """The results of the last call. Whatever happens, the world can be used again."""

    def rank(group: Group) -> torch.Tensor:
        x = torch.full((8, K), float(group.rank))
        return [readers_first(x, schedule=schedule, group=group) for _ in range(calls)][-1]

    world = small_world(2, **options)
    try:
        return world.run(rank)
    finally:
        assert all(torch.equal(out, torch.ones(8, K)) for out in world.run(gathered))


def test_enough_workers_are_not_stuck() -> None:
    for options in ({}, {"sms": 2}, {"resident": 2}, {"sms": 2, "resident": 2}):
        for out in gather_readers_first(own_workers, calls=2, **options):
            assert (out[:8] == 0).all() and (out[8:] == 1).all()


def test_unsafe_programs_are_not_launched() -> None:
    """The check says so before the first launch, on every rank, with the lines."""
    for _ in range(2):
        with pytest.raises(UnsafeProgramError, match="deadlock: 2 workers wait for ever") as e:
            gather_readers_first(shared_workers, sms=1)
        assert e.value.site is not None and e.value.site.line in (WAIT, NOTIFY)
        assert f"{shown(take.file)}:{WAIT}: tk.wait(full[t])" in str(e.value)


def stuck(schedule: tk.Schedule, **options: Any) -> list[str]:
    """The lines of the message, by rank."""
    with pytest.raises(StuckError) as e:
        gather_readers_first(schedule, **options)
    head, *lines = str(e.value).splitlines()
    assert head == "no rank can go on:"
    return sorted(lines)


def waiting(rank: int) -> str:
    """How a rank waits for its first rows."""
    return (
        f"  rank {rank} worker 0 of readers_first run 0: role take, tile 0, waits for "
        f"full[M[{8 * rank}:{8 * rank + 8}], K[0:16]] of rank {rank} (signal {rank}): expected 1, observed 0 "
        f"({shown(take.file)}:{WAIT}: tk.wait(full[t]))"
    )


@pytest.mark.usefixtures("unchecked")
def test_worker_that_takes_before_it_gives() -> None:
    assert stuck(shared_workers, sms=1) == [waiting(0), waiting(1)]


def test_workers_that_can_not_all_be_resident() -> None:
    never = "of readers_first run 0: never started, because no more workers may be resident (of role gather)"
    assert stuck(own_workers, resident=1) == [
        waiting(0),
        f"  rank 0 worker 1 {never}",
        waiting(1),
        f"  rank 1 worker 1 {never}",
    ]


@pytest.mark.usefixtures("unchecked")
def test_call_behind_one_that_is_stuck() -> None:
    never = "of readers_first run 1: never started, because a launch before it is not done"
    assert stuck(shared_workers, sms=1, calls=2) == [
        waiting(0),
        f"  rank 0 worker 0 {never}",
        waiting(1),
        f"  rank 1 worker 0 {never}",
    ]


def test_a_rank_that_does_not_call_is_waited_for() -> None:
    world = small_world(2)
    with pytest.raises(StuckError) as e:
        world.run(lambda group: gathered(group) if group.rank else None)
    waits = r"rank 1 worker \d+ of all_gather run 0: waits for rank 0 to go on, which has not entered any run"
    assert re.search(waits, str(e.value))
    assert str(e.value).endswith("1 call was made by rank 1; rank 0 made 0: the ranks of a group make the same calls")
    check_usable(world)
