"""Critical paths and idle time of timelines by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.analysis.timelines import GATHERED, of, span
from tilelink.analysis.paths import critical_path, idle


def test_a_path_goes_from_the_end_by_what_was_waited_for() -> None:
    path = critical_path(GATHERED)
    assert [(link.kind, link.rank, link.role, link.start, link.stop, link.tiles) for link in path] == [
        ("tiles", 1, "gather", 0, 9, 2), ("signal", 0, "matmul", 9, 10, 0), ("tiles", 0, "matmul", 10, 15, 1),
    ]  # fmt: skip
    assert path[0].label == "gather 4" and path[-1].duration == 5


def test_a_wait_that_took_no_time_is_not_on_the_path() -> None:
    path = critical_path(
        of(
            span(0, 0, "matmul", 0, 4), span(0, 0, "matmul", 4, 8), span(0, 0, "matmul", 4, 4, "wait", 3),
            span(1, 0, "gather", 0, 1),
        )
    )  # fmt: skip
    assert [(link.role, link.tiles) for link in path] == [("matmul", 2)]


def test_a_tile_that_notifies_and_goes_on_is_on_the_path_up_to_there() -> None:
    """Two tiles wait for each other midway: each hop goes to the part of the peer before it notified."""
    path = critical_path(
        of(
            span(0, 0, "turn", 1, 12), span(1, 0, "turn", 0, 12),
            replace(span(0, 0, "turn", 2, 4, "wait", 1), sent=3.0),
            replace(span(0, 0, "turn", 6, 10, "wait", 1), sent=8.5),
            replace(span(1, 0, "turn", 4, 7, "wait", 0), sent=5.0),
            replace(span(1, 0, "turn", 9, 10, "wait", 0), sent=9.0),
        )
    )  # fmt: skip
    assert [(link.kind, link.rank, link.start, link.stop) for link in path] == [
        ("tiles", 1, 0, 3), ("signal", 0, 3, 4), ("tiles", 0, 4, 5), ("signal", 1, 5, 7), ("tiles", 1, 7, 8.5),
        ("signal", 0, 8.5, 10), ("tiles", 0, 10, 12),
    ]  # fmt: skip


def test_waits_for_each_other_that_end_at_once_do_not_go_round_for_ever() -> None:
    """Measured timelines know which tile notified, and not when."""
    path = critical_path(
        of(
            span(0, 0, "turn", 0, 9), span(1, 0, "turn", 0, 9),
            span(0, 0, "turn", 2, 5, "wait", 1), span(1, 0, "turn", 2, 5, "wait", 0),
        )
    )  # fmt: skip
    assert path[0].start == 0 and path[-1].stop == 9
    assert all(after.start == before.stop for before, after in pairwise(path))


def test_nothing_has_no_path() -> None:
    assert critical_path(of()) == ()
    assert idle(of()) == {}


def test_idle_time_by_cause_is_the_mean_over_workers() -> None:
    assert idle(GATHERED) == pytest.approx(
        {
            "waiting for gather of another rank": (3 + 3) / 3, "before the first tile": (1 + 2) / 3,
            "after the last tile": (6 + 0 + 1) / 3,
        }
    )  # fmt: skip
    within = idle(GATHERED, workers=4, between=(-1, 16))
    assert within["no tile at all"] == pytest.approx(17 / 4)
    assert within["before the first tile"] == pytest.approx((1 + 2 + 3) / 4)
    assert "gather" not in " ".join(idle(of(span(0, 0, "gather", 0, 1)), leave_out=["gather"]))


def test_waits_of_unknown_end_and_of_the_own_rank() -> None:
    tiles = span(0, 0, "a", 0, 4), span(0, 1, "b", 0, 4)
    found = idle(of(*tiles, span(0, 0, "a", 0, 1, "wait"), span(0, 0, "a", 1, 3, "wait", 1)))
    assert found == pytest.approx({"waiting for b": 1.0, "waiting": 0.5})
