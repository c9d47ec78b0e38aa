"""Plugs for servers, in stand-ins of their signatures, beside all experts in one place."""

from __future__ import annotations

import enum
import types
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from bench.references import layer_of_experts
from tests.integrations.plugs import importable, modules, said, wrong
from tests.nn.on_ranks import far

TOKENS, WIDTH, HIDDEN, TOP = 5, 16, 24, 2


class Operands(NamedTuple):
    """Weights of all experts, and of each rank its tokens, fewer on the later ones."""

    gate_up: torch.Tensor
    down: torch.Tensor
    x: list[torch.Tensor]
    ids: list[torch.Tensor]
    weights: list[torch.Tensor]


def operands(world: int) -> Operands:
    torch.manual_seed(4)
    experts, tokens = 2 * world, [TOKENS - r for r in range(world)]
    return Operands(
        torch.randn(experts, 2 * HIDDEN, WIDTH) / 4,
        torch.randn(experts, WIDTH, HIDDEN) / 4,
        [torch.randn(n, WIDTH) for n in tokens],
        [torch.rand(n, experts).topk(TOP).indices.int() for n in tokens],
        [torch.rand(n, TOP) for n in tokens],
    )


def silu_and_mul(rows: torch.Tensor) -> torch.Tensor:
    gate, up = rows.chunk(2, -1)
    return nn.functional.silu(gate) * up


def in_one_place(given: Operands, rank: int, weights: torch.Tensor) -> torch.Tensor:
    experts = enumerate(zip(given.gate_up, given.down, strict=True))
    return layer_of_experts(given.x[rank], given.ids[rank], weights, experts)


# ---- vLLM


class Activation(enum.Enum):
    SILU = "silu"
    RELU2_NO_MUL = "relu2_no_mul"

    @property
    def is_gated(self) -> bool:
        return not self.value.endswith("_no_mul")


def stand_in_for_vllm(group: dist.ProcessGroup) -> dict[str, types.ModuleType]:
    """Modules with the signatures of vLLM's 0.33, whose kernels need a GPU."""

    class FusedMoEExpertsModular:
        def __init__(
            self, moe_config: Any, quant_config: Any, max_num_tokens: int | None = None, num_dispatchers: Any = None
        ) -> None:
            self.moe_config, self.quant_config = moe_config, quant_config

        @staticmethod
        def adjust_N_for_activation(N: int, activation: Activation) -> int:
            return N // 2 if activation.is_gated else N

        def activation(self, activation: Activation, output: torch.Tensor, input: torch.Tensor, **of_rows: Any) -> None:
            output.copy_(silu_and_mul(input))

    kernel = {"FusedMoEExpertsModular": FusedMoEExpertsModular, "FusedMoEActivationFormat": enum.Enum("F", "Standard")}
    group_of_experts = types.SimpleNamespace(device_group=group)
    return modules(
        vllm__distributed={"get_ep_group": lambda: group_of_experts},
        vllm__model_executor__layers__fused_moe__modular_kernel=kernel,
        vllm__model_executor__layers__fused_moe__topk_weight_and_reduce={"TopKWeightAndReduceNoOP": object},
    )


