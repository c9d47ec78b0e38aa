"""GEMM-ReduceScatter and GEMM-AllReduce give the right numbers, whatever the world, the sizes and the schedule."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import gelu

from bench.check import FEW, LIMIT_OF, relative_rms_of_all
from bench.operands import LAYOUTS
from tests.kernels.drawing import SLOW, TILES, lengths
from tests.kernels.gather_gemm import run, run_and_check, small_world
from tests.kernels.gemm_reduce import FORMS, PROGRAMS, Sum, form_name
from tests.parameters import covering, each_once, rarely, seldom
from tests.programs.epilogues import quartered_gelu
from tilelink.emulator import Operation
from tilelink.kernels.matmul_one_shot_all_reduce import matmul_one_shot_all_reduce
from tilelink.kernels.matmul_ring_reduce_scatter import matmul_ring_reduce_scatter
from tilelink.runtime.trace import align

PARTS = [(7,), (20, 13), (40, 0, 33, 7)]
"""Rows of each rank: worlds of 1, 2 and 4; parts that no tile divides, and empty ones."""
EIGHT = (3, 0, 17, 1, 0, 0, 5, 2)
FIRST = [(program, next(iter(program.schedules))) for program in PROGRAMS]
CASES = [*product(FORMS, [(5, 0, 20)]), *product(FIRST, PARTS), *product(FIRST[:2], [EIGHT])]
SMALL: dict[str, Any] = {"matmul": (16, 16, 16), "moved": (16, 16)}
of_each_form = pytest.mark.parametrize("form", FORMS, ids=form_name)
of_each_program = pytest.mark.parametrize("form", FIRST, ids=form_name)


def dear(form: tuple[Any, str], parts: tuple[int, ...]) -> bool:
    """Eight ranks, which tests of late signals have in every run, and schedules of three ranks whose bits are held
    against another in every run, or that other sums have."""
    program, name = form
    return parts == EIGHT or (parts == (5, 0, 20) and (LAST[program] == name or (name == "push" and form != PUSHED)))


LAST = {program: name for program in PROGRAMS for name in program.schedules}
"""A schedule of each program, which is held against its first in every run."""
PUSHED = matmul_one_shot_all_reduce, "push"


@pytest.mark.parametrize(("form", "parts"), rarely(covering(CASES), dear), ids=form_name)
def test_integers_are_exact_twice_in_a_row_and_runs_do_what_their_events_say(
    form: tuple[Any, str], parts: tuple[int, ...]
) -> None:
    """With a bias, and weights that lie as nn.Linear keeps them."""
    call = Sum(parts, integers=True, bias=True, transposed=True).by(form)
    operations: list[Operation] = []
    world = small_world(len(parts), observer=operations.append)
    run_and_check(call, call, world=world)
    (prepared,) = world.lane.prepared.values()
    for n in range(2):
        assert align(prepared.events, operations, f"{form[0].name} run {n}").done


SAME_BITS = Sum((20, 3, 9), N=16, K=20, bias=True)


@cache
def by_first(program: Any) -> list[torch.Tensor]:
    """The results of a program's first schedule, that those of all its schedules are held against."""
    return run([SAME_BITS.by((program, next(iter(program.schedules))), **SMALL)])[0]


@pytest.mark.parametrize("form", seldom(FORMS, lambda form: LAST[form[0]] != form[1]), ids=form_name)
def test_bits_depend_neither_on_the_order_of_execution_nor_on_the_schedule(form: tuple[Any, str]) -> None:
    """Nor, where all get the whole, on the rank."""
    call = SAME_BITS.by(form, **SMALL)
    results = [by_first(form[0]), run([call], seed=1)[0]]
    call.check(results[0])
    whole = [results[0]] if call.scatters else [[of_rank] * 3 for of_rank in results[0]]
    for outs in results:
        for right in whole:
            assert all(torch.equal(a, b) for a, b in zip(outs, right, strict=True))


@each_once("form, dtype", FIRST, [torch.float16, torch.bfloat16], ids=form_name)
def test_errors_are_those_of_rounding(form: tuple[Any, str], dtype: torch.dtype) -> None:
    """Partial sums are rounded where they travel in the dtype of the result: of fewer numbers the error varies."""
    tiles: dict[str, Any] = {"matmul": (64, 128, 32), "moved": (64, 128)}
    run_and_check(Sum((40, 0, 24), N=128, K=64, dtype=dtype).by(form, **tiles))


