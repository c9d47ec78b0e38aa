"""Which arrows stand on a PNG."""

from __future__ import annotations

from dataclasses import replace

from tests.analysis.timelines import TILE, WAIT, of, timeline
from tilelink.analysis.draw.arrows import MOST_ARROWS, candidates, choose
from tilelink.analysis.draw.picture import Layout
from tilelink.analysis.timeline import Span


class TestArrows:
    def test_go_between_ranks_or_else_between_workers(self) -> None:
        assert candidates(timeline(ranks=4))[1] == "rank"
        waits, between = candidates(timeline(ranks=1, workers=2))
        assert between == "worker"
        assert waits == sorted(waits, key=lambda w: -w.duration)

    def test_show_only_the_last_wait_of_a_tile(self) -> None:
        first, second = (Span(1, k, "gather", "tile", "M[0:128]", 0.0, 2.0 + k) for k in (0, 1))
        waits = replace(WAIT, stop=2.0, cause=1), replace(WAIT, start=2.0, stop=3.0, cause=2)
        assert candidates(of(TILE, first, second, *waits))[0] == [waits[1]]

    def test_show_no_wait_that_ended_as_it_began(self) -> None:
        """In logical time it takes a little nevertheless: its look at the signal."""
        other = Span(1, 0, "gather", "tile", "M[0:128]", 0.0, 2.0)
        waits = replace(WAIT, stop=2.0, cause=1), replace(WAIT, start=2.0, stop=2.5, cause=1)
        assert candidates(of(TILE, other, *waits))[0] == [waits[0]]
        assert candidates(of(TILE, other, waits[1]))[0] == []

    def test_are_few_enough_to_tell_apart(self) -> None:
        whole = timeline(ranks=8, workers=10, chunks=30)
        waits, _ = candidates(whole)
        chosen = choose(Layout(whole), waits)
        assert len(waits) > 1000
        assert 10 < len(chosen) <= MOST_ARROWS
        assert all(x <= to_x for x, _, to_x, _ in chosen)
