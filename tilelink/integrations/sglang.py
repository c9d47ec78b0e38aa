"""A token dispatcher of SGLang by our operators: call `replace_dispatchers(model, group, ...)` on a finished model."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tilelink.errors import ArgumentError, Site
from tilelink.integrations.deep_ep import ElasticBuffer, EPHandle

REFUSED = {
    "num_fused_shared_experts": "shared experts are not among those of the router",
    "no_combine": "the sum over a token's experts is made on their rank",
}
"""Fields of SGLang's MoeRunnerConfig that must be off, and why."""


def replace_dispatchers(
    model: nn.Module, group: dist.ProcessGroup, *, num_max_tokens_per_rank: int, plan: str | None = None
) -> nn.Module:
    """Gives every `FusedMoE` of a model our dispatcher, and returns the model itself. `group`: of expert parallelism;
    `num_max_tokens_per_rank`: the most tokens that a rank gives, the same on every rank. Raises ArgumentError if the
    model has no `FusedMoE`, or one that our dispatcher can't serve; the model is then unchanged."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    layers = [m for m in model.modules() if isinstance(m, FusedMoE)]
    if not layers:
        raise ArgumentError(f"{type(model).__name__} has no FusedMoE of SGLang", Site.of_user())
    if wrong := next((m for m in layers if m.reduce_results or m.moe_tp_size > 1), None):
        what = f"a layer has reduce_results={wrong.reduce_results}, moe_tp_size={wrong.moe_tp_size}"
        raise ArgumentError(f"{what}: results are whole, so nothing is to be added to them", Site.of_user())
    kind, how = dispatcher(), {"num_max_tokens_per_rank": num_max_tokens_per_rank, "plan": plan}
    made = [kind(layer.moe_runner_config, group, **how) for layer in layers]
    for layer, ours in zip(layers, made, strict=True):
        layer.dispatcher = ours
    return model


@cache
def dispatcher() -> Any:
    """Returns a subclass of SGLang's `BaseDispatcher`. A token goes once to each rank that has experts of the token, in
    the format "standard": rows with their local experts, -1 for others, and weights. Padding without experts follows.
    The runner on that rank multiplies and adds up; `combine` adds up the results of ranks. No host reads a count.
    Each `combine` follows a `dispatch`. They raise as `ElasticBuffer` of `tilelink.integrations.deep_ep` does.
    """
    from sglang.srt.layers.moe.token_dispatcher.base import BaseDispatcher
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    class TileLinkDispatcher(BaseDispatcher):
        def __init__(
            self, config: Any, group: dist.ProcessGroup, *, num_max_tokens_per_rank: int, plan: str | None = None
        ) -> None:
            super().__init__()
            if wrong := [f"{name}: {why}" for name, why in REFUSED.items() if getattr(config, name, None)]:
                raise ArgumentError(f"the layer has {'; '.join(wrong)}", Site.of_user())
            self.buffer = ElasticBuffer(group, num_max_tokens_per_rank=num_max_tokens_per_rank, plan=plan)
            self.num_experts = config.num_experts
            self.handle: EPHandle | None = None

        def dispatch(self, hidden_states: torch.Tensor, topk_output: Any) -> Any:
            if not topk_output.format.is_standard():
                what = f"topk_output has the format {topk_output.format}: standard, with topk_weights and topk_ids"
                raise ArgumentError(what, Site.of_user())
            rows, ids, weights, self.handle, _ = self.buffer.dispatch(
                hidden_states, topk_output.topk_ids, topk_output.topk_weights, num_experts=self.num_experts,
                do_cpu_sync=False,
            )  # fmt: skip
            assert ids is not None, "a token goes once to a rank"
            local = StandardTopKOutput(weights, ids.to(topk_output.topk_ids.dtype), topk_output.router_logits)
            return StandardDispatchOutput(rows, None, local)

        def combine(self, combine_input: Any) -> torch.Tensor:
            handle, self.handle = self.handle, None
            if handle is None:
                raise ArgumentError("combine without a dispatch before it", Site.of_user())
            return self.buffer.combine(combine_input.hidden_states, handle)[0]

    return TileLinkDispatcher
