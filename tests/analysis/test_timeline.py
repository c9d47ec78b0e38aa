"""Timelines: what they say, and what can not be."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from tests.analysis.timelines import TILE, WAIT, of
from tilelink.analysis.timeline import PREDICTED, Span, Timeline


class TestTimeline:
    def test_says_what_is_in_it(self) -> None:
        gather = Span(1, 7, "gather", "tile", "M[0:128]", -2.0, 4.0)
        wait = replace(WAIT, cause=2)
        whole = of(TILE, wait, gather, replace(TILE, start=10.0, stop=11.0), replace(TILE, worker=3))
        assert whole.ranks == (0, 1)
        assert whole.workers(0) == (0, 3)
        assert whole.workers(1) == (7,)
        assert whole.roles == ("gather", "matmul")
        assert whole.makespan == 13
        assert whole.waiting(0, "matmul") == 3
        assert whole.busy(0, "matmul") == 10 - 3 + 1 + 10
        assert whole.busy(1, "matmul") == whole.waiting(1, "gather") == 0
        assert whole.tile_of == {1: 0}

    def test_may_be_empty(self) -> None:
        assert (of().ranks, of().roles, of().makespan) == ((), (), 0)

    def test_is_immutable(self) -> None:
        with pytest.raises(FrozenInstanceError):
            TILE.start = 1.0  # type: ignore[misc]
        with pytest.raises(FrozenInstanceError):
            of(TILE).title = "other"  # type: ignore[misc]

    def test_takes_tiles_that_touch_and_waits_that_are_instants(self) -> None:
        before, after = replace(TILE, role="gather"), replace(TILE, start=10.0, stop=20.0)
        last = replace(WAIT, role="gather", start=10.0, stop=10.0)
        first = replace(WAIT, start=10.0, stop=10.0)
        instant = replace(TILE, start=20.0, stop=20.0)
        assert of(after, before, last, first, instant).tile_of == {2: 1, 3: 0}

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"kind": "pause"}, "'pause'"),
            ({"start": 11.0}, "starts at 11.0, after it stops at 10.0"),
            ({"stop": float("nan")}, "nan"),
            ({"stop": float("inf")}, "inf"),
            ({"rank": -1}, "rank -1"),
            ({"worker": -2}, "worker -2"),
            ({"cause": 0}, "a tile has a cause, 0"),
            ({"sent": 3.0}, "sent 3.0 is the time of a notification"),
        ],
    )
    def test_refuses_spans_that_can_not_be(self, fields: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            replace(TILE, **fields)

    @pytest.mark.parametrize(
        ("spans", "words"),
        [
            ((TILE, replace(WAIT, cause=2)), "cause 2 is none of the 2 spans"),
            ((TILE, replace(WAIT, cause=-1)), "cause -1 is none of the 2 spans"),
            ((TILE, replace(WAIT, cause=1)), "cause 1 is no tile but wait"),
            ((TILE, replace(WAIT, stop=10.5)), r"lies in no tile .*\[1.0, 10.5\]"),
            ((TILE, replace(WAIT, worker=1)), "lies in no tile .* worker 1"),
            ((TILE, replace(WAIT, role="gather")), "lies in no tile .* of gather"),
            ((TILE, replace(TILE, start=9.0, stop=12.0)), r"overlap: .*\[0.0, 10.0\] and .*\[9.0, 12.0\]"),
            ((TILE, WAIT, replace(WAIT, start=3.0)), r"overlap: .*\[1.0, 4.0\] and .*\[3.0, 4.0\]"),
        ],
    )
    def test_refuses_spans_that_do_not_go_together(self, spans: tuple[Span, ...], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            of(*spans)

    def test_refuses_other_units_and_times_of_unknown_source(self) -> None:
        with pytest.raises(ValueError, match="'ms'"):
            Timeline("", "ms", PREDICTED, ())
        with pytest.raises(ValueError, match="source of the timeline 'title' is empty"):
            Timeline("title", "us", "", ())
