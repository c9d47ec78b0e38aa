"""Layers of experts, in plain torch and by the programs, against all experts in one place in float64."""

from __future__ import annotations

import re
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch

from tests.ops import of_experts
from tests.ops.groups import GROUPS, assert_right, on_two
from tests.ops.layers import Layer
from tests.parameters import covering, first_cases, first_of
from tests.runtime.processes import Pool
from tilelink.ops.moe_routing import expert_places, placed

BY_PROGRAMS = [Layer((5, 0, 3)), Layer((4,), 3, 1, none=0.4, K=24, seed=1), Layer((6,), 2, 2, skewed=True, seed=2),
               Layer((3, 2), 2, 3, none=0.2, seed=3, slices=0)]  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "seed", "number"), first_cases([([(1, 2, 3)], 0, 1), (GROUPS, 0, 9), (GROUPS, 1, 70)])
)
def test_random_layers(pool: Pool, groups: list[tuple[int, ...]], seed: int, number: int) -> None:
    """On groups of all sizes in `make verify`."""
    assert_right(pool, groups, of_experts.drawn, number, seed)


CHANGED = "push,dispatch.count=2,combine.count=2", "one_kernel:few,gate_up.wave=1,down.wave=1"


@pytest.mark.parametrize(
    ("plan", "layer"),
    first_cases([("one_kernel", BY_PROGRAMS[2]), *product(("pull", "once", *CHANGED), BY_PROGRAMS),
                 *product(["one_kernel"], [*BY_PROGRAMS[:2], *BY_PROGRAMS[3:]])]),
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_programs_give_the_same(pool: Pool, plan: str, layer: Layer) -> None:
    assert_right(pool, [(0, 1)], of_experts.wrong, [layer], "interpret", plan)


ODD = [Layer((0,)), Layer((0, 4), 3, 2, K=37, hidden=21, seed=4), Layer((5, 2), 3, 2, twice=True, seed=5),
       Layer((4, 2), 2, 2, nan=True, skewed=True, seed=6)]  # fmt: skip
"""No token anywhere; none on a rank, and sizes that no tile divides; an expert twice, with the choice between; NaN."""


@pytest.mark.parametrize(
    ("plan", "layer"),
    first_cases([*((None, layer) for layer in ODD), ("once", ODD[2]), ("one_kernel", ODD[3]), ("push", ODD[0]),
                 *product(("push", "few"), ODD[1:]), *product(("few", "once", "one_kernel"), ODD[:1]),
                 *product(("once", "one_kernel"), ODD[1:2]), ("once", ODD[3]), ("one_kernel", ODD[2])], len(ODD) + 3),
    ids=lambda v: "" if isinstance(v, Layer) else str(v),
)
def test_odd_tokens_are_no_error(pool: Pool, plan: str | None, layer: Layer) -> None:
    assert_right(pool, [(0, 1)], of_experts.wrong, [layer], "interpret" if plan else "torch", plan)


@pytest.mark.verify
@pytest.mark.parametrize("plan", ["once:engine", "once:multicast"])
def test_all_tokens_go_to_all_ranks_with_a_slice_of_every_expert_on_each(pool: Pool, plan: str) -> None:
    assert_right(pool, [(0, 1)], of_experts.wrong, [Layer((5, 3), none=0.3, slices=0)], "interpret", plan)


@pytest.mark.parametrize(
    ("groups", "number"), first_cases([([(2,), (0, 1)], 0), (GROUPS, 3)]), ids=["some", "of all sizes"]
)
def test_tokens_go_once_in_plain_torch_too(pool: Pool, groups: list[tuple[int, ...]], number: int) -> None:
    assert_right(pool, groups, of_experts.drawn, number, 2, "once")


@pytest.mark.verify
def test_tokens_go_once_in_other_worlds_and_schedules(pool: Pool) -> None:
    assert_right(pool, GROUPS, of_experts.drawn, 40, 3, "once")
    of_dtypes = [Layer((3,), dtype=dtype, seed=5) for dtype in (torch.float16, torch.bfloat16)]
    assert_right(pool, [(0, 1, 2)], of_experts.wrong, [*BY_PROGRAMS, *of_dtypes], "interpret", "once")
    assert_right(pool, [(0, 1)], of_experts.wrong, BY_PROGRAMS, "interpret", "once:few")
    assert_right(pool, [(3,)], of_experts.wrong, BY_PROGRAMS[:1], "interpret", "once")


def test_a_routing_of_another_plan_is_an_error_on_every_rank(pool: Pool) -> None:
    for said in on_two(pool, of_experts.of_another_routing):
        assert re.match(r"ArgumentError: plan is 'once', and the routing was not made for it: moe_routing\(", said)


@pytest.mark.parametrize(
    ("fastest", "programs"),
    first_cases(
        [
            ("push,combine.count=2", ["dispatch_matmul push", "matmul_combine push,combine.count=2"]),
            ("once:by_rank", ["all_gather_grouped_matmul by_rank", "grouped_matmul_reduce_scatter push"]),
            (None, ["mixture_of_experts few"]),
            ("one_kernel:few", ["mixture_of_experts few"]),
            ("pull", ["dispatch_matmul pull", "matmul_combine pull"]),
        ],
    ),
)
def test_auto_takes_the_plan_that_is_predicted_to_be_the_fastest(
    pool: Pool, fastest: str | None, programs: list[str]
) -> None:
    for ran, wrong in on_two(pool, of_experts.by_auto, "h800", fastest):
        assert ran[: len(programs)] == programs and wrong == []


@pytest.mark.verify
def test_programs_of_other_worlds_and_dtypes(pool: Pool) -> None:
    of_dtypes = [Layer((3,), dtype=dtype, seed=5) for dtype in (torch.float16, torch.bfloat16)]
    assert_right(pool, [(0, 1, 2)], of_experts.wrong, of_dtypes, "interpret")
    assert_right(pool, [(3,)], of_experts.wrong, BY_PROGRAMS[:1], "interpret")


@pytest.mark.parametrize("backend", ["torch", "interpret"])
def test_tokens_go_and_come_back(pool: Pool, backend: str) -> None:
    for found in on_two(pool, of_experts.parts_of_it, backend):
        assert found == [True, True, True]


def test_copies_of_an_expert_take_turns() -> None:
    places = torch.tensor([[-1, 4, 0], [3, -1, -1], [-1, -1, -1]])
    given = torch.tensor([[0, 1], [0, -1], [0, 3], [2, -2]])
    assert placed(given, places, 6, rank=0).tolist() == [[4, 3], [0, -1], [4, 6], [6, -2]]
    assert placed(given, places, 6, rank=1)[:3, 0].tolist() == [0, 4, 0], "few tokens of all ranks, spread out"


@pytest.mark.parametrize("backend", first_of(["torch", "interpret"]))
def test_a_gradient_that_is_needed_alone_is_the_same(pool: Pool, backend: str) -> None:
    for found in on_two(pool, of_experts.one_gradient_alone, backend):
        assert found == []


@pytest.mark.verify
@pytest.mark.parametrize("part", range(3))
def test_opcheck(pool: Pool, part: int) -> None:
    """Of every third call of an operator."""
    on_two(pool, of_experts.opchecked, part)


@pytest.mark.parametrize("plan", first_of(["once", "auto", None, "one_kernel"], 2))
@pytest.mark.parametrize(
    ("group", "backend"), first_cases([((2,), "aot_eager"), ((0, 1), "aot_eager"), ((0, 1), "inductor")])
)
def test_compiled_without_a_break(pool: Pool, group: tuple[int, ...], backend: str, plan: str | None) -> None:
    """In every run by the plan that "auto" stands for, and by the one with operators that others have not."""
    assert_right(pool, [group], of_experts.compiled, backend, plan)


def test_under_autocast(pool: Pool) -> None:
    for dtype, wrong in on_two(pool, of_experts.under_autocast):
        assert dtype == torch.bfloat16 and wrong == []


def half(rows: torch.Tensor) -> torch.Tensor:
    """No SwiGLU."""
    return rows.chunk(2, -1)[0]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"skewed": True, "capacity": 20}, r"CapacityError: .*room for 20 rows (of routed )?and gets 24; .*capacity=24"),
    ({"expert": 9}, r"CapacityError: (.*: )?1 entry of topk_idx of rank 0 is out of range: experts are 0 to 3 \("),
    ({"expert": 3, "slices": 2}, r"CapacityError: (.*: )?5 entries of topk_idx of rank 0 are out of range"),
    ({"expert": -2}, r"CapacityError: (.*: )?1 entry of topk_idx of rank 0 is out of range"),
]


