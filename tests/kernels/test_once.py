"""Programs that send a token once to a rank, and one sum of its rows there back: right numbers for every routing."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.choices import Choices
from tests.kernels.gather_gemm import small_world
from tests.kernels.once import EVERY, FORMS, PROGRAMS, Once, chosen, in_tiles
from tests.kernels.routed import named, run, run_and_check
from tests.parameters import covering, each_once, first_cases, rarely, seldom
from tilelink.emulator import Operation
from tilelink.errors import CapacityError, ScheduleError, UnsafeProgramError
from tilelink.kernels.all_gather_grouped_matmul import all_gather_grouped_matmul
from tilelink.kernels.grouped_matmul_reduce_scatter import grouped_matmul_reduce_scatter
from tilelink.runtime.trace import align

PARTS = {1: (9,), 2: (7, 0), 3: (5, 18, 2), 4: (3, 6, 0, 4), 8: (3, 1, 0, 0, 2, 0, 4, 1)}
"""Tokens of each rank, by world."""


def dear(form: tuple[Any, str], world: int) -> bool:
    """Worlds of four and eight, which other tests of routed rows have in every run."""
    return world > 3


@pytest.mark.parametrize(("form", "world"), rarely(covering(product(FORMS, PARTS)), dear), ids=named)
def test_integers_are_exact_twice_in_a_row_and_runs_do_what_events_say(form: tuple[Any, str], world: int) -> None:
    """The second time tokens go elsewhere, by what was prepared for the first."""
    each, top, sizes = (2, min(3, 2 * world), {}) if world < 8 else (1, 2, {"K": 16, "N": 12})
    calls = [Once(form, chosen(PARTS[world], each, top, s), integers=True, room=130, seed=s, **sizes) for s in (1, 2)]
    operations: list[Operation] = []
    lane = small_world(world, observer=operations.append)
    prepared = []
    for call in calls:
        run_and_check(call, world=lane)
        prepared.append(len(lane.lane.prepared))
    assert prepared[0] == prepared[1]
    for n in range(2):
        record = lane.groups[0].recent[n].counted
        assert align(record.events, operations, f"{form[0].name} run {n}").done


def extreme(kind: str) -> Choices:
    """The choices of the tokens of three ranks."""
    parts = (6, 0, 19)
    if kind == "none":
        return Choices([np.full((n, 3), -1) for n in parts], 3)
    if kind == "one":
        return Choices([np.where(np.arange(3) == 1, 4, np.full((n, 3), -1)) for n in parts], 3)
    return Choices([np.tile([3, 5, 4] if kind == "all of a rank" else [8, 0, 8], (n, 1)) for n in parts], 3)


KINDS = [("none", "one"), ("all of a rank", "one twice")]
PUSHED = [f for f in FORMS if f[1] == "push"]
"""A form of each program; what a schedule changes is in the test of all worlds."""
OTHERS = [pytest.param(*case, marks=pytest.mark.verify) for case in product(FORMS, KINDS) if case[0] not in PUSHED]


@pytest.mark.parametrize(
    ("form", "kinds"),
    [*covering(product(PUSHED, KINDS)), *OTHERS],
    ids=lambda v: ", ".join(v) if v in KINDS else named(v),
)
def test_no_token_has_an_expert_or_all_have_one_or_all_experts_of_a_rank(
    form: tuple[Any, str], kinds: tuple[str, str]
) -> None:
    """Or all have an expert twice, which counts twice."""
    run_and_check(*(Once(form, extreme(kind), K=16, N=16, integers=True, seed=k) for k, kind in enumerate(kinds)))


@each_once("program, dtype", PROGRAMS, [torch.float32, torch.float16, torch.bfloat16])
def test_errors_are_those_of_rounding(program: Any, dtype: torch.dtype) -> None:
    run_and_check(Once((program, "push"), chosen((13, 5), 3, 4, 3), K=96, N=24, dtype=dtype))


@pytest.mark.parametrize(
    ("program", "schedules"),
    first_cases(
        [
            (all_gather_grouped_matmul, {"few", "push"}),
            (grouped_matmul_reduce_scatter, set(grouped_matmul_reduce_scatter.schedules)),
            (all_gather_grouped_matmul, set(all_gather_grouped_matmul.schedules)),
        ],
        2,
    ),
    ids=lambda v: f"{len(v)}" if isinstance(v, set) else v.name,
)
def test_bits_depend_neither_on_the_order_of_execution_nor_on_the_schedule(program: Any, schedules: set[str]) -> None:
    """In every run by all schedules of the program that adds rows up. Of the other "few" runs nowhere else."""
    choices = chosen((9, 4, 11), 1, 2, 4)
    forms = [f for f in (*FORMS, (program, "push")) if f[0] is program and f[1] in schedules]
    results = [run([Once(form, choices, K=16, N=16)], seed)[0] for seed, form in enumerate(forms)]
    for outs in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], outs, strict=True))


@pytest.mark.parametrize(
    "form", seldom(EVERY, lambda f: f[1] == "engine" or (f in FORMS and f != FORMS[-2])), ids=named
)
def test_all_tokens_go_to_all_ranks_where_no_integers_say_which(form: tuple[Any, str]) -> None:
    """Twice in a row, the second time with tokens that have no expert, or two experts of a rank."""
    calls = [
        Once(form, chosen((5, 18, 2), 2, 3, s, none), K=16, N=16, integers=True, room=130, every=True, seed=s)
        for s, none in ((1, 0), (2, 0.5))
    ]
    operations: list[Operation] = []
    lane = small_world(3, observer=operations.append)
    run_and_check(*calls, world=lane)
    for n in range(2):
        record = lane.groups[0].recent[n].counted
        assert align(record.events, operations, f"{form[0].name} run {n}").done


def test_engines_and_multicast_are_told_no_rows() -> None:
    choices = chosen((5, 3), 2, 2, 1)
    engine = in_tiles(all_gather_grouped_matmul, "engine").changed(send={"tile": (16, None)})
    for schedule, said in ((engine, "the host that enqueues the copy does not know"), ("multicast", "all ranks")):
        with pytest.raises(ScheduleError, match=said):
            run([Once((all_gather_grouped_matmul, schedule), choices)])


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(f, marks=() if f == PUSHED[0] else pytest.mark.verify)
        for f in FORMS
        if f[1] not in ("pull", "by_rank")
    ],
    ids=named,
)
def test_across_nodes(form: tuple[Any, str]) -> None:
    calls = [Once(form, chosen(PARTS[4], 1, 3, seed), N=16, K=16, integers=True) for seed in (5, 6)]
    run_and_check(*calls, world=small_world(4, per_node=2))


@pytest.mark.parametrize(
    ("world", "each", "top", "tokens"), [(3, 4, 4, 4), pytest.param(8, 32, 8, 8, marks=pytest.mark.verify)], ids=str
)
def test_a_token_goes_once_to_a_rank_and_a_sum_comes_back_once(world: int, each: int, top: int, tokens: int) -> None:
    """All that is moved to other ranks is counted."""
    choices = chosen((tokens,) * world, each, top, 0, none=0)
    homes = [of // each for of in choices.experts]
    pairs = sum(len(set(of.tolist()) - {rank}) for rank, of_rank in enumerate(homes) for of in of_rank)
    rows = sum(int((of != rank).sum()) for rank, of in enumerate(homes))
    assert pairs < rows
    for program, tensor in ((all_gather_grouped_matmul, "full"), (grouped_matmul_reduce_scatter, "inbox")):
        operations: list[Operation] = []
        lane = small_world(world, observer=operations.append)
        run_and_check(Once((program, "push"), choices, K=16, N=16, integers=True), world=lane)
        away = [o for o in operations if o.region.name == tensor and o.kind == "store" and o.region.rank != o.rank]
        assert sum(o.elements for o in away) == 16 * pairs
        others = (o for o in operations if o.region.kind == "tensor" and o.region.rank != o.rank)
        assert {o.region.name for o in others} <= {tensor}


def test_4_6_copies_of_a_token_go_to_other_ranks_in_place_of_7_0() -> None:
    """Of top 8 of 256 experts on 8 ranks, drawn uniformly."""
    homes = chosen((4096,), 256, 8, 1, none=0).experts[0] // 32  # of tokens of rank 0
    once, rows = (homes[:, :, None] == np.arange(1, 8)).any(1).sum(), (homes != 0).sum()
    assert abs(once / len(homes) - 4.6) < 0.05 and abs(rows / len(homes) - 7.0) < 0.05


def test_a_simulation_counts_the_rows_that_go_where_it_is_told_which() -> None:
    choices = chosen((64,) * 8, 32, 8, 2, none=0)
    integers = [choices.integers(rank) for rank in range(8)]
    wanted = torch.cat([i["wanted"] for i in integers]).numpy()
    at = torch.stack([i["at"] for i in integers]).numpy()
    sizes = {"tokens": 512, "K": 256, "N": 256, "experts": 32, "routed": choices.counts.tolist()}
    remote = sum(int((of >= 0).sum()) - int((of[:, r] >= 0).sum()) for r, of in enumerate(np.split(wanted, 8)))
    for program, more in (
        (all_gather_grouped_matmul, {"wanted": wanted}),
        (grouped_matmul_reduce_scatter, {"wanted": wanted, "at": at, "top": 8}),
    ):
        on = {"machine": "h800", "world": 8, "dtypes": "bfloat16", **sizes}
        told = program.simulate("push", **on, **more)
        untold = program.simulate("push", **on, **{n: v for n, v in more.items() if n == "top"})
        assert told.steps.size.sum() == pytest.approx(remote * 256 * 2)
        assert untold.steps.size.sum() == 7 * 512 * 256 * 2 and told.makespan_us < untold.makespan_us


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_structure_shows_that_every_routing_is_safe(program: Any) -> None:
    sizes = {"tokens": 24, "K": 16, "N": 16, "experts": 2, "routed": 40}
    sizes |= {"top": 2} if program is grouped_matmul_reduce_scatter else {}
    for form, more in [(f, {}) for f in EVERY] + [(f, {"wanted": "int32"}) for f in FORMS]:
        if form[0] is program:
            dtypes = dict.fromkeys(program.of_any_dtype - program.optional, "float32") | more
            report = program.check(in_tiles(*form), world=4, dtypes=dtypes, **sizes)
            assert (report.verdict, report.proof) == ("safe", "structural")


def test_more_rows_than_room_are_an_error_on_every_rank_and_the_next_call_works() -> None:
    choices = chosen((9, 5), 2, 3, 1, none=0)
    for program, schedule in (*((p, "push") for p in PROGRAMS), (all_gather_grouped_matmul, "engine")):
        good = Once((program, schedule), choices, K=16, N=16, integers=True, room=40, every=schedule == "engine")
        lane = small_world(2)

        def refused(group: Any, program: Any = program, good: Once = good) -> None:
            parts = {**good.parts, "routed": (3, 3)}
            out = torch.zeros(3 if good.sends else good.parts["tokens"][group.rank], 16)
            picks, counts = good.picks[group.rank], torch.from_numpy(good.counts.astype(np.int32))
            given = {"token": torch.zeros(3).int()} if good.sends else {"at": picks["at"]}
            x = good.given[group.rank] if good.sends else torch.zeros(3, 16)
            options = {"schedule": good.schedule, "group": group, "parts": parts}
            options["wanted"] = None if good.every else picks["wanted"]
            program(x, good.weight[group.rank], counts, out=out, **given, **options)
            group.synchronize()

        with pytest.raises(CapacityError, match="rows of routed and gets"):
            lane.run(refused)
        run_and_check(good, world=lane)


def test_a_token_has_at_least_one_choice() -> None:
    call = Once((grouped_matmul_reduce_scatter, "push"), chosen((4, 4), 2, 0, 1), integers=True, room=9)
    with pytest.raises(UnsafeProgramError, match=r"is entry 0 along top, which has 0"):
        run([call])


@pytest.mark.verify
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_routings(data: Any) -> None:
    """Any tokens, experts and tiles, two calls in a row."""
    form, every = data.draw(st.sampled_from([*((f, True) for f in EVERY), *((f, False) for f in FORMS)]))
    world, each = data.draw(st.sampled_from([1, 2, 3, 4, 8])), data.draw(st.integers(1, 4))
    tokens = [data.draw(st.sampled_from([0, 1, 3, 17])) for _ in range(world)]
    top, none = data.draw(st.integers(1, min(8, each * world))), data.draw(st.sampled_from([0, 0.3, 0.9]))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    sizes = {"K": data.draw(st.integers(1, 50)), "N": data.draw(st.integers(16, 40))}
    schedule = in_tiles(*form, data.draw(st.sampled_from([16, 32])))
    options: dict[str, Any] = {"dtype": dtype, "every": every, **sizes}
    run_and_check(*(Once((form[0], schedule), chosen(tokens, each, top, seed, none), **options) for seed in (1, 2)))
