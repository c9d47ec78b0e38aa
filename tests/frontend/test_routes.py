"""Routes: what is said of them and what is not understood; where their rows lie, and what their signals are."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl

import tilelink as tk
from tests.kernels.gather_gemm import small_world
from tests.kernels.routed import Routed, random_counts
from tests.programs.gathered import take
from tests.programs.routed import (
    added_by_experts,
    added_of_all_ranks,
    by_expert,
    made_and_added_by_experts,
    made_by_experts,
    move,
)
from tilelink.analysis.events import NOTIFY, WAIT, WRITE
from tilelink.errors import (
    ArgumentError,
    DimensionError,
    DtypeError,
    ScheduleError,
    ShapeError,
    SignalCountError,
    TileLinkError,
    UnsafeProgramError,
)
from tilelink.frontend.routes import Integers, Routing
from tilelink.kernels.dispatch_matmul import dispatch_matmul, push
from tilelink.kernels.matmul_combine import matmul_combine

SIZES = {"K": 32, "N": 32, "experts": 2, "tokens": 40}
COUNTS = [[5, 0], [17, 3], [0, 0], [1, 40]]
SMALL = push.changed(dispatch={"tile": (16, 16), "count": 2}, matmul={"tile": (16, 16, 16)})


def test_rows_lie_by_expert_and_source_at_home_and_by_expert_at_their_source() -> None:
    events = dispatch_matmul.unroll(SMALL, world=2, routed=COUNTS, **SIZES)
    tensors = [t.name for t in events.program.tensors]
    assert dict(events.sizes.parts) == {"sent": (23, 43), "routed": (25, 41), "tokens": (20, 20)}
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
        top = {"top": 2} if program is matmul_combine else {}
        report = program.check(schedule, world=3, routed=random_counts(3, 2, 7), **SIZES, **top)
        assert (report.verdict, report.proof) == ("safe", "structural")


def test_steps_along_routed_rows_go_through_those_that_exist() -> None:
    """Behind them, where ranks have room for more, is what nobody wrote."""
    room, rows = (32, 48), [sum(map(sum, COUNTS[:2])), sum(map(sum, COUNTS[2:]))]
    schedule = tk.Schedule(make=tk.SMs(2, tile=(16, 16)), add_up_all=tk.SMs(tile=(2, 16, 16)))
    report = added_of_all_ranks.check(schedule, world=2, R=COUNTS, K=16, E=2)
    assert (report.verdict, report.proof) == ("safe", "structural")

    def rank(group: Any) -> torch.Tensor:
        x = torch.full((room[group.rank], 16), float("nan"))
        x[: rows[group.rank]] = 1 + group.rank
        sent, weight = torch.zeros(64, 16), torch.zeros(2, 16)
        return added_of_all_ranks(
            x, sent, weight, torch.tensor(COUNTS), schedule=schedule, group=group, parts={"R": room, "S": (64, 64)}
        )

    for out in small_world(2).run(rank):
        assert torch.equal(out, torch.full((2, 16), float(rows[0] + 2 * rows[1])))


def test_kernels_depend_on_the_routing_only_by_whether_ranks_have_room_alike() -> None:
    alike, others = (
        {dispatch_matmul.show("triton", "push", world=2, routed=counts, **SIZES) for counts in several}
        for several in ((64, [[16, 16]] * 4, [[0, 0]] * 4), (COUNTS, [[1, 0], [0, 0], [3, 4], [5, 6]]))
    )
    assert len(alike) == len(others) == 1


def test_counts_may_be_given_one_after_the_other() -> None:
    """As a command line has them, routed=5+0+17+3+0+0+1+40."""
    flat = tuple(n for row in COUNTS for n in row)
    made = (dispatch_matmul.unroll(SMALL, world=2, routed=c, **SIZES).sizes for c in (COUNTS, flat, np.array(COUNTS)))
    assert len(set(made)) == 1


def test_counts_that_are_right_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 256 experts on 8 ranks that was 22 ms of each call."""
    monkeypatch.setattr("tilelink.frontend.routes._is_count", None)
    (route,) = dispatch_matmul.recorded().routes
    counts = random_counts(8, 32, seed=0)
    for given in (counts, tuple(map(tuple, counts)), np.array(counts), torch.tensor(counts), np.ravel(counts)):
        routing = Routing.of(given, route, 8, 32, dispatch_matmul.site)
        assert routing.counts == tuple(map(tuple, counts)) and routing.array.shape == (256, 8)
    assert len(repr(routing)) < 100 and repr(Integers.of([[1, 2], [3, 4]])) == "((1, 2), (3, 4))"


