"""all_gather_matmul gives the right numbers, whatever the world, the sizes, the schedule and the order of execution."""

from __future__ import annotations

import mmap
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilelink as tk
from bench.check import LIMIT_OF, relative_rms_of_all
from bench.operands import LAYOUTS
from tests.kernels.drawing import SLOW, calls
from tests.kernels.gather_gemm import ENGINES, NAMED, Call, in_tiles, run, run_and_check, small_world
from tests.parameters import each_once, rarely, seldom
from tilelink.errors import StrideError
from tilelink.kernels.all_gather_matmul import all_gather_matmul

MAP_NORESERVE = 0x4000  # of Linux; Python names it from 3.13 on


LANES = [(1, 40), (2, 60), (3, 50), (4, 40), (8, 10)]
"""By world: 200 in all, which make verify runs; make test has a few of them."""
SOME = [(1, 1), (2, 1), (3, 1), (4, 1), (8, 1)]


@pytest.mark.parametrize(("world", "lanes"), [*SOME, *(pytest.param(*of, marks=pytest.mark.verify) for of in LANES)])
def test_any_three_calls_in_a_row_are_right(world: int, lanes: int) -> None:
    """Of 200 lanes, fewer the more they cost. Slots are picked at random too: any pick will do."""
    lane = st.tuples(*[calls(world)] * 3)
    picks = st.tuples(*[st.none() | st.integers(0, 2)] * 3)
    seed, sms, slots = st.integers(0, 2**16), st.integers(5, 9), st.integers(1, 3)

    @settings(max_examples=lanes, deadline=None, derandomize=True, database=None, suppress_health_check=SLOW)
    @given(lane, picks, seed, sms, slots)
    def check(lane: tuple[Call, ...], picks: tuple[int | None, ...], seed: int, sms: int, slots: int) -> None:
        picked = [replace(c, slot=None if p is None else p % slots) for c, p in zip(lane, picks, strict=True)]
        run_and_check(*picked, seed=seed, sms=sms, slots=slots)

    check()


@pytest.mark.versions
@each_once("schedule, dtype", list(NAMED), list(LIMIT_OF))
def test_uneven_parts_and_twice_in_a_row(schedule: str, dtype: torch.dtype) -> None:
    call = Call((5, 0, 33), N=24, K=40, dtype=dtype, schedule=schedule, bias=True, transposed=True)
    run_and_check(call, call)


OF_DTYPES = dict(zip(LIMIT_OF, NAMED, strict=False))
"""A schedule for each dtype. The others have exact integers in every run, which no order changes either."""


@pytest.mark.parametrize(
    ("schedule", "dtype"),
    rarely(product(NAMED, LIMIT_OF), lambda s, d: OF_DTYPES[d] != s or s == "push"),
    ids=str,
)
def test_bits_do_not_depend_on_the_order_of_execution(schedule: str, dtype: torch.dtype) -> None:
    call = Call((20, 7), N=16, K=40, dtype=dtype, schedule=in_tiles(schedule, (16, 32), (16, 16, 16)), bias=True)
    first = run_and_check(call, seed=0)[0]
    for seed in (1, 2):
        again = run([call], seed=seed)[0]
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@each_once("bias, schedule", [False, True], list(NAMED))
def test_nothing_to_multiply_leaves_the_bias(schedule: str, bias: bool) -> None:
    call = Call((3, 0, 2), N=5, K=0, schedule=schedule, bias=bias, integers=True)
    (outs,) = run_and_check(call)
    for out, b in zip(outs, call.biases, strict=True):
        assert torch.equal(out, torch.zeros(5, 5) if b is None else b.expand(5, 5))


@each_once("parts, schedule", [(0, 0), (0,)], list(NAMED))
def test_no_rows_at_all(schedule: str, parts: tuple[int, ...]) -> None:
    run_and_check(*[Call(parts, schedule=schedule, bias=True)] * 2)


@each_once("N, schedule", [0, 1], list(NAMED), dear=lambda _, schedule: schedule not in ("push", "pull", "engine"))
def test_one_column_and_none(schedule: str, N: int) -> None:
    run_and_check(*[Call(parts, N=N, schedule=schedule, integers=True) for parts in ((4, 1), (40, 2))])


@each_once("layout, schedule", LAYOUTS, list(NAMED))
def test_strides_of_inputs(schedule: str, layout: str) -> None:
    run_and_check(Call((18, 3), N=17, K=37, schedule=schedule, layout=layout, transposed=True))


