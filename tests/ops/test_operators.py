"""Results and gradients of operators, in plain torch and by the programs, against unsharded float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread

import pytest
import torch
import torch.distributed as dist

from tests.ops import on_ranks
from tests.ops.groups import GROUPS, assert_right, on_two
from tests.ops.sharded import EACH, GATHER, REDUCE, SCATTER, Call, calls
from tests.parameters import first_cases, first_of
from tests.runtime.processes import Pool
from tilelink.emulator import Execution
from tilelink.plans.names import plans

BF16, FP16 = torch.bfloat16, torch.float16
ALL = "x", "weight"
ODD = [
    Call(GATHER, (5, 16), (24,), lengths=(5, 0), strided=True),
    Call(GATHER, (3, 32), (24,), dim=-1, bias=True),
    Call(SCATTER, (3, 16), (24,), dim=1, lengths=(7, 17), bias=True),
    Call(SCATTER, (4, 16), (24,), bias=True, frozen=("x", "weight")),
    Call(GATHER, (4, 16), (24, 8), bias=True, frozen=("x", "weight")),
    Call(GATHER, (0, 16), (24,), keep=True),
    Call(SCATTER, (0, 16), (24,), bias=True),
    Call(REDUCE, (0, 16), (24,)),
]


def test_random_calls_on_groups_of_all_sizes(pool: Pool) -> None:
    assert_right(pool, GROUPS, on_ranks.wrong, partial(calls, number=8, seed=0), "torch")


def test_uneven_empty_and_last(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], on_ranks.wrong, ODD, "torch")


def test_names_of_older_torch(pool: Pool) -> None:
    for wrong in on_two(pool, on_ranks.by_old_names, EACH):
        assert wrong == []


def test_programs_give_the_same(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], on_ranks.wrong, EACH, "interpret")


def beside_a_run(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of calls that a second thread makes while another runs kernels, and of the same calls after it."""
    call, began, goes_on = Call(GATHER, (6, 16), (8,), seed=3), Event(), Event()

    def host(rank: int) -> None:
        began.set()
        goes_on.wait(60)

    with on_ranks.computed_by("interpret", group):
        first = Thread(target=lambda: Execution(1).run(host))
        first.start()
        began.wait(60)
        refused = "WorldError: another execution is running in this process, which has one at a time"
        wrong = [e for _ in range(2) for e in on_ranks.unsaid(lambda: on_ranks.made(group, call), refused)]
        goes_on.set()
        first.join()
    return wrong + on_ranks.wrong(group, [call, replace(call, seed=4)], "interpret")


def test_a_second_thread_is_refused_and_its_group_goes_on(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], beside_a_run)


@pytest.mark.verify
def test_programs_where_shapes_are_odd(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], on_ranks.wrong, ODD, "interpret")


@pytest.mark.verify
@pytest.mark.parametrize("backend, number, seed", [("torch", 40, 1), ("interpret", 8, 2), ("interpret", 8, 3)])
@pytest.mark.parametrize("group", GROUPS, ids=len)
def test_many_random_calls(pool: Pool, group: tuple[int, ...], backend: str, number: int, seed: int) -> None:
    """With those of eight ranks, over two hundred configurations."""
    assert_right(pool, [group], on_ranks.wrong, partial(calls, number=number, seed=seed), backend)


@pytest.mark.verify
def test_eight_ranks() -> None:
    pool = Pool(8)
    try:
        eight = [tuple(range(8)), (7, 1, 4, 5, 2)]
        assert_right(pool, eight, on_ranks.wrong, partial(calls, number=15, seed=2), "torch")
        assert_right(pool, eight[:1], on_ranks.wrong, partial(calls, number=3, seed=3), "interpret")
    finally:
        pool.close()


@pytest.mark.verify
@pytest.mark.parametrize("plan", ["fused", "push", "pull"])
def test_plans(pool: Pool, plan: str) -> None:
    scattered = [c for c in EACH if c.operator != GATHER]
    assert_right(pool, [(0, 1)], on_ranks.wrong, scattered if plan == "fused" else EACH, "interpret", plan)


PLANS = {
    "split": (Call(GATHER, (5, 16), (20, 6), dtype=BF16, bias=True), "all_gather_split_matmul split"),
    "ring": (Call(SCATTER, (8, 16), (20,), dtype=BF16, reduce_op="avg"), "matmul_ring_reduce_scatter ringed"),
    "one_shot": (Call(REDUCE, (3, 16), (20,), bias=True, reduce_op="avg"), "matmul_one_shot_all_reduce fused"),
    "one_shot:push": (Call(REDUCE, (5, 16), (20,), dtype=FP16, bias=True), "matmul_one_shot_all_reduce push"),
    "fabric": (Call(REDUCE, (4, 16), (20,), bias=True), "matmul_fabric_all_reduce multicast"),
    "multicast": (Call(REDUCE, (3, 16), (20,)), "matmul_all_reduce multicast"),
    "torch": (Call(SCATTER, (8, 16), (20,), bias=True), "matmul_reduce_scatter_backward push"),
}
"""Calls, and the first program that each runs with this plan, with its schedule."""