def test_a_number_of_rows_is_dealt_out_evenly() -> None:
    events = dispatch_matmul.unroll("push", world=2, routed=11, **SIZES)
    ((_, routing),) = events.sizes.routings
    assert sum(map(sum, routing.counts)) == 11 and {n for row in routing.counts for n in row} == {1, 2}
    assert (events.op == NOTIFY).any()


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"routed": [[1, 2]] * 3}, r"counts of 3 experts; .* each of the 4 experts \(2 of each of 2 ranks, as experts"),
        ({"routed": [[1, 2, 3, 4]] * 2}, "counts of 2 experts, which is the table with sources first"),
        ({"routed": [[1, -2]] * 4}, r"counts\[0\]\[1\] is -2; needed are counts\[expert\]\[source\]"),
        ({"routed": [[1, 2.5]] * 4}, r"counts\[0\]\[1\] is 2.5"),
        ({"routed": [[1, 2], [1], [1, 2], [1, 2]]}, r"counts\[1\] has 1 entry;"),
        ({"routed": [1, 2, 3]}, r"counts\[0\] is 1, no row of counts"),
        ({"routed": "40"}, "'40' is no table of counts"),
        ({"routed": -1}, "routed: -1 is no table of counts"),
        ({"routed": 8, "sent": 9}, "sent is 9; routed says that 8 rows are sent"),
        ({"routed": 8, "experts": 0}, "experts is 0: a rank has one expert or more"),
        ({"routed": [[float("inf"), 1]] * 4}, r"counts\[0\]\[0\] is inf"),
        ({}, "needs the sizes of routed and experts; routed is missing"),
    ],
    ids=str,
)  # fmt: skip
def test_counts_that_are_none(sizes: dict[str, Any], said: str) -> None:
    with pytest.raises(DimensionError, match=said):
        dispatch_matmul.check("push", world=2, **(SIZES | sizes))


def test_calls_that_are_wrong_are_refused_before_anything_runs() -> None:
    call = Routed((dispatch_matmul, "push"), COUNTS)

    def called(**changed: Any) -> None:
        options = {"counts": torch.tensor(COUNTS), "parts": call.parts, **changed}
        counts = options.pop("counts")
        given, weight, picks = call.given, call.weight, call.picks
        small_world(2).run(
            lambda g: dispatch_matmul(given[g.rank], weight[g.rank], counts, picks[g.rank], group=g, **options)
        )

    for wrong, kind, said in (
        ({"counts": None}, ArgumentError, "dispatch_matmul needs route: (experts.all, ranks)"),
        ({"counts": COUNTS}, ArgumentError, "route is a list, not a tensor"),
        ({"counts": torch.tensor(COUNTS[:3])}, ShapeError, "route has shape (3, 2); counts are [experts of"),
        ({"counts": torch.tensor(COUNTS).T}, ShapeError, "route has 4 entries along dimension 1: it has one a rank, 2"),
        ({"counts": torch.tensor(COUNTS).float()}, DtypeError, "route has dtype torch.float32; its integers are int32"),
        ({"parts": {**call.parts, "sent": (23, 42)}}, ShapeError, "order has shape (43,), so sent is 43 there; parts"),
        ({"parts": {**call.parts, "routed": COUNTS}}, ShapeError, "parts of routed are ((5, 0), (17, 3), (0, 0)"),
        ({"timed": True}, ArgumentError, "dispatch_matmul has no timed calls"),
    ):
        with pytest.raises(kind, match=re.escape(said)):
            called(**wrong)


# ---- programs that are refused


ROUTE = tk.Route("S", "R", "E")


def bound(body: Any, **schedule: Any) -> None:
    """Binds a program of two tensors, of rows on either side, with a weight."""

    @tk.program
    def routed(
        x: tk.Sharded("S", "K"),
        weight: tk.Local("E", "K"),
        route: ROUTE,
        out: tk.Sharded("R", "K"),  # type: ignore[valid-type]
    ) -> None:
        body(x, weight, route, out)

    on = {n: tk.SMs(2, tile=(16, 16), at="home" if n != "take" else None) for n in ("move", "take")}
    routed.check(tk.Schedule(**(on | schedule)), world=2, R=COUNTS, E=2, K=16)


def whole(x: Any, weight: Any, route: Any, out: Any) -> None:
    rows = tk.sharded("R", "K")
    move[tk.tiles(route, x.cols)](x, rows)
    take[tk.tiles(route.experts, x.cols)](rows, out)


def test_tiles_of_an_expert_may_wait_for_rows_of_several_segments() -> None:
    bound(whole)


