"""A small Llama of Hugging Face, as it is, parallelized by our styles: logits and gradients of the whole model.

Transformers is no dependency: `make verify` puts it beside the environment.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import RowwiseParallel, SequenceParallel, parallelize_module

from tests.nn.on_ranks import LIMIT, far, mesh_of, whole
from tests.ops.groups import assert_right
from tests.ops.on_ranks import computed_by
from tests.runtime.processes import Pool
from tilelink import nn as tnn

BESIDE = Path(__file__).parents[2] / ".triton" / "transformers"
"""Where `make verify` installs it."""
TOKENS: dict[str, Any] = {"input_layouts": Shard(1)}
SPREAD: dict[str, Any] = {"output_layouts": Shard(1), "use_local_output": False}
PLAN = {
    "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), **SPREAD),
    "model.layers.*.*norm": SequenceParallel(),
    "model.layers.*.self_attn": tnn.SharedColwiseParallel("q_proj", "k_proj", "v_proj", **TOKENS),
    "model.layers.*.self_attn.o_proj": tnn.RowwiseParallel(**SPREAD),
    "model.layers.*.mlp": tnn.SharedColwiseParallel("gate_proj", "up_proj", **TOKENS),
    "model.layers.*.mlp.down_proj": tnn.RowwiseParallel(**SPREAD),
    "model.norm": SequenceParallel(),
    "lm_head": tnn.ColwiseParallel(output_layouts=Replicate(), **TOKENS),
}


def logits_and_gradients(model: nn.Module, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    logits = model(input_ids=ids, use_cache=False).logits
    logits.square().sum().backward()
    return {"logits": logits.detach()} | {n: whole(p.grad) for n, p in model.named_parameters() if p.grad is not None}


def llama(group: dist.ProcessGroup, backend: str, compiler: str | None = None) -> list[str]:
    if str(BESIDE) not in sys.path:
        sys.path.append(str(BESIDE))  # behind what is installed
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 64, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=4))
    parallel = parallelize_module(copy.deepcopy(model), mesh_of(group), PLAN)
    if compiler is not None:
        torch._dynamo.reset()
        parallel.compile(backend=compiler, fullgraph=True)
    ids = torch.randint(64, (2, 8))
    with computed_by(backend, group):
        found, right = logits_and_gradients(parallel, ids), logits_and_gradients(model, ids)
    assert found.keys() == right.keys()
    return [f"{n}: {far(t, right[n]):.1e}" for n, t in found.items() if not far(t, right[n]) < LIMIT]


@pytest.mark.verify
@pytest.mark.parametrize(
    "group, backend, compiler",
    [
        ((0, 1), "torch", None),
        ((0, 1), "interpret", None),
        ((0, 1), "torch", "aot_eager"),
        ((0, 1, 2, 3), "torch", None),
    ],
)
def test_llama(pool: Pool, group: tuple[int, ...], backend: str, compiler: str | None) -> None:
    if not BESIDE.is_dir() and importlib.util.find_spec("transformers") is None:
        pytest.skip("there is no transformers")
    assert_right(pool, [group], llama, backend, compiler)
