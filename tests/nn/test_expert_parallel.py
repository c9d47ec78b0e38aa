"""Experts of a model, spread over ranks in place, beside the whole model."""

from __future__ import annotations

import importlib.util

import pytest
from torch.distributed.tensor import Replicate

from tests.nn.expert_models import BESIDE, compared, page, prepared, refused, stepped, under_fsdp
from tests.ops.groups import GROUPS, assert_right
from tests.runtime.processes import Pool

REPLICATED = {"input_layouts": Replicate()}
CUTS: list[dict[str, object]] = [
    {}, REPLICATED, {"cut": "hidden"}, REPLICATED | {"cut": "hidden"}, {"both": True}, REPLICATED | {"both": True},
]  # fmt: skip
MODELS = ["Mixtral", "Qwen3Moe", "DeepseekV3"]


def told(how: dict[str, object]) -> str:
    return " ".join([str(how.get("cut", "both" if "both" in how else "experts")), *["replicated"] * (len(how) > 1)])


@pytest.mark.parametrize("how", CUTS, ids=told)
def test_a_block(pool: Pool, how: dict[str, object]) -> None:
    groups = [(0, 1, 2, 3)] if "both" in how else [g for g in GROUPS if len(g) != 3]  # eight experts
    assert_right(pool, groups, compared, "ours", "torch", how)


@pytest.mark.verify
@pytest.mark.parametrize("how", [{}, {"cut": "hidden"}], ids=told)
def test_a_block_in_one_kernel(pool: Pool, how: dict[str, object]) -> None:
    plan = ",".join(["one_kernel", *(f"{role}.count=2" for role in ("dispatch", "combine", "keep", "add_up"))])
    assert_right(pool, [(0, 1)], compared, "gated", "interpret", {"plan": plan, **how})


@pytest.mark.verify
@pytest.mark.parametrize("how", CUTS[:5], ids=told)
@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers(pool: Pool, name: str, how: dict[str, object]) -> None:
    if not BESIDE.is_dir() and importlib.util.find_spec("transformers") is None:
        pytest.skip("there is no transformers")
    assert_right(pool, [(0, 1, 2, 3)], compared, name, "torch", how)
    assert_right(pool, [(0, 1, 2, 3)], compared, name, "torch", how, 20)


@pytest.mark.verify
@pytest.mark.parametrize("how", CUTS[:4], ids=told)
def test_a_block_by_programs(pool: Pool, how: dict[str, object]) -> None:
    assert_right(pool, [(0, 1)], compared, "few", "interpret", how)


def test_what_cannot_be_is_said(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], refused)


@pytest.mark.verify
def test_compiled_without_a_break(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], stepped, "aot_eager")


@pytest.mark.parametrize("with_transformers", [False, pytest.param(True, marks=pytest.mark.verify)])
def test_code_of_the_page_runs(pool: Pool, with_transformers: bool) -> None:
    assert_right(pool, [(0, 1)], page, with_transformers)


@pytest.mark.verify
@pytest.mark.parametrize("cut", ["experts", "hidden"])
def test_under_fsdp(pool: Pool, cut: str) -> None:
    assert_right(pool, [(0, 1, 2, 3)], under_fsdp, cut)


@pytest.mark.verify
@pytest.mark.parametrize("how", CUTS[:4], ids=told)
def test_prepared_before_a_capture(pool: Pool, how: dict[str, object]) -> None:
    assert_right(pool, [(0, 1)], prepared, how)