@pytest.mark.parametrize("schedule", list(NAMED))
def test_inputs_may_repeat_what_is_in_memory_once(schedule: str) -> None:
    call = Call((18, 3), N=17, K=37, schedule=schedule)
    row, column = torch.randn(1, 37), torch.randn(37, 1)
    call.__dict__["x"] = [row.expand(m, 37) for m in call.parts]
    call.__dict__["weight"] = [column.expand(37, 17)] * 2
    run_and_check(call)


@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (1, 2)], ids=str)
def test_rows_that_overlap_in_memory(strides: tuple[int, int]) -> None:
    """As Tensor.unfold makes them: an element of memory is one of several rows."""
    call = Call((5, 9), N=17, K=37, schedule="push")
    call.__dict__["x"] = [torch.randn(200).as_strided((m, 37), strides) for m in call.parts]
    run_and_check(call)


def test_an_output_of_strange_strides_gets_its_elements_and_no_others() -> None:
    call = Call((18, 3), N=17, K=37)
    wide = [torch.full((25, 40), -7.0) for _ in range(2)]
    expected = [w.clone() for w in wide]
    results = small_world(2).run(lambda g: call.on(g, out=wide[g.rank][2:23, 1:35:2]))
    call.check(results)
    for w, e, y in zip(wide, expected, results, strict=True):
        e[2:23, 1:35:2] = y
        assert torch.equal(w, e)


def far_apart(rows: int, columns: int, stride: int, offset: int = 0) -> torch.Tensor:
    """A matrix with rows far apart, in memory that is reserved and hardly touched."""
    try:
        memory = mmap.mmap(-1, 2 * rows * stride, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    except OSError as e:
        pytest.skip(f"no {2 * rows * stride} bytes of addresses: {e}")
    elements = torch.frombuffer(memory, dtype=torch.bfloat16)
    return elements.as_strided((rows, columns), (stride, 1), storage_offset=offset)


@pytest.mark.parametrize("schedule", list(NAMED))
def test_elements_beyond_the_reach_of_32_bits(schedule: str) -> None:
    rows, stride = 300, 2**24 - 1
    tiles = in_tiles(schedule, (128, 32), (128, 32, 32))
    call = Call((rows,), N=24, K=20, dtype=torch.bfloat16, schedule=tiles)
    x, out = far_apart(rows, 20, stride), far_apart(rows, 24, stride, offset=64)
    call.__dict__["x"] = [x.copy_(call.x[0])]
    call.check(small_world(1, races=False).run(lambda g: call.on(g, out=out)))


PUBLISHING = ENGINES["reader"].changed(gather={"tile": (64, None)}, matmul={"tile": (64, 32, 32)})


@pytest.mark.parametrize("schedule", ["push", "pull", "multicast", PUBLISHING], ids=[*list(NAMED)[:3], "engine"])
def test_a_block_does_not_reach_farther_than_32_bits(schedule: tk.Schedule | str) -> None:
    """Inside a block kernels count in 32 bits: they would go to a wrong place without a word."""
    call = Call((40,), N=24, K=20, dtype=torch.bfloat16, schedule=schedule)
    call.__dict__["x"] = [far_apart(40, 20, 2**28)]
    with pytest.raises(StrideError, match=r"x has strides \(268435456, 1\): blocks of \d+ x \d+ reach \d+ elements"):
        small_world(1).run(call.on)


@pytest.mark.parametrize(("of", "out"), [(torch.float16, torch.float32), (torch.float32, torch.bfloat16)], ids=str)
def test_the_output_has_the_dtype_that_is_given(of: torch.dtype, out: torch.dtype) -> None:
    call = Call((18, 3), N=17, K=37, dtype=of, bias=True)
    results = small_world(2).run(lambda g: call.on(g, out=call.poison().to(out)))
    assert all(y.dtype == out for y in results)
    assert relative_rms_of_all(results, call.expected) < LIMIT_OF[out]


def test_outputs_that_are_not_given_are_made() -> None:
    call = Call((18, 3), N=17, K=37, dtype=torch.bfloat16)
    call.check(small_world(2).run(call.on))


def test_the_default_schedule_is_the_first_beside_the_program() -> None:
    call = Call((18, 3), N=17, K=37, schedule=None)  # type: ignore[arg-type]
    run_and_check(call)
    assert next(iter(all_gather_matmul.schedules)) == "push"


@pytest.mark.parametrize("schedule", seldom([n for n in NAMED if n != "engine"], lambda n: n != "push"))
def test_cells_of_signals_may_be_chosen(schedule: str) -> None:
    """The grid of the signals is the schedule's to coarsen: one signal for two rows of tiles."""
    tiles = in_tiles(schedule, (16, 32), (32, 32, 32))
    coarse = tk.Schedule(cells={"full": (32, None)}, **tiles)
    run_and_check(*[Call((70, 33), N=17, K=37, schedule=coarse)] * 2, sms=40)