MIXED: dict[Any, Any] = {
    made_by_experts: tk.Schedule(make=tk.SMs(1, tile=(16, 16)), take=tk.SMs(3, tile=(32, 16), at="home")),
    added_by_experts: tk.Schedule(make=tk.SMs(1, tile=(16, 16), at="home"), add_up=tk.SMs(3, tile=(32, 16, 16))),
    made_and_added_by_experts: tk.Schedule(make=tk.SMs(1, tile=(32, 16)), add_up=tk.SMs(3, tile=(16, 16, 16))),
}


@pytest.mark.parametrize("program", MIXED, ids=lambda p: p.name)
def test_what_structure_shows_holds_for_random_routings(program: Any) -> None:
    """Tiles that wait are cut otherwise than those that notify; pieces are empty, shorter and longer than tiles."""
    for seed in range(12):
        world, experts = 1 + seed % 3, 1 + seed % 2
        counts = random_counts(world, experts, seed, most=(3, 40)[seed % 2])
        report = program.check(MIXED[program], world=world, R=counts, E=experts, K=16)
        assert (report.verdict, report.proof) == ("safe", "structural"), (counts, str(report))


def test_tiles_of_segments_wait_for_those_of_experts() -> None:
    counts = random_counts(2, 2, 3)
    routing = Routing(Integers.of_array(np.array(counts))).parts(made_by_experts.recorded().routes[0])
    given = [{d: torch.randn(n[rank], 16) for d, n in routing.items()} for rank in range(2)]

    def rank(g: Any) -> torch.Tensor:
        own = given[g.rank]
        out = torch.full_like(own["R"], float("nan"))
        tensors = own["R"], own["S"], torch.zeros(2, 16), torch.tensor(counts), out
        return made_by_experts(*tensors, schedule=MIXED[made_by_experts], group=g, parts=routing)

    for out, own in zip(small_world(2).run(rank), given, strict=True):
        assert torch.equal(out, own["R"])


