"""Programs with routed rows give the right numbers, whatever the world, the routing and the schedule."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilelink as tk
from tests.kernels.gather_gemm import small_world
from tests.kernels.routed import (
    ALONE,
    FORMS,
    PROGRAMS,
    Routed,
    check_tables,
    in_tiles,
    named,
    random_counts,
    run,
    run_and_check,
)
from tests.parameters import covering, each_once, rarely, seldom
from tilelink.emulator import Operation
from tilelink.frontend.routes import Integers, Routing
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.kernels.expert_weight_gradient import expert_weight_gradient
from tilelink.runtime.trace import align

of_each_form = pytest.mark.parametrize("form", FORMS, ids=named)


def dear(form: tuple[Any, str], world: int) -> bool:
    """Eight ranks, which tests of their tables have in every run, and what another program has there."""
    return world == 8 or (form[0] is not dispatch_matmul and form[1] == "few")


@pytest.mark.parametrize(("form", "world"), rarely(covering(product(FORMS, (1, 2, 3, 4, 8))), dear), ids=named)
def test_integers_are_exact_twice_in_a_row_and_runs_do_what_events_say(form: tuple[Any, str], world: int) -> None:
    """The second time other rows go elsewhere, by what was prepared for the first; tables are those of its counts."""
    most, experts = (20, 2) if world < 4 else (8, 1)
    counts = [random_counts(world, experts, seed, most, empty=0.3 if world < 8 else 0.8) for seed in (1, 2)]
    room = 3 + max(max(map(sum, zip(*c, strict=True))) for c in counts) * world
    calls = [Routed(form, c, N=16, K=16, integers=True, seed=k, room=room) for k, c in enumerate(counts)]
    operations: list[Operation] = []
    lane = small_world(world, observer=operations.append)
    run_and_check(*calls, world=lane)
    assert len(lane.lane.prepared) == 1
    for n, drawn in enumerate(counts):
        (routing,) = (record := lane.groups[0].recent[n]).routings
        assert routing.counts == tuple(map(tuple, drawn))
        assert align(record.counted.events, operations, f"{form[0].name} run {n}").done
    check_tables(lane, experts)


NOTHING, ONE = [[0, 0, 0]] * 6, [[0, 0, 0]] * 4 + [[0, 37, 0], [0, 0, 0]]


IN_TURN = [(NOTHING, ONE), (ONE, NOTHING)]
FIRST = [(program, next(iter(program.schedules))) for program in PROGRAMS]
OTHERS = [pytest.param(*case, marks=pytest.mark.verify) for case in product(FORMS, IN_TURN) if case[0] not in FIRST]


@pytest.mark.parametrize(
    ("form", "routings"),
    [*covering(product(FIRST, IN_TURN)), *OTHERS],
    ids=lambda v: "from nothing" if v[0] == NOTHING else "to nothing" if v[0] == ONE else named(v),
)
def test_nothing_is_routed_or_all_of_it_to_one_expert_from_one_rank(form: tuple[Any, str], routings: Any) -> None:
    run_and_check(*(Routed(form, counts, K=20, N=16, integers=True) for counts in routings))


@each_once("program, dtype", PROGRAMS, [torch.float32, torch.float16, torch.bfloat16])
def test_errors_are_those_of_rounding(program: Any, dtype: torch.dtype) -> None:
    form = program, next(iter(program.schedules))
    run_and_check(Routed(form, random_counts(2, 2, 3, most=20), K=96, N=24, dtype=dtype))


@pytest.mark.parametrize("program", seldom(PROGRAMS, lambda p: p is dispatch_matmul), ids=lambda p: p.name)
def test_bits_depend_neither_on_the_order_of_execution_nor_on_the_schedule(program: Any) -> None:
    """In every run of the program that adds rows up."""
    counts = random_counts(3, 1, 4, most=12)
    schedules = enumerate((*program.schedules, "push"))
    results = [run([Routed((program, s), counts, K=16, N=16)], seed)[0] for seed, s in schedules]
    for outs in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], outs, strict=True))


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(f, marks=() if f[1] == "push" and f[0] is not dispatch_matmul else pytest.mark.verify)
        for f in FORMS
        if f != (dispatch_matmul, "pull")
    ],
    ids=named,
)
def test_across_nodes(form: tuple[Any, str]) -> None:
    some = {"N": 16, "K": 16, "integers": True}
    calls = [Routed(form, random_counts(4, 1, seed, most=12), **some) for seed in (5, 6)]
    run_and_check(*calls, world=small_world(4, per_node=2))


@pytest.mark.parametrize(("form", "world"), covering(product(ALONE, (1, 3, 8))), ids=named)
def test_rows_go_and_come_back_without_a_product(form: tuple[Any, str], world: int) -> None:
    experts = 2 if world < 8 else 1
    counts = [random_counts(world, experts, seed, most=12, empty=0.3 if world < 8 else 0.8) for seed in (1, 2)]
    calls = [Routed(form, c, K=24, integers=True, seed=k, room=12 * experts * world) for k, c in enumerate(counts)]
    run_and_check(*calls)


@pytest.mark.parametrize("world", [1, 3])
def test_rows_are_kept_for_gradients_of_weights_which_are_zeros_without_rows(world: int) -> None:
    counts, room = random_counts(world, 3, seed=world, most=14), 100
    counts[1] = [0] * world
    call = Routed((dispatch_matmul, "push"), counts, K=24, N=20, integers=True)
    routing = Routing(Integers.of_array(np.array(counts)))
    kept = call.references[0]["gathered"]
    dout = [torch.randint(-2, 3, (room, 20)).float() for _ in range(world)]

    def rank(group: Any) -> tuple[torch.Tensor, torch.Tensor]:
        mine, table = call.given[group.rank], torch.tensor(counts)
        gathered = torch.full((room, 24), float("nan"))
        parts = {**call.parts, "routed": (room,) * world}
        options = {"group": group, "parts": parts}
        picks = call.picks[group.rank]
        dispatch_matmul(
            mine, call.weight[group.rank], table, picks, gathered=gathered, schedule=call.schedule, **options
        )
        dweight = torch.full((3, 24, 20), float("nan"))
        schedule = tk.Schedule(weight_gradient=tk.SMs(3, tile=(None, 16, 16, 16)))
        options["parts"] = {"sent": call.parts["sent"], "routed": (room,) * world}
        expert_weight_gradient(gathered, dout[group.rank], table, dweight, schedule=schedule, **options)
        return gathered, dweight

    outs = small_world(world).run(rank)
    assert torch.equal(outs[0][0][: len(kept)].double(), kept)
    by_expert = routing.array.reshape(world, 3, world).sum(2)
    for (gathered, dweight), grads, lengths in zip(outs, dout, by_expert, strict=True):
        ends = np.cumsum(lengths)
        each = zip(ends - lengths, ends, strict=True)
        assert torch.equal(dweight, torch.stack([gathered[a:b].T @ grads[a:b] for a, b in each]))
    assert not outs[0][1][1].any()


@pytest.mark.verify
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_routings(data: Any) -> None:
    """Tiles of any size, rows of experts longer and shorter than they are, two calls in a row."""
    form = data.draw(st.sampled_from(FORMS))
    world, experts = data.draw(st.sampled_from([1, 2, 3, 4, 8])), data.draw(st.integers(1, 3))
    most = data.draw(st.sampled_from([1, 3, 17, 40]))
    tile = data.draw(st.sampled_from([16, 32]))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    sizes = {"K": data.draw(st.integers(1, 50)), "N": data.draw(st.integers(16, 40))}
    calls = []
    for _ in range(2):
        seed, empty = data.draw(st.integers(0, 99)), data.draw(st.sampled_from([0, 0.5]))
        counts = random_counts(world, experts, seed, most, empty)
        tiles = in_tiles(*form, tile)
        rows = {"add_up": 16}  # of tokens, which may be as few
        moved = {n: {"tile": (rows.get(n, tile), 16)} for n in tiles if n != "matmul" and form[1] != "engine"}
        changed = tiles.changed(matmul={"tile": (tile, 16, 16)}, **moved)
        calls.append(Routed((form[0], changed), counts, dtype=dtype, **sizes))
    run_and_check(*calls)
