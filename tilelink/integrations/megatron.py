"""Token dispatchers of Megatron-Core by our operators: call `replace_dispatchers(model)` after the model is made."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from tilelink.errors import ArgumentError, Site
from tilelink.ops.mixture_of_experts import moe_combine, moe_dispatch
from tilelink.ops.moe_routing import moe_routing

REFUSED = {
    "add_bias_linear": "weights are applied to the results of experts, which must not have a bias",
    "moe_apply_probs_on_input": "weights are applied to the results of experts",
    "moe_shared_expert_overlap": "the dispatcher does not run shared experts",
    "moe_pad_expert_input_to_capacity": "a token has no more experts than moe_router_topk",
    "moe_router_padding_for_quantization": "a token has no more experts than moe_router_topk",
    "moe_router_padding_for_fp8": "a token has no more experts than moe_router_topk",
}
"""Fields of Megatron's config that must be off, and why."""


def replace_dispatchers(model: nn.Module, **options: Any) -> nn.Module:
    """Gives every `MoELayer` of a model our token dispatcher, and returns the model itself. `options`: tokens and
    capacity of `tilelink.ops.moe_routing`, and plan of `moe_dispatch`. Raises ArgumentError if the model has no
    `MoELayer`, or one that our dispatcher can't serve; the model is then unchanged."""
    from megatron.core.transformer.moe.moe_layer import MoELayer

    layers = [m for m in model.modules() if isinstance(m, MoELayer)]
    if not layers:
        raise ArgumentError(f"{type(model).__name__} has no MoELayer of Megatron-Core", Site.of_user())
    made = [token_dispatcher().taking(layer, **options) for layer in layers]
    for layer, dispatcher in zip(layers, made, strict=True):
        layer.token_dispatcher = dispatcher
    return model


class Dispatcher:
    """The first base of the class that `token_dispatcher` makes; Megatron-Core's `MoETokenDispatcher` is the second."""

    config: Any
    ep_group: Any
    tp_size: int

    def __init__(
        self,
        num_local_experts: int,
        local_expert_indices: list[int],
        config: Any,
        pg_collection: Any = None,
        *,
        tokens: int | None = None,
        capacity: int | None = None,
        plan: str | None = None,
    ) -> None:
        super().__init__(config=config, pg_collection=pg_collection)  # type: ignore[call-arg]  # Megatron's
        if wrong := [f"{field}=True: {why}" for field, why in REFUSED.items() if getattr(config, field, False)]:
            raise ArgumentError(f"config has {'; '.join(wrong)}", Site.of_user())
        if self.tp_size != 1:
            what = f"expert_tensor_parallel_size is {self.tp_size}: this dispatcher has whole experts on each rank"
            raise ArgumentError(what, Site.of_user())
        self.plan = plan
        self.options: dict[str, Any] = {"tokens": tokens, "capacity": capacity}

    @classmethod
    def taking(cls, layer: Any, **options: Any) -> Any:
        """Returns a dispatcher for a layer, with the groups and config of the layer's present dispatcher."""
        old = layer.token_dispatcher
        groups = SimpleNamespace(ep=old.ep_group, expt_tp=old.tp_group, tp_ep=old.tp_ep_group)
        return cls(layer.num_local_experts, layer.local_expert_indices, old.config, groups, **options)

    def dispatch_preprocess(
        self, tokens: torch.Tensor, routing_map: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.shape = tokens.shape
        top = self.config.moe_router_topk
        chosen = routing_map.to(torch.uint8).topk(top).indices.sort().values
        self.chosen = torch.where(routing_map.gather(1, chosen), chosen, -1)
        return tokens.reshape(-1, tokens.shape[-1]), probs.gather(1, chosen)

    def token_dispatch(self, hidden_states: torch.Tensor, probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.probs, self.routing = probs, moe_routing(
            self.chosen, experts=self.config.num_moe_experts, group=self.ep_group, plan=self.plan, **self.options
        )  # fmt: skip
        return moe_dispatch(hidden_states, self.routing, plan=self.plan), probs

    def dispatch_postprocess(
        self, hidden_states: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        counts = self.routing.rows_of_experts.cpu()
        rows = hidden_states[: int(counts.sum())]
        return rows, counts, torch.ones(len(rows), dtype=probs.dtype, device=probs.device)

    def combine_preprocess(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(hidden_states, (0, 0, 0, self.routing.room - len(hidden_states)))

    def token_combine(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return moe_combine(hidden_states, self.routing, self.probs, plan=self.plan)

    def combine_postprocess(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states.reshape(self.shape)


@cache
def token_dispatcher() -> Any:
    """Returns a subclass of Megatron-Core's `MoETokenDispatcher`. Its constructor also takes tokens, capacity, plan.

    Megatron's experts take rows without padding, so the host reads the counts once, in `dispatch_postprocess`. The
    experts get ones as probabilities, because `token_combine` applies the weights, in float32.
    """
    from megatron.core.transformer.moe.token_dispatcher import MoETokenDispatcher

    return type("TileLinkTokenDispatcher", (Dispatcher, MoETokenDispatcher), {})