def test_a_rank_axis_may_be_called_expert_where_nothing_is_routed() -> None:
    @tk.program
    def gathered(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")) -> None:  # type: ignore[valid-type]
        full = tk.local("M", "K")
        to_expert[tk.tiles(x, expert=tk.ranks)](x, full)
        take[tk.tiles(out)](full, out)

    on = tk.Schedule(to_expert=tk.SMs(2, tile=(16, 16), at="expert"), take=tk.SMs(2, tile=(16, 16)))
    assert gathered.check(on, world=2, M=33, K=16).verdict == "safe"


@tk.tile
def to_expert(t, x, full):  # type: ignore[no-untyped-def]
    tk.notify(tk.copy(x[t], full[t].at(t.expert)))


def along_two_cuts(x: Any, weight: Any, route: Any, out: Any) -> None:
    tk.tiles(x, route.experts)


def two_at_once(x: Any, weight: Any, route: Any, out: Any) -> None:
    tk.tiles(route, route.experts)


def more_axes(x: Any, weight: Any, route: Any, out: Any) -> None:
    tk.tiles(route, reader=tk.ranks)


def plainly(x: Any, weight: Any, route: Any, out: Any) -> None:
    take[tk.tiles(out)](out, out)


def without_sources(x: Any, weight: Any, route: Any, out: Any) -> None:
    rows = tk.sharded("R", "K")
    by_expert.named("move")[tk.tiles(route.experts, x.cols)](x, rows)
    take[tk.tiles(route.experts, x.cols)](rows, out)


def cut_in_two_ways(x: Any, weight: Any, route: Any, out: Any) -> None:
    rows = tk.sharded("R", "K")
    move[tk.tiles(route, x.cols)](x, rows)
    again[tk.tiles(route.experts, x.cols)](out, rows)
    take[tk.tiles(route.experts, x.cols)](rows, out)


@tk.tile
def again(t, out, rows):  # type: ignore[no-untyped-def]
    tk.notify(rows[t].store(tl.zeros(t.shape, tl.float32)))


@pytest.mark.parametrize(
    ("body", "schedule", "kind", "said"),
    [
        (two_at_once, {}, DimensionError, "the rows of one route, not of"),
        (along_two_cuts, {}, DimensionError, "can't have another dimension that is cut over the ranks"),
        (plainly, {}, DimensionError, r"the tile space of take has R, a dimension of route: .* tk.tiles\(route, ...\)"),
        (whole, {"cells": {"buffer0": (32, 16)}}, ScheduleError, "rows of several pieces along R, .* say None there"),
        (whole, {"move": tk.CopyEngine(tile=(None, None), at="home")}, ScheduleError, "the host enqueues its copies"),
        (more_axes, {}, DimensionError, "have their own axes; reader can't be another"),
        (without_sources, {}, DimensionError, "dimension 0 of x is S; it is given R"),
        (cut_in_two_ways, {"again": tk.SMs(2, tile=(16, 16))}, SignalCountError, "cut from R in another way"),
        (whole, {"move": tk.SMs(2, tile=(16, 16), at="expert")}, ScheduleError, "it can be 'home' or 'source'"),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)  # fmt: skip
def test_programs_that_are_not_understood(
    body: Any, schedule: dict[str, Any], kind: type[TileLinkError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        bound(body, **schedule)


def test_a_dimension_belongs_to_one_route() -> None:
    @tk.program
    def twice(
        x: tk.Sharded("S", "K"), weight: tk.Local("E", "K"), out: tk.Sharded("R", "K"),  # type: ignore[valid-type]
        one: tk.Route("S", "R", "E"), other: tk.Route("R", "S", "E"),  # type: ignore[valid-type]
    ) -> None:  # fmt: skip
        whole(x, weight, one, out)

    with pytest.raises(DimensionError, match="a dimension belongs to one route"):
        twice.recorded()


def test_a_route_is_between_two_cuts() -> None:
    @tk.program
    def of_columns(
        x: tk.Sharded("S", "K"), weight: tk.Local("E", "K"), route: tk.Route("K", "S", "E")  # type: ignore[valid-type]
    ) -> None:
        whole(x, weight, route, x)

    @tk.program
    def of_cut_experts(
        x: tk.Sharded("S", "K"), out: tk.Sharded("R", "K"), route: tk.Route("S", "R", "S")  # type: ignore[valid-type]
    ) -> None:
        whole(x, x, route, out)

    for program, said in (
        (of_columns, "tensors with dimension K must be cut along it over the ranks"),
        (of_cut_experts, "S must be a separate dimension, of local tensors"),
    ):
        with pytest.raises(DimensionError, match=said):
            program.recorded()


# ---- an entry for each expert


@tk.tile
def of_expert(t, x, out):  # type: ignore[no-untyped-def]
    acc = tl.zeros((len(t.K),), tl.float32)
    for rows in tk.steps(t.R):
        acc += tl.sum(x[rows, t.K].load(), 0)
    out[t.expert, t.K].store(acc)


def summed(over: str) -> Any:
    """A program that adds up the rows of each expert, in tiles of its rows, or of those of one source."""

    @tk.program
    def sums(x: tk.Sharded("R", "K"), out: tk.Local("E", "K"), route: ROUTE) -> None:  # type: ignore[valid-type]
        of_expert[tk.tiles(route.experts if over == "expert" else route, x.cols)](x, out)

    return sums


@pytest.mark.parametrize(
    ("over", "tile", "kind"),
    [("expert", None, ""), ("expert", 16, "written twice"), ("source", None, "written twice")],
)
def test_an_entry_for_each_expert_is_written_by_a_tile_of_all_its_rows(over: str, tile: Any, kind: str) -> None:
    schedule = tk.Schedule(of_expert=tk.SMs(3, tile=(tile, 16, 16)))
    report = summed(over).check(schedule, world=2, R=COUNTS, E=2, K=16)
    if kind:
        assert report.findings[0].kind == kind
    else:
        assert (report.verdict, report.proof) == ("safe", "structural")


def test_what_the_structure_does_not_show_for_all_routings_is_not_called() -> None:
    program, schedule = summed("expert"), tk.Schedule(of_expert=tk.SMs(3, tile=(16, 16, 16)))
    given = torch.zeros(66, 16), torch.zeros(2, 16), torch.tensor(COUNTS)
    with pytest.raises(UnsafeProgramError, match="does not show that it is safe wherever they go: tiles are not known"):
        small_world(2).run(lambda g: program(*given, schedule=schedule, group=g, parts={"R": (66, 66)}))


def test_members_of_lists_take_no_turns_over_routes() -> None:
    @tk.program
    def several(
        x: tk.Sharded("R", "K"), route: ROUTE, out: tk.Each(tk.Sharded("R", "K"))  # type: ignore[valid-type]
    ) -> None:
        for o in tk.each(out):
            copied[tk.tiles(route.experts, x.cols)](x, o)

    schedule = tk.Schedule(copied=tk.SMs(2, tile=(16, 16)))
    assert several.check(schedule, world=2, R=COUNTS, E=2, K=16).verdict == "safe"
    with pytest.raises(ScheduleError, match="the members of copied go over the rows of a route"):
        several.of(2).check(schedule, world=2, R=COUNTS, E=2, K=16)


@tk.tile
def copied(t, x, out):  # type: ignore[no-untyped-def]
    tk.copy(x[t], out[t])


def test_routes_have_no_lists() -> None:
    with pytest.raises(DimensionError, match="a list of tensors"):
        tk.Each(ROUTE)
