"""Plugs for other frameworks: in these where they are beside the environment, else in stand-ins of their signatures."""

from __future__ import annotations

import pytest

from tests.integrations import deep_ep, plugs, serving
from tests.ops.groups import assert_right
from tests.parameters import first_of
from tests.runtime.processes import Pool


@pytest.mark.verify
@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe", "DeepseekV3"])
def test_models_of_transformers(pool: Pool, name: str, tp: int) -> None:
    if not plugs.beside("transformers"):
        pytest.skip("there is no transformers")
    assert_right(pool, [(0, 1, 2, 3)], plugs.of_transformers, name, tp)


@pytest.mark.verify
def test_a_layer_of_megatron(pool: Pool) -> None:
    if not plugs.beside("megatron"):
        pytest.skip("there is no Megatron-Core")
    for found in pool.results(plugs.of_megatron):
        assert found == []


def test_the_dispatcher_of_torchtitan(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], plugs.of_torchtitan)


def test_the_experts_of_torchtitan(pool: Pool) -> None:
    assert_right(pool, [(0, 1, 2, 3)], plugs.of_routed_experts)


@pytest.mark.verify
def test_torchtitan_itself(pool: Pool) -> None:
    if not plugs.beside("torchtitan"):
        pytest.skip("there is no torchtitan")
    assert_right(pool, [(0, 1, 2, 3)], plugs.of_whole_torchtitan)


def test_the_experts_of_vllm(pool: Pool) -> None:
    assert_right(pool, [(0, 1, 2, 3)], serving.of_vllm)


def test_the_dispatcher_of_sglang(pool: Pool) -> None:
    assert_right(pool, [(0, 1, 2, 3)], serving.of_sglang)


@pytest.mark.parametrize("group", first_of([(0, 1), (1, 2, 3)]), ids=len)
def test_the_buffer_of_deep_ep(pool: Pool, group: tuple[int, ...]) -> None:
    assert_right(pool, [group], deep_ep.of_deep_ep, "torch", ["even", "uneven", "copies"])


@pytest.mark.verify
def test_the_buffer_of_deep_ep_by_programs(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], deep_ep.of_deep_ep, "interpret", ["even", "uneven", "copies"])


def test_options_of_transformers() -> None:
    assert plugs.bad_of_transformers() == []