@pytest.mark.parametrize(
    ("group", "names"),
    first_cases([((0, 1), ["split", "ring", "one_shot:push", "torch"]), ((0, 1), PLANS), ((0, 1, 2, 3), PLANS)]),
    ids=["two, some", "two", "four"],
)
def test_plans_name_programs(pool: Pool, group: tuple[int, ...], names: Iterable[str]) -> None:
    calls, wanted = zip(*(PLANS[name] for name in names), strict=True)
    if names is not PLANS:  # in every run few backwards: that whose program is named, and that without a bias
        ends = (c.bias and name != "torch" for c, name in zip(calls, names, strict=True))
        calls = tuple(replace(c, frozen=ALL) if end else c for c, end in zip(calls, ends, strict=True))
    for (found,) in pool.results(on_ranks.on_groups, [group], on_ranks.planned, calls, list(names))[: len(group)]:
        assert found == list(wanted)


@pytest.mark.verify
@pytest.mark.parametrize("seed", range(11, 15))
@pytest.mark.parametrize("group", GROUPS, ids=len)
def test_random_calls_by_random_plans(pool: Pool, group: tuple[int, ...], seed: int) -> None:
    """160 configurations."""
    assert_right(pool, [group], on_ranks.wrong_by_plans, 10, seed)


def test_plans_that_there_are() -> None:
    """Every schedule of every program that computes a forward, each once; the page has them all."""
    page = (Path(__file__).parents[2] / "docs" / "operators.md").read_text()
    for operator in (GATHER, SCATTER, REDUCE):
        assert len(set(plans(operator).values())) == len(plans(operator))
        assert all(f'`"{plan}"`' in page and f"`{p.name}`" in page for plan, (_, p, _) in plans(operator).items())
    assert {"fused", "ring"} <= plans(SCATTER).keys()


@pytest.mark.parametrize("backend", ["torch", "interpret"])
def test_bits_do_not_change_from_call_to_call_and_rank_to_rank(pool: Pool, backend: str) -> None:
    (same, first), (also, second) = on_two(pool, on_ranks.twice, EACH, backend)
    assert same and also
    assert len(first) == len(EACH) - 1 and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("prepared", [on_ranks.prepared, on_ranks.prepared_to_keep])
def test_prepared_calls_make_nothing_new(pool: Pool, prepared: Callable[..., object]) -> None:
    for found in on_two(pool, prepared):
        assert found == (0, 0, [])


def test_what_is_kept_is_gathered_once(pool: Pool) -> None:
    for names, wrong in on_two(pool, on_ranks.programs_of_what_is_kept):
        assert names == ["all_gather_matmul", "matmul_reduce_scatter"] and wrong == []


@pytest.mark.parametrize("backend", first_of(["torch", "interpret"]))
def test_autocast_holds_as_for_linear_layers(pool: Pool, backend: str) -> None:
    for wrong in on_two(pool, on_ranks.inside_autocast, backend):
        assert wrong == []


@pytest.mark.parametrize(
    ("group", "frozen"), first_cases([((0, 1), ALL), ((1, 2, 3), ())]), ids=["forward", "and backward"]
)
def test_partial_sums_of_means_travel_in_the_dtype_of_x(
    pool: Pool, group: tuple[int, ...], frozen: tuple[str, ...]
) -> None:
    scattered, reduced = (
        Call(o, (6, 16), (20,), dtype=BF16, bias=True, reduce_op="avg", frozen=frozen) for o in (SCATTER, REDUCE)
    )
    turned = replace(scattered, shape=(3, 16), weights=(18,), dim=1, bias=False, frozen=frozen[:1])
    means = [scattered, turned, reduced]
    found = pool.results(on_ranks.on_groups, [group], on_ranks.sent_in, means)
    for ((dtypes, wrong),) in found[group[0] : group[-1] + 1]:
        assert (dtypes, wrong) == ({BF16}, [])


def test_a_bias_of_columns_is_added_before_the_one_rounding(pool: Pool) -> None:
    """Where the last dimension is scattered: partial sums travel in float32 then."""
    call = Call(SCATTER, (3, 16), (18,), dim=1, dtype=BF16, bias=True, frozen=("x", "weight"))
    ((dtypes, wrong),) = pool.results(on_ranks.on_groups, [(2,)], on_ranks.sent_in, [call])[2]
    assert (dtypes, wrong) == ({torch.float32}, [])


@pytest.mark.parametrize("group", [(2,), (0, 1)], ids=len)
def test_where_results_lie(pool: Pool, group: tuple[int, ...]) -> None:
    for rank in group:
        assert pool.results(on_ranks.on_groups, [group], on_ranks.memory_of_results)[rank] == [[]]


def test_a_lane_is_made_once(pool: Pool) -> None:
    (said,) = pool.results(on_ranks.on_groups, [(2,)], on_ranks.lane_twice)[2]
    assert said == "the group already has a lane, made without sms: pass options before the first call"


def test_lengths_in_all_forms(pool: Pool) -> None:
    for same in on_two(pool, on_ranks.lengths_in_all_forms):
        assert same == [True] * 6


@pytest.mark.parametrize("frozen", first_of([ALL, ()]), ids=["forward", "and backward"])
def test_groups_at_once(pool: Pool, frozen: tuple[str, ...]) -> None:
    for wrong in pool.results(on_ranks.in_several_groups, [Call(SCATTER, (8, 16), (12,), bias=True, frozen=frozen)]):
        assert wrong == []