DEAR = [("interpret", plan) for plan in ("once", "few", "pull")]
BY_WHAT = [("interpret", None), ("torch", None), ("torch", "once"), ("interpret", "one_kernel"), *DEAR]


def what(by_or_bad: tuple[Any, Any]) -> str:
    """What a backend and a plan, or a bad call, is called in the name of a test."""
    return by_or_bad[1] if isinstance(by_or_bad[0], dict) else "-".join(map(str, by_or_bad))


@pytest.mark.parametrize(("by", "bad"), covering(product(BY_WHAT, BAD), lambda by, _: by not in DEAR), ids=what)
def test_what_only_the_device_sees_is_an_error_on_every_rank(
    pool: Pool, by: tuple[str, str | None], bad: tuple[dict[str, Any], str]
) -> None:
    (backend, plan), (options, said) = by, bad
    call = partial(of_experts.told, backend=backend, plan=plan, **options)
    for text, wrong in on_two(pool, call):
        assert re.match(said, text, re.DOTALL) and wrong == [], text
        assert backend != "torch" or "program" not in text, "plain torch calls none"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"plan": "engine"}, "ScheduleError: plan is 'engine'; there are push, pull, few, columns, once, "),
        ({"plan": "once:engine"}, "ScheduleError: plan is 'once:engine', which sends all tokens to all ranks: it "),
        ({"plan": "one_kernel:ring"}, "ScheduleError: plan is 'one_kernel:ring'; plans of mixture_of_experts are one_"),
        ({"plan": "one_kernel", "activation": torch.relu}, "ArgumentError: plan='one_kernel' computes SwiGLU inside"),
        ({"plan": "one_kernel", "activation": half}, r"ArgumentError: .* activation=half \(.*experts.py:\d+\) is"),
        ({"activation": "gelu"}, "ArgumentError: activation='gelu'; it must be a function of rows"),
        ({"activation": torch.relu}, r"ShapeError: activation=relu maps \(24, 32\) to .*; down takes \(24, 16\)"),
        ({"slices": 3}, "ArgumentError: slices=3; it must divide the number of ranks, 2"),
        ({"given": {"gate_up": torch.zeros(2, 31, 16)}}, r"ShapeError: gate_up has shape \(2, 31, 16\), down"),
        ({"tokens": 5}, "ArgumentError: tokens=5 is less than the 6 tokens of this rank"),
        ({"given": {"topk_idx": torch.zeros(5, 2)}}, r"ShapeError: x, .* \(6, 16\), \(5, 2\), \(6, 2\)"),
        ({"given": {"topk_idx": torch.zeros(6, 2)}}, "DtypeError: topk_idx is float32; it must be integers"),
        ({"given": {"topk_weights": torch.zeros(6, 3)}}, r"ShapeError: x, .* \(6, 16\), \(6, 2\), \(6, 3\)"),
        ({"given": {"down": torch.zeros(3, 16, 16)}}, r"ShapeError: gate_up .* down \(3, 16, 16\)"),
        ({"given": {"down": torch.zeros(2, 16, 8)}}, r"ShapeError: gate_up .* down \(2, 16, 8\)"),
        ({"given": {"down": torch.zeros(2, 17, 16)}}, r"ShapeError: gate_up .* down \(2, 17, 16\)"),
        ({"given": {"down": torch.zeros(2, 16, 16, device="meta")}}, "DeviceError: down is on meta, x on cpu"),
        ({"given": {"gate_up": None}}, "ArgumentError: gate_up is None, not a tensor"),
        ({"given": {"topk_idx": torch.zeros(6, 0), "topk_weights": torch.zeros(6, 0)}}, "ShapeError: .*top > 0"),
        ({"given": {"x": torch.zeros(6, 16, dtype=torch.float64)}}, "DtypeError: x is float64"),
        ({"given": {"gate_up": torch.zeros(2, 32, 16).half()}}, "DtypeError: gate_up is float16, x float32; all must"),
        ({"plan": 3}, "ScheduleError: plan is 3; it must be the name of one"),
        ({"capacity": -1}, "ArgumentError: capacity=-1; it must be an integer, 0 or more"),
        ({"places": [0, 1, 2, 3]}, r"ArgumentError: places is a list; it must be a table \(experts, copies\): ops.exp"),
        ({"places": expert_places([0, 1, 2, -1, 3, 0])}, "ArgumentError: places names place 5, so it has 6 places; "
                                                         "there are 4, 2 on each of 2 ranks"),
        ({"slices": "1"}, "ArgumentError: slices='1'; it must be an integer, 0 or more"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_what_is_wrong_is_said(pool: Pool, options: dict[str, Any], said: str) -> None:
    for text, wrong in on_two(pool, partial(of_experts.told, backend="torch", **options)):
        assert re.match(said, text) and wrong == [], text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"plan": "engine"}, "ScheduleError: plan is 'engine'"),
        ({"tokens": 5}, "ArgumentError: tokens=5 is less than the 6 tokens of this rank"),
        ({"given": {"topk_weights": torch.zeros(6, 3)}}, "ShapeError: x, topk_idx and topk_weights have shapes"),
        ({"given": {"topk_idx": torch.zeros(6, 2)}}, "DtypeError: topk_idx is float32; it must be integers"),
        ({"given": {"x": "tokens"}}, "ArgumentError: x is a str, not a tensor"),
        ({"slices": 3}, "ArgumentError: slices=3"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_is_wrong_on_one_rank_is_an_error_on_all(pool: Pool, options: dict[str, Any], said: str) -> None:
    bad = partial(of_experts.told, backend="torch", only=1, **options)
    (other, wrong), (own, wrong_too) = on_two(pool, bad)
    assert own.startswith(said) and wrong == wrong_too == []
    assert other.startswith(f"RankFailedError: rank 1 raised {said}"), other


def test_wrong_calls_of_the_parts_are_named_errors(pool: Pool) -> None:
    for found in on_two(pool, of_experts.refused):
        assert found == []


@pytest.mark.parametrize("plan", [None, "once", "one_kernel"])
@pytest.mark.parametrize("backend", first_of(["torch", "interpret"]))
def test_gradients_of_gradients_are_an_error(pool: Pool, backend: str, plan: str | None) -> None:
    for said in on_two(pool, of_experts.twice_differentiated, backend, plan):
        assert "has no second derivative" in said


def test_experts_out_of_range_are_so_in_every_integer_type(pool: Pool) -> None:
    for counts in on_two(pool, of_experts.of_other_integers):
        wide, once, small, turned = counts
        assert wide == once == [-2, -2] and small == [4, 4] and turned == []


@pytest.mark.parametrize("plan", [None, "once", "one_kernel"])
def test_an_activation_checkpoint_changes_no_gradient(pool: Pool, plan: str | None) -> None:
    assert_right(pool, [(0, 1)], of_experts.checkpointed, plan)


def test_ranks_with_other_plans_name_the_plans(pool: Pool) -> None:
    for text, wrong in on_two(pool, partial(of_experts.told, backend="torch", plan="once", only=1)):
        assert text.startswith("RankMismatchError: this call: rank 1 has plan once, rank 0 None") and wrong == [], text


@pytest.mark.parametrize("plan", [None, "once", "auto"])
def test_ranks_with_other_numbers_of_tokens_say_so(pool: Pool, plan: str | None) -> None:
    said = r"RankMismatchError: .*rank 1 has tokens=5, rank 0 4; pass the most tokens of any rank as tokens=, on every"
    for text in on_two(pool, of_experts.with_other_tokens, plan):
        assert re.match(said, text), text


def test_an_activation_that_raises_on_one_rank_is_told_to_the_others(pool: Pool) -> None:
    (of_peer, wrong), (of_rank, wrong_too) = on_two(pool, of_experts.with_a_failing_activation)
    assert of_rank == "ValueError: mine" and wrong == wrong_too == []
    assert of_peer.startswith("RankFailedError") and "rank 1 raised ValueError in the activation: mine" in of_peer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_sum_is_held_against_its_terms(dtype: torch.dtype) -> None:
    layer = Layer((5, 3), dtype=dtype, seed=1)
    right = layer.right(2)[1]
    terms, part = layer.magnitudes(2)[1], 1e-3 if dtype == torch.float32 else 0.5
    assert layer.errors(right, 1, 2) == [] and all((terms[n] >= t.abs() * (1 - 1e-9)).all() for n, t in right.items())
    for name, t in right.items():
        (said,) = layer.errors({**right, name: t * (1 + part)}, 1, 2)
        assert f"{name} is off by" in said
