"""Parallel styles against those of torch and against modules that are whole on every rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.nn import feed_forward, on_ranks, one_linear, siblings
from tests.ops.groups import GROUPS, assert_right, on_two
from tests.ops.on_ranks import on_groups
from tests.parameters import first_of
from tests.runtime.processes import Pool


@pytest.mark.parametrize("plan", on_ranks.PLANS)
def test_block_is_that_of_one_rank(pool: Pool, plan: str) -> None:
    assert_right(pool, [(0, 1)], on_ranks.block_wrong, plan, "torch")


@pytest.mark.parametrize("groups", first_of([[(1, 2, 3)], GROUPS]), ids=["of three", "of all sizes"])
def test_block_on_groups_of_other_sizes(pool: Pool, groups: list[tuple[int, ...]]) -> None:
    assert_right(pool, groups, on_ranks.block_wrong, "ours", "torch")


def test_inference_mode(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], feed_forward.inferred)


def test_on_the_meta_device(pool: Pool) -> None:
    shape = (feed_forward.BATCH, feed_forward.TOKENS, feed_forward.WIDTH)
    assert on_two(pool, feed_forward.on_meta) == [[(shape[0], shape[1] // 2, shape[2]), shape]] * 2


def test_layouts_are_those_of_torch(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], one_linear.layouts_wrong, True, 7)


@pytest.mark.verify
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("group", GROUPS, ids=len)
def test_layouts_are_those_of_torch_on_groups_of_all_sizes(pool: Pool, group: tuple[int, ...], bias: bool) -> None:
    assert_right(pool, [group], one_linear.layouts_wrong, bias)


@pytest.mark.verify
@pytest.mark.parametrize("group", [(0, 1), (0, 1, 2, 3)], ids=len)
@pytest.mark.parametrize("plan", ["ours", "replicated"])
def test_block_by_programs(pool: Pool, plan: str, group: tuple[int, ...]) -> None:
    assert_right(pool, [group], on_ranks.block_wrong, plan, "interpret")


@pytest.mark.verify
def test_eight_ranks() -> None:
    pool = Pool(8)
    try:
        for plan in on_ranks.PLANS:
            assert_right(pool, [tuple(range(8))], on_ranks.block_wrong, plan, "torch")
        assert_right(pool, [tuple(range(8))], one_linear.layouts_wrong, True)
    finally:
        pool.close()


GATHER, SCATTER, REDUCE = "all_gather_linear", "linear_reduce_scatter", "linear_all_reduce"


@pytest.mark.parametrize(
    "plan, forward, backward",
    [
        ("ours", [GATHER, SCATTER] * 2, [f"{SCATTER}_backward", f"{GATHER}_backward"] * 2),
        ("replicated", [REDUCE] * 2, [REDUCE] * 2),
    ],
)
def test_layers_that_share_their_input_send_once(
    pool: Pool, plan: str, forward: list[str], backward: list[str]
) -> None:
    for there, back in on_two(pool, on_ranks.sent, plan):
        assert there == forward and back == backward


SINGLE = [
    feed_forward.round_trip, feed_forward.checkpointed, feed_forward.broken_off, feed_forward.tied,
    feed_forward.another_argument, feed_forward.behind_torchs, feed_forward.uneven_features, feed_forward.uneven_tokens,
    feed_forward.an_embedding, feed_forward.quantized, feed_forward.in_float64, feed_forward.wrapped,
]  # fmt: skip


UNEVEN = feed_forward.uneven_features, feed_forward.uneven_tokens


@pytest.mark.parametrize("function", SINGLE, ids=lambda f: f.__name__)
def test_layers(pool: Pool, function: Callable[..., object]) -> None:
    assert_right(pool, [(1, 2, 3) if function in UNEVEN else (1, 2)], function)


@pytest.mark.parametrize("way", first_of(siblings.WAYS, 4))
def test_layers_that_share_their_input_and_are_not_computed_alike(pool: Pool, way: str) -> None:
    assert_right(pool, [(0, 1)], siblings.apart, way)


def test_a_linear_inside_of_an_adapter(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], siblings.with_adapter)


def test_layers_of_one_row(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], siblings.one_row)


def test_a_copy_of_a_model_after_one_of_the_layers(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], siblings.copied)


@pytest.mark.parametrize("backend", ["torch", pytest.param("interpret", marks=pytest.mark.verify)])
def test_autocast_holds_as_for_linear_layers(pool: Pool, backend: str) -> None:
    assert_right(pool, [(0, 1)], feed_forward.inside_autocast, backend)


def test_prepared_layers_make_nothing_new(pool: Pool) -> None:
    for found in on_two(pool, feed_forward.prepared):
        assert found == (0, 0, [])


def test_plans_name_programs(pool: Pool) -> None:
    for found in on_two(pool, feed_forward.planned):
        assert found == (["all_gather_matmul pull", "matmul_one_shot_all_reduce fused"], [])


def test_auto_stands_for_a_plan_in_every_layer_and_in_its_backward(pool: Pool) -> None:
    asked = {GATHER, f"{GATHER}_backward", SCATTER, f"{SCATTER}_backward", REDUCE}
    for found in on_two(pool, feed_forward.by_auto):
        assert found == ([], asked, [])


def test_inside_fsdp(pool: Pool) -> None:
    assert_right(pool, [(0, 1, 2, 3)], feed_forward.inside_fsdp)


@pytest.mark.parametrize("group", [(2,), pytest.param((0, 1), marks=pytest.mark.verify)], ids=len)
def test_compiled_without_a_break_and_once_for_all_tokens(pool: Pool, group: tuple[int, ...]) -> None:
    for rank in group:
        assert pool.results(on_groups, [group], feed_forward.compiled)[rank] == [(1, [])]


def test_a_compiler_refuses_a_shared_input_that_is_changed(pool: Pool) -> None:
    """Where eager calls raise ArgumentError; compilers know versions of tensors as symbols."""
    (error,) = pool.results(on_groups, [(2,)], feed_forward.compiled_changing)[2]
    said = "the input was changed since another linear had it", "Runtime assertion failed"  # torch 2.13, and 2.11
    assert any(text in error for text in said)


@pytest.mark.verify
@pytest.mark.parametrize(
    "plan, backend", [*((plan, "aot_eager") for plan in on_ranks.PLANS), ("ours", "inductor")]
)  # fmt: skip
def test_block_is_compiled_once_for_all_tokens(pool: Pool, plan: str, backend: str) -> None:
    for compiled, wrong in on_two(pool, on_ranks.compiled_block, plan, backend):
        assert (compiled, wrong) == (1, [])
