"""Experts of vLLM by our operators: `experts()` is a `FusedMoEExpertsModular` whose `apply` sends tokens to their
experts and brings results back, so that nothing is left to prepare or to finalize:

    made = experts()(moe_config, quant_config)
    kernel = FusedMoEKernel(PassThroughPrepareAndFinalize(), made)  # all2all_backend="passthrough"
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from tilelink.errors import ArgumentError, ShapeError, Site, counted
from tilelink.ops.mixture_of_experts import mixture_of_experts

REFUSED = ("quant_dtype", "weight_quant_dtype", "w1_scale", "w2_scale", "w1_bias", "w2_bias")
"""Fields of vLLM's quant_config that must be None: experts are not quantized and have no bias."""


class Experts:
    """The first base of the class that `experts` makes; vLLM's `FusedMoEExpertsModular` is the second. `options`: the
    arguments of `experts`."""

    options: dict[str, Any]
    adjust_N_for_activation: Any  # noqa: N815  # vLLM's name
    activation: Any

    def __init__(self, moe_config: Any, quant_config: Any, *counts: Any, **named: Any) -> None:
        super().__init__(moe_config, quant_config, *counts, **named)  # type: ignore[call-arg]  # vLLM's
        if wrong := [name for name in REFUSED if getattr(quant_config, name, None) is not None]:
            what = f"quant_config has {', '.join(wrong)}: weights are not quantized and have no bias"
            raise ArgumentError(what, Site.of_user())
        if not self._supports_parallel_config(moe_config.moe_parallel_config):
            what = f"{moe_config.moe_parallel_config}: experts must be spread, and each rank must have its own tokens"
            raise ArgumentError(what, Site.of_user())
        tokens = self.options["tokens"]
        self.tokens = moe_config.max_num_tokens if tokens is None else tokens
        self.map: torch.Tensor | None = None
        self.places: torch.Tensor | None = None

    @staticmethod
    def activation_format() -> Any:
        from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEActivationFormat

        return FusedMoEActivationFormat.Standard

    @staticmethod
    def _supports_current_device() -> bool:
        return True

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return False

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return weight_key is None and activation_key is None

    @staticmethod
    def _supports_activation(activation: Any) -> bool:
        return bool(activation.is_gated)

    @staticmethod
    def _supports_parallel_config(config: Any) -> bool:
        return bool(config.use_ep and config.ep_size == config.dp_size * config.pcp_size * config.sp_size)

    def finalize_weight_and_reduce_impl(self) -> Any:
        from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP

        return TopKWeightAndReduceNoOP()

    def workspace_shapes(self, M: int, N: int, K: int, *others: Any) -> tuple[tuple[int, ...], ...]:
        return (0,), (0,), (M, K)

    def apply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: Any,
        global_num_experts: int,
        expert_map: torch.Tensor | None,
        a1q_scale: torch.Tensor | None,
        a2_scale: torch.Tensor | None,
        workspace13: torch.Tensor,
        workspace2: torch.Tensor,
        expert_tokens_meta: Any,
        apply_router_weight_on_input: bool,
    ) -> None:
        if a1q_scale is not None or a2_scale is not None or not self._supports_activation(activation):
            what = f"a1q_scale and a2_scale must be None, and activation {activation} must be a gated one"
            raise ArgumentError(what, Site.of_user())
        members = self.options["group"] or _ep_group()
        if expert_map is None and len(w1) * dist.get_world_size(members) != global_num_experts:
            what = f"{counted(len(w1), 'expert')} on each of {dist.get_world_size(members)} ranks"
            raise ShapeError(f"{what}, and {global_num_experts} experts of all", Site.of_user())
        if expert_map is not None and expert_map is not self.map:
            self.map, self.places = expert_map, places_of(expert_map, len(w1), members)

        def activated(rows: torch.Tensor) -> torch.Tensor:
            made = rows.new_empty(len(rows), self.adjust_N_for_activation(rows.shape[1], activation))
            self.activation(activation, made, rows)
            return made

        weights = torch.ones_like(topk_weights) if apply_router_weight_on_input else topk_weights
        output.copy_(
            mixture_of_experts(
                hidden_states, topk_ids, weights, w1, w2, group=members, activation=activated, tokens=self.tokens,
                capacity=self.options["capacity"], places=None if expert_map is None else self.places,
                plan=self.options["plan"],
            )
        )  # fmt: skip


@cache
def experts(
    *,
    group: dist.ProcessGroup | None = None,
    tokens: int | None = None,
    capacity: int | None = None,
    plan: str | None = None,
) -> type:
    """Returns a subclass of vLLM's `FusedMoEExpertsModular`. `group`: of expert parallelism, by default vLLM's.
    `tokens`, `capacity`, `plan`: of `tilelink.ops.mixture_of_experts`; by default, `tokens` is `max_num_tokens`.

    Each rank gives its own tokens, and has as many experts as every other rank. An `expert_map` may put experts
    anywhere: the ranks exchange their maps once. The activation is vLLM's own. The class raises ArgumentError for
    settings that it can't serve, and as `mixture_of_experts` does.
    """
    from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEExpertsModular

    options = {"group": group, "tokens": tokens, "capacity": capacity, "plan": plan}
    return type("TileLinkExperts", (Experts, FusedMoEExpertsModular), {"options": options})


def places_of(expert_map: torch.Tensor, each: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Returns the `places` (experts, ranks) of `tilelink.ops.moe_routing`, from vLLM's maps of all ranks. A map has the
    number of each expert among the `each` experts of its rank, or -1. Collective."""
    maps = [torch.empty_like(expert_map) for _ in range(dist.get_world_size(group))]
    dist.all_gather(maps, expert_map.contiguous(), group=group)
    return torch.stack([torch.where(of >= 0, of + rank * each, -1) for rank, of in enumerate(maps)], 1)


def _ep_group() -> dist.ProcessGroup:
    from vllm.distributed import get_ep_group

    found: dist.ProcessGroup = get_ep_group().device_group
    return found