@pytest.mark.parametrize("dtype", [pytest.param(torch.float16, marks=pytest.mark.verify), torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "form", [FIRST[0], *(pytest.param(f, marks=pytest.mark.verify) for f in FIRST[1:])], ids=form_name
)
def test_errors_of_long_sums_of_eight_ranks(form: tuple[Any, str], dtype: torch.dtype) -> None:
    tiles: dict[str, Any] = {"matmul": (16, 256, 256), "moved": (16, 256)}
    run_and_check(Sum((16,) * 8, N=256, K=512, dtype=dtype).by(form, **tiles), races=False, heap_bytes=2 << 20)


def test_partial_sums_travel_in_the_dtype_of_the_output() -> None:
    """With an output in float32, sums of rounded operands are not rounded at all."""
    call = Sum((18, 3), N=17, K=37, dtype=torch.bfloat16)
    outs = small_world(2).run(lambda g: call.on(g, out=call.poison().float()))
    assert relative_rms_of_all(outs, call.expected) < LIMIT_OF[torch.float32]


@each_once("bias, form", [False, True], FIRST, ids=form_name)
def test_nothing_to_multiply_leaves_the_bias(form: tuple[Any, str], bias: bool) -> None:
    run_and_check(Sum((3, 0, 2), N=5, K=0, bias=bias, integers=True).by(form))


@of_each_program
def test_no_rows_at_all_and_no_columns(form: tuple[Any, str]) -> None:
    run_and_check(*[Sum((0, 0), bias=True).by(form)] * 2)
    run_and_check(*[Sum((4, 1), N=n, integers=True).by(form) for n in (0, 1)])


@of_each_program
def test_a_function_of_the_user_is_applied_to_the_sum(form: tuple[Any, str]) -> None:
    """Once, after the bias."""
    call = Sum((18, 3, 0), N=17, K=37, bias=True).by(form)
    outs = small_world(3).run(lambda g: call.on(g, epilogue=quartered_gelu))
    assert relative_rms_of_all(outs, [gelu(e / 4) for e in call.expected]) < LIMIT_OF[torch.float32]


@each_once("layout, form", LAYOUTS[1:], FIRST, ids=form_name)
def test_strides_of_inputs(form: tuple[Any, str], layout: str) -> None:
    run_and_check(Sum((18, 3), N=17, K=37, layout=layout).by(form))


@each_once("form, world", FORMS, [2, 4, 8], ids=form_name)
def test_every_schedule_is_safe_at_the_sizes_of_a_layer(form: tuple[Any, str], world: int) -> None:
    """The down projection of Llama-3-8B, and one token of it."""
    program, name = form
    for tokens in (512, 1):
        report = program.check(name, world=world, dtypes="bfloat16", M=tokens, N=4096, K=14336 // world)
        assert report.verdict == "safe", str(report)
    assert (report.proof == "structural") == (program.name != "matmul_ring_reduce_scatter")


@st.composite
def sums(draw: st.DrawFn, world: int) -> Sum:
    """One call: any sizes, any schedule in any tiles."""
    tiles, moved = draw(st.tuples(*[st.sampled_from(TILES)] * 3)), draw(st.tuples(*[st.sampled_from(TILES)] * 2))
    program, name = draw(st.sampled_from(FORMS))
    rows = st.one_of(st.just(0), lengths(tiles[0], 1 + (world < 3)))
    parts = draw(st.one_of(rows.map(lambda m: (m,) * world), st.tuples(*[rows] * world)))
    call = Sum(
        parts,
        draw(lengths(tiles[1], 1 + (world < 3))),
        draw(lengths(tiles[2], 2)),
        bias=draw(st.booleans()),
        transposed=draw(st.booleans()),
        layout=draw(st.sampled_from(LAYOUTS)),
        seed=draw(st.integers(0, 99)),
    ).by((program, name), matmul=tiles, moved=moved)
    M = parts if call.scatters else sum(parts)
    fitted = program.fit(call.schedule, world=world, M=M, N=call.N, K=call.K)
    few = sum(parts) * call.N < FEW
    return Sum(**{**vars(call), "schedule": fitted, "integers": few or draw(st.booleans())})


def check_lanes(world: int, lanes: int, **options: Any) -> None:
    """Random lanes of two calls are right."""

    @settings(max_examples=lanes, deadline=None, suppress_health_check=SLOW, print_blob=True, **options)
    @given(st.tuples(*[sums(world)] * 2), st.integers(0, 2**16), st.integers(7, 12), st.integers(1, 2))
    def check(lane: tuple[Sum, ...], seed: int, sms: int, slots: int) -> None:
        run_and_check(*lane, seed=seed, sms=sms, slots=slots, heap_bytes=16 << 20)

    check()


@pytest.mark.parametrize("world", seldom([1, 2, 3], lambda world: world < 3))
def test_random_lanes_are_right(world: int) -> None:
    check_lanes(world, 2, derandomize=True, database=None)


@pytest.mark.parametrize("part", [33, 40, 48])
def test_tiles_of_the_ring_that_are_cut_short(part: int) -> None:
    """The last tile of a part has fewer steps than the others, and nobody looks for the signal of one that is not."""
    schedule = matmul_ring_reduce_scatter.schedule("ringed")
    schedule = schedule.changed(matmul={"tile": (64, 16, 16)}, ring={"tile": (32, 16, 16), "count": 2})
    assert matmul_ring_reduce_scatter.check(schedule, world=2, M=(part, part), N=1, K=1).verdict == "safe"


@pytest.mark.verify
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_new_random_lanes_are_right(world: int) -> None:
    check_lanes(world, 200 if world < 8 else 40)
