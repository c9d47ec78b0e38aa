"""Counts that only the device knows: the host does nothing that depends on them, tables are what numpy makes of the
same counts, and rows without room are an error on every rank that moves nothing."""

from __future__ import annotations

import ctypes
import re
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import tilelink as tk
from tests.kernels.gather_gemm import small_world
from tests.kernels.once import FORMS as ONCE
from tests.kernels.once import Once, chosen
from tests.kernels.routed import FORMS, PROGRAMS, Routed, check_tables, named, random_counts
from tests.kernels.whole_layer import Layer
from tests.parameters import covering, first_of, rarely
from tests.programs.routed import added_by_experts
from tests.runtime.cuda_stand_in import StandIn, virtual_world
from tests.runtime.processes import Pool
from tests.runtime.ranks import in_processes
from tilelink.errors import CapacityError, CaptureError, RankMismatchError
from tilelink.frontend import sizes
from tilelink.frontend.routes import Integers, Routing
from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.kernels.mixture_of_experts import mixture_of_experts
from tilelink.runtime import launch, prepare

ROOM = 24
FIRST = [next(f for f in FORMS if f[0] is p) for p in PROGRAMS]
LAYER = [(mixture_of_experts, s) for s in mixture_of_experts.schedules]


def drawn(form: Any, world: int, seed: int) -> Any:
    """A call with room for `ROOM` rows on both sides, which are never more."""
    sizes: dict[str, Any] = {"N": 16, "K": 16, "integers": True, "seed": seed, "room": ROOM}
    if form in ONCE:
        return Once(form, chosen((5, 3) * (world // 2), 2, 2, seed, none=0.1 * (seed % 8)), **sizes)
    counts = random_counts(world, 2, seed, most=ROOM // (2 * world) + 1)
    return Layer(form[1], counts, **sizes) if form in LAYER else Routed(form, counts, **sizes)


@pytest.fixture
def blind() -> Any:
    """A context in which the host has no way to a routing, to the values of tables, and to events."""

    def context() -> Any:
        here = pytest.MonkeyPatch()
        for owner, name in (
            (Routing, "__init__"), (Routing, "of"), (sizes, "with_tables"), (prepare, "unroll"), (launch, "counted"),
        ):  # fmt: skip
            here.setattr(owner, name, None)
        return here

    return context


@pytest.mark.parametrize(
    ("form", "routings"),
    [(f, 2) for f in (FIRST[0], ONCE[-1])]
    + [pytest.param(f, 2, marks=pytest.mark.verify) for f in (*FIRST[1:], ONCE[0], LAYER[0])]
    + [pytest.param(f, 1000, marks=pytest.mark.verify) for f in (*FORMS, *ONCE, *LAYER)],
    ids=lambda f: f if isinstance(f, int) else f"{f[0].name}-{f[1]}",
)
def test_many_routings_through_one_prepared_call(form: Any, routings: int, blind: Any) -> None:
    """The tables are poison on the host, and the counts are, too: a program makes them that runs as late as the call
    that takes them."""
    world = small_world(2)
    early: list[bool] = []

    def rank(group: Any, calls: list[Any]) -> list[Any]:
        outs = []
        for call in calls:
            mine = torch.tensor(call.counts, dtype=torch.int32)[:, group.rank]
            gathered = torch.full((2, len(mine)), -7, dtype=torch.int32)
            all_gather(mine[None].contiguous(), gathered, group=group)
            outs.append(call.on(group, counts=gathered.T))
            words = (ctypes.c_int32 * gathered.numel()).from_address(gathered.data_ptr())
            early.append(-7 in words)  # round torch, which would wait for it
        return outs

    for first in range(0, routings, 50):  # a run keeps its tensors to its end
        calls = [drawn(form, 2, seed) for seed in range(first, min(first + 50, routings))]
        here = blind()
        try:
            made = world.run(lambda group, calls=calls: rank(group, calls))
        finally:
            here.undo()
        for call, outs in zip(calls, zip(*made, strict=True), strict=True):
            call.check(list(outs))
    assert any(early), "no call was made before its counts were there"
    assert len(world.lane.prepared) == 2, "the gather of counts, and the program"


@pytest.mark.parametrize(
    ("form", "ranks"),
    rarely(covering(product((f for f in FORMS if f[1] != "push"), (1, 2, 4, 8))), lambda _, ranks: ranks == 4),
    ids=named,
)
def test_tables_are_what_numpy_makes_of_the_same_counts(form: Any, ranks: int) -> None:
    """Of those that tests/kernels/test_routed.py does not run."""
    call, world = drawn(form, ranks, seed=ranks), small_world(ranks)
    call.check(world.run(call.on))
    check_tables(world, experts=2)


# ---- rows without room

FULL = [[9, 2], [3, 1], [0, 0], [1, 4]]
"""Of two experts on each of two ranks: 13 and 7 rows are sent, 15 and 5 routed."""
REFUSED = [
    ({"routed": (14, 14)}, FULL, "rank 0 has room for 14 rows of routed and gets 15; expert 0 has the most, 11."),
    ({"routed": (15, 4)}, FULL, "rank 1 has room for 4 rows of routed and gets 5; expert 3 has the most, 5."),
    ({"sent": (13, 6)}, FULL, "rank 1 has room for 6 rows of sent and gets 7; expert 3 has the most, 4."),
    ({}, [[9, 2], [3, -1], [0, 0], [1, 4]], "route[1, 1] is -1: counts of rows are from 0 to 1073741824"),
    ({}, [[9, 2], [3, 1], [0, 1 << 30], [1, 1 << 30]], "rank 1 has room for 7 rows of sent and gets 2147483651"),
    ({}, [[9, 2], [2**31 - 1, 1], [0, 0], [1, 4]], "route[1, 0] is 2147483647"),
]


def of_room(form: Any, room: dict[str, tuple[int, ...]], counts: Any) -> tuple[Routed, torch.Tensor]:
    """A call with that room, and the counts it is given."""
    call = Routed(form, FULL, N=16, K=16, integers=True)
    call.parts |= {"sent": (13, 7), "routed": (15, 5)} | room
    call.given = [x[:n] for x, n in zip(call.given, call.parts[call.dim], strict=True)]
    if call.sends:
        call.picks = [p[:n] for p, n in zip(call.picks, call.parts["sent"], strict=True)]
    return call, torch.tensor(counts, dtype=torch.int32)


def refused_and_then_right(group: Any, form: Any, room: Any, counts: Any) -> tuple[str, torch.Tensor]:
    """What a rank is told, and the result of the next call."""
    right = Routed(form, FULL, N=16, K=16, integers=True)
    call, given = of_room(form, room, counts)
    with pytest.raises(CapacityError) as e:
        made = call.on(group, counts=given)
        group.synchronize()
        assert not made.nan_to_num().any(), "rows were written"  # sums of none are zeros
    group.synchronize()  # it is told once
    return str(e.value), right.on(group)


def first_refused(group: Any) -> tuple[str, torch.Tensor]:
    return refused_and_then_right(group, FORMS[0], *REFUSED[0][:2])


def check_refused(form: Any, made: list[tuple[str, torch.Tensor]], said: str) -> None:
    assert all(said in told for told, _ in made), made
    Routed(form, FULL, N=16, K=16, integers=True).check([out for _, out in made])


@pytest.mark.parametrize(
    ("form", "refused"),
    rarely(covering(product(FORMS, REFUSED)), lambda form, refused: form[1] == "few" and refused is REFUSED[0]),
    ids=lambda v: v[2] if len(v) == 3 else named(v),
)
def test_rows_without_room_are_an_error_on_every_rank(form: Any, refused: tuple[Any, Any, str]) -> None:
    room, counts, said = refused
    made = small_world(2).run(lambda group: refused_and_then_right(group, form, room, counts))
    check_refused(form, made, said)


@pytest.mark.parametrize(("entry", "rows"), [((0, 0), 6), ((2, 0), 7), ((1, 1), 0)], ids=str)
def test_counts_that_ranks_have_differently_are_an_error(entry: tuple[int, int], rows: int) -> None:
    """Whether the run ends with wrong rows or is stuck."""
    call, world = Routed(FORMS[0], FULL, N=16, K=16, integers=True, room=64), small_world(2)
    counts = torch.tensor(FULL, dtype=torch.int32)
    counts[entry] = rows
    given = [torch.tensor(FULL, dtype=torch.int32), counts]
    said = f"run 0: route[{entry[0]}, {entry[1]}] is {FULL[entry[0]][entry[1]]} on rank 0, and {rows} on rank 1"
    with pytest.raises(RankMismatchError, match=re.escape(said)):
        world.run(lambda group: call.on(group, counts=given[group.rank]))
    call.check(world.run(call.on))


OTHERS = [pytest.param(form, marks=pytest.mark.verify) for form in (*ONCE[1:-1], *LAYER)]


@pytest.mark.parametrize("form", [ONCE[0], ONCE[-1], *OTHERS], ids=named)
def test_counts_that_ranks_have_differently_are_an_error_of_other_plans_too(form: Any) -> None:
    call, world = drawn(form, 2, 1), small_world(2)
    counts = torch.as_tensor(np.array(call.counts), dtype=torch.int32)
    given = [counts, counts.clone()]
    given[1][1, 0] += 1
    said = f"run 0: route[1, 0] is {int(counts[1, 0])} on rank 0, and {int(counts[1, 0]) + 1} on rank 1"
    with pytest.raises(RankMismatchError, match=re.escape(said)):
        world.run(lambda group: call.on(group, counts=given[group.rank]))
    call.check(world.run(call.on))


def test_an_error_that_nobody_asked_for_is_told_at_the_end() -> None:
    call, counts = of_room(FORMS[0], {"routed": (14, 14)}, FULL)
    world = small_world(2)
    with pytest.raises(CapacityError, match=re.escape("rank 0 has room for 14 rows of routed and gets 15")):
        world.run(lambda group: call.on(group, counts=counts))
    call = Routed(FORMS[0], FULL, N=16, K=16, integers=True)
    call.check(world.run(call.on))


def test_nothing_goes_to_a_peer_where_there_is_no_room() -> None:
    operations: list[Any] = []
    call, counts = of_room(FORMS[0], {"routed": (14, 14)}, FULL)
    with pytest.raises(CapacityError):
        small_world(2, observer=operations.append).run(lambda group: call.on(group, counts=counts))
    away = {o.region.name for o in operations if o.region.rank != o.rank and o.kind == "store"}
    assert away == set() and any(o.region.name == "control words" for o in operations)


def test_without_room_in_a_process_a_rank_and_on_virtual_ranks(pool: Pool) -> None:
    made = pool.results(in_processes, first_refused, (0, 1))
    check_refused(FORMS[0], [m for m in made if m is not None], REFUSED[0][2])
    check_refused(FORMS[0], virtual_world(2, StandIn(sms=16)).run(first_refused), REFUSED[0][2])


OWN = tk.Schedule(make=tk.SMs(1, tile=(16, 16), at="home"), add_up=tk.SMs(3, tile=(32, 16, 16)))


def test_what_to_do_about_rows_without_room() -> None:
    """In a program of the user's, which has no capacity=, and no topk_idx."""
    longer = "give room for 15, pass a longer tensor, or parts={'R': lengths}"
    routing, rooms = Routing(Integers.of_array(np.array(FULL))), {"S": (13, 7), "R": (14, 14)}
    assert routing.without_room("route", rooms).endswith(longer)
    wrong = Routing(Integers.of_array(np.array([[-8, 2], *FULL[1:]])))
    assert wrong.without_room("route", rooms) == "route[0, 0] is -8: counts of rows are from 0 to 1073741824"
    of_layer = wrong.without_room("route", rooms, True)
    assert of_layer.startswith("8 entries of topk_idx of rank 0 are out of range: experts are 0 to 3 (")

    def own(group: Any) -> str:
        ones, sent = torch.ones(14, 16), torch.ones((13, 7)[group.rank], 16)
        with pytest.raises(CapacityError) as e:
            added_by_experts(
                ones, sent, torch.ones(2, 16), torch.tensor(FULL, dtype=torch.int32), schedule=OWN, group=group,
                parts=rooms,
            )  # fmt: skip
            group.synchronize()
        return e.value.message

    for said in small_world(2).run(own):
        assert longer in said and "capacity" not in said


def test_by_default_there_is_room_for_all_rows_on_one_rank() -> None:
    weight, counts = torch.ones(2, 1, 16, 16), torch.tensor([[3, 5], [0, 0]])

    def rank(group: Any) -> torch.Tensor:
        x = torch.full((5, 16), 1.0 + group.rank)
        return dispatch_matmul(x, weight[group.rank], counts, torch.arange(5), group=group)

    outs = small_world(2).run(rank)
    assert [len(out) for out in outs] == [10, 10] and outs[1].isnan().all() and outs[0][8:].isnan().all()
    assert torch.equal(outs[0][:8, 0], torch.tensor([16.0] * 3 + [32.0] * 5))


def test_one_graph_serves_every_routing() -> None:
    """On virtual ranks of a stand-in. One of the routings has no room, which a replay says by name, once."""
    ranks = virtual_world(2, StandIn(sms=16))
    calls = [drawn(FORMS[0], 2, seed) for seed in (1, 2)]
    too_many = torch.zeros(4, 2, dtype=torch.int32)
    too_many[0] = ROOM

    def body(group: Any) -> tuple[list[torch.Tensor], str]:
        x, out = torch.zeros_like(calls[0].given[group.rank]), torch.full((ROOM, 16), float("nan"))
        order = torch.zeros(ROOM, dtype=torch.int64)
        weight, counts = torch.zeros(2, 16, 16), torch.zeros(4, 2, dtype=torch.int32)
        given = {"schedule": calls[0].schedule, "group": group, "parts": calls[0].parts}
        dispatch_matmul.prepare(x, weight, counts, order, out, **given)
        with group.lane.device.capture() as graph:
            dispatch_matmul(x, weight, counts, order, out, **given)
        found, said = [], "nothing"
        for call in (calls[0], None, calls[1], calls[0]):
            out.fill_(float("nan"))
            counts.copy_(too_many if call is None else torch.tensor(call.counts))
            if call is not None:
                x.copy_(call.given[group.rank])
                order.copy_(call.picks[group.rank])
                weight.copy_(call.weight[group.rank])
            group.replay(graph)
            try:
                group.synchronize()
            except CapacityError as e:
                said = e.message
                assert out.isnan().all()
            found += [] if call is None else [out.clone()]
        return found, said

    made = ranks.run(body)
    for k, call in enumerate((calls[0], calls[1], calls[0])):
        call.check([found[k] for found, _ in made])
    assert all("rank 0 has room for 24 rows of routed and gets 48" in said for _, said in made), made


@pytest.mark.parametrize("form", first_of([FORMS[0], ONCE[0], LAYER[0]], 2), ids=lambda f: f[0].name)
def test_a_graph_of_another_capacity_is_not_captured(form: Any) -> None:
    """And the next call works, with the capacity that was prepared."""
    ranks, call = virtual_world(2, StandIn(sms=32)), drawn(form, 2, 1)
    smaller = dict.fromkeys(("sent", "routed"), (ROOM - 1,) * 2)
    other = drawn(form, 2, 1)
    other.parts |= {d: n for d, n in smaller.items() if d in other.parts}

    def body(group: Any) -> Any:
        call.on(group)
        said = rf"{form[0].name} is captured .* by {form[0].name}.prepare"
        with group.lane.device.capture(), pytest.raises(CaptureError, match=said):
            other.on(group)
        return call.on(group)

    call.check(ranks.run(body))