def of_vllm(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of a layer of vLLM's, with experts rank by rank and in turn; and what is not refused."""
    from tilelink.integrations.vllm import experts

    rank, world = dist.get_rank(group), dist.get_world_size(group)
    given, number = operands(world), 2 * world
    spread = types.SimpleNamespace(use_ep=True, ep_size=world, dp_size=world, pcp_size=1, sp_size=1)
    config = types.SimpleNamespace(moe_parallel_config=spread, max_num_tokens=TOKENS)
    replicated = types.SimpleNamespace(**{**vars(config), "moe_parallel_config": types.SimpleNamespace(
        use_ep=True, ep_size=world, dp_size=1, pcp_size=1, sp_size=1)})  # fmt: skip
    none = torch.empty(0)
    found, errors = [], {}
    with importable(stand_in_for_vllm(group)):
        kind = experts.__wrapped__()
        made = kind(config, types.SimpleNamespace(quant_dtype=None))

        def applied(at: list[int], expert_map: torch.Tensor | None = None, **other: Any) -> torch.Tensor:
            named = {"activation": Activation.SILU, "global_num_experts": number, "apply_router_weight_on_input": False}
            output = torch.full((len(given.x[rank]), WIDTH), float("nan"))
            made.apply(
                output=output, hidden_states=given.x[rank], w1=given.gate_up[at], w2=given.down[at],
                topk_weights=given.weights[rank], topk_ids=given.ids[rank], expert_map=expert_map, workspace13=none,
                workspace2=none, expert_tokens_meta=None, **{"a1q_scale": None, "a2_scale": None, **named, **other},
            )  # fmt: skip
            return output

        here = [2 * rank, 2 * rank + 1]
        in_turn = torch.tensor([e // world if e % world == rank else -1 for e in range(number)], dtype=torch.int32)
        right = in_one_place(given, rank, given.weights[rank])
        errors["linear"] = far(applied(here), right)
        for again in ("", " again"):
            errors[f"in turn{again}"] = far(applied([rank, rank + world], in_turn), right)
        ones = in_one_place(given, rank, torch.ones(len(given.x[rank]), TOP))
        errors["weights on the input"] = far(applied(here, apply_router_weight_on_input=True), ones)
        for make, text in (
            (lambda: kind(config, types.SimpleNamespace(quant_dtype="fp8", w1_bias=1)), "has quant_dtype, w1_bias: "),
            (lambda: kind(replicated, types.SimpleNamespace()), "each rank must have its own tokens"),
            (lambda: applied(here, a1q_scale=none), "a1q_scale and a2_scale must be None, and "),
            (lambda: applied(here, activation=Activation.RELU2_NO_MUL), "RELU2_NO_MUL must be a gated one"),
            (lambda: applied(here, global_num_experts=number + 1), f"ranks, and {number + 1} experts of all"),
        ):
            found += [] if text in (told := said(make)) else [f"{told}, not {text}"]
    size = made.workspace_shapes(3, 8, 5, 2, 4, 4, None, Activation.SILU)
    return found + wrong(errors) + ([] if size == ((0,), (0,), (3, 5)) else [f"workspaces {size}"])


# ---- SGLang


class TopKFormat(enum.Enum):
    STANDARD, BYPASSED = "standard", "bypassed"

    def is_standard(self) -> bool:
        return self == TopKFormat.STANDARD


class TopK(NamedTuple):
    topk_weights: torch.Tensor
    topk_ids: torch.Tensor
    router_logits: torch.Tensor

    @property
    def format(self) -> TopKFormat:
        return TopKFormat.STANDARD


class DispatchOutput(NamedTuple):
    hidden_states: torch.Tensor
    hidden_states_scale: torch.Tensor | None
    topk_output: TopK


class FusedMoE(nn.Module):
    """A layer with the experts of a rank; runs them as SGLang's runner does, one row at all of its local experts."""

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor, config: Any) -> None:
        super().__init__()
        self.gate_up, self.down, self.moe_runner_config = gate_up, down, config
        self.reduce_results, self.moe_tp_size, self.dispatcher = False, 1, None

    def forward(self, hidden_states: torch.Tensor, topk_output: TopK) -> torch.Tensor:
        rows, scale, local = self.dispatcher.dispatch(hidden_states=hidden_states, topk_output=topk_output)
        assert scale is None and local.topk_ids.dtype == topk_output.topk_ids.dtype
        experts = enumerate(zip(self.gate_up, self.down, strict=True))
        out = layer_of_experts(rows, local.topk_ids, local.topk_weights, experts)
        out[~(local.topk_ids >= 0).any(1)] = float("nan")  # rows without an expert are padding
        return self.dispatcher.combine(combine_input=types.SimpleNamespace(hidden_states=out))


def stand_in_for_sglang() -> dict[str, types.ModuleType]:
    """Modules with the signatures of SGLang's 0.5.23, whose package needs a GPU."""

    class BaseDispatcher:
        def __init__(self) -> None:
            self.quant_config: dict[str, Any] = {}

    return modules(
        sglang__srt__layers__moe__token_dispatcher__base={"BaseDispatcher": BaseDispatcher},
        sglang__srt__layers__moe__token_dispatcher__standard={"StandardDispatchOutput": DispatchOutput},
        sglang__srt__layers__moe__topk={"StandardTopKOutput": TopK},
        sglang__srt__layers__moe__fused_moe_triton__layer={"FusedMoE": FusedMoE},
    )


def of_sglang(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of a layer of SGLang's with our dispatcher, and what is not refused."""
    from tilelink.integrations.sglang import replace_dispatchers

    rank, world = dist.get_rank(group), dist.get_world_size(group)
    given, mine = operands(world), slice(2 * rank, 2 * rank + 2)
    config = types.SimpleNamespace(num_experts=2 * world, num_fused_shared_experts=0, no_combine=False)
    layer = FusedMoE(given.gate_up[mine], given.down[mine], config)
    top = TopK(given.weights[rank], given.ids[rank], given.weights[rank])
    bypassed = types.SimpleNamespace(format=TopKFormat.BYPASSED)
    found, errors, how = [], {}, {"num_max_tokens_per_rank": TOKENS}
    with importable(stand_in_for_sglang()):
        replace_dispatchers(nn.Sequential(layer), group, **how)
        for again in ("", " again"):
            errors[f"result{again}"] = far(layer(given.x[rank], top), in_one_place(given, rank, given.weights[rank]))

        def refused(**changed: Any) -> str:
            other = FusedMoE(layer.gate_up, layer.down, types.SimpleNamespace(**{**vars(config), **changed}))
            other.reduce_results = changed.get("reduce_results", False)
            return said(lambda: replace_dispatchers(other, group, **how))

        for made, text in (
            (said(lambda: replace_dispatchers(nn.Linear(1, 1), group, **how)), "Linear has no FusedMoE of SGLang"),
            (refused(reduce_results=True), "a layer has reduce_results=True, moe_tp_size=1: results are whole"),
            (refused(num_fused_shared_experts=1), "the layer has num_fused_shared_experts: shared experts are not"),
            (refused(no_combine=True), "the layer has no_combine: the sum"),
            (said(lambda: layer.dispatcher.dispatch(given.x[rank], bypassed)), "topk_output has the format TopKFormat"),
            (said(lambda: layer.dispatcher.combine(None)), "combine without a dispatch before it"),
        ):
            found += [] if text in made else [f"{made}, not {text}"]
    return found + wrong(errors)
