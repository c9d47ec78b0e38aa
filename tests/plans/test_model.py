"""Models: layers as ranks have them, and configurations that can't be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.plans.configs import MOE, TINY
from tilelink.errors import ConfigError
from tilelink.plans.model import Experts, Layer, known_models, model
from tilelink.plans.routings import power_law


def written(folder: Path, values: Any) -> str:
    file = folder / "config.json"
    file.write_text(json.dumps(values, indent=2))
    return str(file)


def test_layers_of_a_block() -> None:
    wide = 14336 // 8
    assert model("llama-3-8b").layers(8) == (
        Layer("qkv", (512, 128, 128), 4096, True), Layer("o", (4096,), 512, False),
        Layer("gate_up", (wide, wide), 4096, True), Layer("down", (4096,), wide, False),
    )  # fmt: skip
    assert all(model(name).dtype == "bfloat16" and known["source"] for name, known in known_models().items())


def test_heads_of_k_and_v_fewer_than_ranks_stand_on_several(tmp_path: Path) -> None:
    made = model(written(tmp_path, TINY))
    assert [layer.columns for layer in made.layers(2)[:1]] == [(32, 8, 8)]
    assert [layer.columns for layer in made.layers(4)[:1]] == [(16, 8, 8)]
    assert made.layers(4)[1] == Layer("o", (64,), 16, False)


def test_a_folder_and_sizes_that_are_said(tmp_path: Path) -> None:
    written(tmp_path, TINY | {"head_dim": 16, "torch_dtype": "float16", "num_key_value_heads": None})
    made = model(str(tmp_path))
    assert (made.name, made.dtype) == (tmp_path.name, "float16")
    assert made.layers(2)[0].columns == (64, 64, 64)


@pytest.mark.parametrize(
    ("said", "other"),
    [
        ({}, ""), ({"torch_dtype": "bfloat16"}, ""), ({"torch_dtype": "float64"}, "float64"),
        ({"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}, "fp8"),
    ],
)  # fmt: skip
def test_a_dtype_that_no_plan_has_is_told(said: dict[str, Any], other: str, tmp_path: Path) -> None:
    made = model(written(tmp_path, TINY | said))
    assert (made.dtype, made.other_dtype) == ("bfloat16", other)


def test_experts(tmp_path: Path) -> None:
    made = model(written(tmp_path, MOE))
    assert [layer.name for layer in made.layers(4)] == ["qkv", "o", "shared_gate_up", "shared_down"]
    assert made.experts(4, 2) == (
        Experts("experts_gate_up", 12, 4, 2 * 16, 64, spread=2, cut=2),
        Experts("experts_down", 12, 4, 64, 16, spread=2, cut=2),
    )
    some = model(written(tmp_path, MOE | {"mlp_only_layers": [0]}))
    assert [layer.name for layer in some.layers(4)][2:4] == ["gate_up", "down"]
    mixtral = model("mixtral-8x7b")
    assert [layer.name for layer in mixtral.layers(8)] == ["qkv", "o"]
    assert mixtral.experts(8, 8)[0].columns == 2 * 14336 and mixtral.experts(8, 1)[0].columns == 2 * 14336 // 8
    assert model("llama-3-8b").experts(8, 1) == ()


@pytest.mark.parametrize(
    ("values", "key", "said"),
    [
        (TINY | {"model_type": "bert"}, "model_type", "models of type bert are not known; known are llama, mistral"),
        ({"hidden_size": 64}, "", "there is no model_type"),
        ([1], "", "there is no model_type"),
        ({k: v for k, v in TINY.items() if k != "hidden_size"}, "", "hidden_size is missing: llama models have one"),
        (TINY | {"hidden_size": "64"}, "hidden_size", "hidden_size is '64': it must be a natural number"),
        (TINY | {"hidden_size": 0}, "hidden_size", "hidden_size is 0: it must be a natural number"),
        (TINY | {"hidden_size": 63}, "num_attention_heads", "8 heads do not divide hidden_size, 63"),
        (TINY | {"num_attention_heads": 6, "head_dim": 8}, "num_attention_heads", "is 6, which 4 ranks can't share"),
        (TINY | {"num_key_value_heads": 3}, "num_key_value_heads", "3 heads of K and V can't be shared by 4 ranks"),
        (TINY | {"intermediate_size": 90}, "intermediate_size", "is 90, which 4 ranks can't share evenly"),
        (MOE | {"num_experts": 11}, "num_experts", "num_experts is 11, which 2 ranks can't share evenly"),
        (MOE | {"num_experts_per_tok": 13}, "num_experts_per_tok", "13 experts for each token, of 12"),
        (MOE | {"moe_intermediate_size": 33}, "moe_intermediate_size", "is 33, which 2 ranks can't share evenly"),
    ],
)
def test_configurations_that_can_not_be(tmp_path: Path, values: Any, key: str, said: str) -> None:
    """The error names the file, and the line of the key."""
    file = written(tmp_path, values)
    with pytest.raises(ConfigError) as error:
        made = model(file)
        made.layers(4)
        made.experts(4, 2)
    assert said in error.value.message
    site = error.value.site
    assert site is not None and site.file == file
    assert f'"{key}"' in Path(file).read_text().splitlines()[site.line - 1] or (key, site.line) == ("", 1)


@pytest.mark.parametrize(("text", "line"), [('{\n  "a": 1,\n  b\n}', 3), ("", 1), ("\n{", 2), ("\xff", 1)])
def test_what_is_no_json(tmp_path: Path, text: str, line: int) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="this is no") as error:
        model(str(file))
    assert error.value.site is not None and error.value.site.line == line


def test_what_there_is_not(tmp_path: Path) -> None:
    for name in ("llama-9", str(tmp_path)):
        with pytest.raises(ConfigError, match=r"there is no file .* or one of llama-3-8b"):
            model(name)


def test_experts_of_deepseek_and_of_papers() -> None:
    deepseek = model("deepseek-v3")
    names = ["o", "gate_up", "down", "shared_gate_up", "shared_down"]
    assert [layer.name for layer in deepseek.layers(8)] == names
    assert deepseek.layers(8)[0].depth == 128 * 128 // 8
    assert deepseek.experts(8, 8) == (
        Experts("experts_gate_up", 256, 8, 4096, 7168, spread=8, cut=1),
        Experts("experts_down", 256, 8, 7168, 2048, spread=8, cut=1),
    )
    assert model("qwen3-30b-a3b").experts(8, 4)[1].depth == 768 // 2
    papers = [model(f"tilelink-moe-{n}") for n in range(1, 7)]
    assert [(m.experts(8, 8)[0].all, m.experts(8, 8)[0].each) for m in papers] == 2 * [(8, 2), (32, 2), (32, 5)]
    assert all(m.layers(8) == () for m in papers)


def test_a_power_law_deals_out_all_rows_and_none_twice() -> None:
    for number, each, tokens in ((256, 8, 4096), (8, 2, 4096), (8, 8, 64), (32, 5, 3)):
        counts = power_law(Experts("experts_down", number, each, 16, 16, spread=8, cut=1), tokens)
        rows = [sum(of_expert) for of_expert in counts]
        assert sum(rows) == tokens * each and min(rows) >= 0 and max(rows) <= tokens
        assert all(max(of_expert) - min(of_expert) <= 1 for of_expert in counts)
        assert each == number or max(rows) > 2 * sorted(rows)[number // 2]


def test_errors_of_our_models_name_no_file_of_ours() -> None:
    with pytest.raises(ConfigError) as error:
        model("llama-3-8b").layers(3)
    assert error.value.site is None and str(error.value).startswith("num_attention_heads is 32, which 3 ranks")
