"""Routes: what is said of them and what is not understood; where their rows lie, and what their signals are."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import triton.language as tl

import tilelink as tk
from tests.kernels.gather_gemm import small_world
from tests.kernels.routed import Routed, random_counts
from tilelink.analysis.events import NOTIFY, WAIT, WRITE
from tilelink.errors import DimensionError, ScheduleError, ShapeError, SignalCountError, TileLinkError
from tilelink.kernels.dispatch_matmul import dispatch_matmul, push
from tilelink.kernels.matmul_combine import matmul_combine

SIZES = {"K": 32, "N": 32, "experts": 2}
COUNTS = [[5, 0], [17, 3], [0, 0], [1, 40]]
SMALL = push.changed(dispatch={"tile": (16, 16), "count": 2}, matmul={"tile": (16, 16, 16)})


def test_rows_lie_by_expert_and_source_at_home_and_by_expert_at_their_source() -> None:
    events = dispatch_matmul.unroll(SMALL, world=2, routed=COUNTS, **SIZES)
    tensors = [t.name for t in events.program.tensors]
    assert dict(events.sizes.parts) == {"sent": (23, 43), "routed": (25, 41)}
    writes = (events.op == WRITE) & (events.tensor == tensors.index("rows"))
    columns = events.rank, events.home, events.lo[:, 0], events.hi[:, 0]
    assert {tuple(int(c[k]) for c in columns) for k in np.flatnonzero(writes)} == {
        (0, 0, 0, 5), (0, 0, 5, 21), (0, 0, 21, 22), (1, 0, 22, 25),
        (0, 1, 25, 26), (1, 1, 26, 42), (1, 1, 42, 58), (1, 1, 58, 66),
    }  # fmt: skip


def test_a_tile_of_an_expert_waits_for_the_sources_of_its_rows_alone() -> None:
    events = dispatch_matmul.unroll(SMALL, world=2, routed=COUNTS, **SIZES)
    waits = np.flatnonzero(events.op == WAIT)
    of_tile = {(int(events.rank[k]), int(events.lo[k, 0])): set() for k in waits}
    for k in waits:
        of_tile[int(events.rank[k]), int(events.lo[k, 0])].add((int(events.cell[k]), int(events.expected[k])))
    assert of_tile == {
        (0, 0): {(0, 2)}, (0, 5): {(2, 4)}, (0, 21): {(2, 4), (3, 2)},
        (1, 25): {(2, 2), (3, 6)}, (1, 41): {(3, 6)}, (1, 57): {(3, 6)},
    }  # fmt: skip


@pytest.mark.parametrize("program", [dispatch_matmul, matmul_combine], ids=lambda p: p.name)
def test_routed_programs_are_safe_for_every_routing(program: Any) -> None:
    for schedule in program.schedules:
        report = program.check(schedule, world=3, routed=random_counts(3, 2, 7), **SIZES)
        assert report.verdict == "safe" and report.proof == ("structural" if schedule != "engine" else report.proof)


def test_kernels_do_not_depend_on_the_routing() -> None:
    sources = {
        dispatch_matmul.show("triton", "push", world=2, routed=counts, **SIZES)
        for counts in (COUNTS, 64, [[16, 16]] * 4, [[0, 0]] * 4)
    }
    assert len(sources) == 1


def test_a_number_of_rows_is_dealt_out_evenly() -> None:
    events = dispatch_matmul.unroll("push", world=2, routed=11, **SIZES)
    (_, routing), = events.sizes.routings
    assert sum(map(sum, routing.counts)) == 11 and {n for row in routing.counts for n in row} == {1, 2}
    assert (events.op == NOTIFY).any()


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"routed": [[1, 2]] * 3}, r"routed: 3 entries; needed are counts .* for each of the 2 experts of 2 ranks, 4,"),
        ({"routed": [[1, -2]] * 4}, "not negative"),
        ({"routed": [[1, 2.5]] * 4}, "not negative"),
        ({"routed": -1}, "routed: -1; needed are counts"),
        ({"routed": 8, "sent": 9}, "sent is 9; routed says that 8 rows are sent"),
        ({}, "needs the sizes of routed and experts; routed is missing"),
    ],
    ids=str,
)  # fmt: skip
def test_counts_that_are_none(sizes: dict[str, Any], said: str) -> None:
    with pytest.raises(DimensionError, match=said):
        dispatch_matmul.check("push", world=2, **SIZES, **sizes)


def test_calls_that_are_wrong_are_refused_before_anything_runs() -> None:
    call = Routed((dispatch_matmul, "push"), COUNTS)

    def with_counts(counts: Any) -> None:
        small_world(2).run(lambda g: dispatch_matmul(call.given[g.rank], call.weight[g.rank], group=g, **counts))

    more = [[6, 0], *COUNTS[1:]]
    for counts, kind, said in (
        ({}, ShapeError, "needs to know how many rows each expert gets from each rank: parts={'routed': counts}"),
        ({"parts": {"routed": COUNTS[:3]}}, DimensionError, "routed: 3 entries; needed are counts"),
        ({"parts": {"routed": more}}, ShapeError, "x has shape (23, 40), so sent is 23 there; parts makes it 24"),
    ):
        with pytest.raises(kind, match=re.escape(said)):
            with_counts(counts)


# ---- programs that are refused


@tk.tile
def move(t, x, rows):  # type: ignore[no-untyped-def]
    tk.notify(tk.copy(x[t], rows[t]))


@tk.tile
def by_expert(t, x, rows):  # type: ignore[no-untyped-def]
    tk.notify(tk.copy(x[t.rows], rows[t.rows]))


@tk.tile
def take(t, rows, out):  # type: ignore[no-untyped-def]
    out[t].store(tk.wait(rows[t]).load())


def bound(body: Any, **schedule: Any) -> None:
    """Binds a program of two tensors, of rows on either side, with a weight."""

    @tk.program
    def routed(
        x: tk.Sharded("S", "K"), weight: tk.Local("E", "K"), out: tk.Sharded("R", "K")  # type: ignore[valid-type]
    ) -> None:
        body(x, weight, out)

    on = {n: tk.SMs(2, tile=(16, 16), at="home" if n != "take" else None) for n in ("move", "take")}
    routed.check(tk.Schedule(**(on | schedule)), world=2, R=COUNTS, E=2, K=16)


def whole(x: Any, weight: Any, out: Any) -> None:
    route, rows = tk.route("S", "R", "E"), tk.sharded("R", "K")
    move[tk.tiles(route, x.cols)](x, rows)
    take[tk.tiles(out)](rows, out)


def test_tiles_of_a_rank_may_wait_for_rows_of_any_segments() -> None:
    bound(whole)


def twice(x: Any, weight: Any, out: Any) -> None:
    tk.route("S", "R", "E")
    tk.route("R", "S", "E")


def of_nothing(x: Any, weight: Any, out: Any) -> None:
    tk.route("K", "R", "E")


def of_cut_experts(x: Any, weight: Any, out: Any) -> None:
    tk.route("S", "R", "S")


def two_at_once(x: Any, weight: Any, out: Any) -> None:
    route = tk.route("S", "R", "E")
    tk.tiles(route, route.experts)


def more_axes(x: Any, weight: Any, out: Any) -> None:
    tk.tiles(tk.route("S", "R", "E"), reader=tk.ranks)


def without_sources(x: Any, weight: Any, out: Any) -> None:
    route, rows = tk.route("S", "R", "E"), tk.sharded("R", "K")
    by_expert.named("move")[tk.tiles(route.experts, x.cols)](x, rows)
    take[tk.tiles(out)](rows, out)


def cut_in_two_ways(x: Any, weight: Any, out: Any) -> None:
    route, rows = tk.route("S", "R", "E"), tk.sharded("R", "K")
    move[tk.tiles(route, x.cols)](x, rows)
    again[tk.tiles(route.experts, x.cols)](out, rows)
    take[tk.tiles(out)](rows, out)


@tk.tile
def again(t, out, rows):  # type: ignore[no-untyped-def]
    tk.notify(rows[t].store(tl.zeros(t.shape, tl.float32)))


@pytest.mark.parametrize(
    ("body", "schedule", "kind", "said"),
    [
        (twice, {}, DimensionError, "a dimension belongs to one route"),
        (of_nothing, {}, DimensionError, "K is no dimension along which a tensor is cut over the ranks"),
        (of_cut_experts, {}, DimensionError, "S has to be a dimension of its own, of a local tensor"),
        (two_at_once, {}, DimensionError, "the rows of one route, not of"),
        (more_axes, {}, DimensionError, "have their own axes; reader can't be one too"),
        (without_sources, {}, DimensionError, "dimension 0 of x is S; it is given R"),
        (cut_in_two_ways, {"again": tk.SMs(2, tile=(16, 16))}, SignalCountError, "cut from R in another way"),
        (whole, {"move": tk.SMs(2, tile=(16, 16), at="expert")}, ScheduleError, "it can be one of home, source"),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)  # fmt: skip
def test_programs_that_are_not_understood(
    body: Any, schedule: dict[str, Any], kind: type[TileLinkError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        bound(body, **schedule)
