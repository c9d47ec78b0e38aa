"""Experts of torchtitan by our operators. `routed_experts().Config` replaces the `Config` of torchtitan's
`RoutedExperts`, and fuses the products with the exchange. `token_dispatcher().Config` replaces the `Config` of
`AllToAllTokenDispatcher`, and leaves the experts unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from tilelink.errors import ArgumentError, Site
from tilelink.nn.layouts import local
from tilelink.ops.mixture_of_experts import mixture_of_experts, moe_combine, moe_dispatch
from tilelink.ops.moe_routing import Routing, moe_routing


@cache
def token_dispatcher() -> type:
    """Returns a subclass of torchtitan's `BaseEPTokenDispatcher`. Its `Config` also has `tokens`, `capacity` and `plan`
    of `tilelink.ops.moe_routing`.

    `dispatch` returns as many rows as a rank has room for, so that no host reads counts. Rows lie by local expert, then
    padding; the counts are on the device. Without an expert-parallel mesh it is torchtitan's local dispatcher.
    `dispatch` and `combine` raise as `moe_dispatch` does.
    """
    from torchtitan.models.common.token_dispatcher import BaseEPTokenDispatcher, LocalTokenDispatcher

    class TileLinkTokenDispatcher(BaseEPTokenDispatcher):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseEPTokenDispatcher.Config):
            tokens: int | None = None
            capacity: int | None = None
            plan: str | None = None

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.options: dict[str, Any] = {"tokens": config.tokens, "capacity": config.capacity}
            self.plan = config.plan

        def dispatch(
            self,
            x_TD: torch.Tensor,
            topk_scores_TK: torch.Tensor,
            topk_expert_ids_TK: torch.Tensor,
            num_local_tokens_per_expert_E: torch.Tensor,
        ) -> tuple[torch.Tensor, torch.Tensor, Any]:
            if self.ep_mesh is None:
                given = x_TD, topk_scores_TK, topk_expert_ids_TK, num_local_tokens_per_expert_E
                local: tuple[torch.Tensor, torch.Tensor, Any] = LocalTokenDispatcher.dispatch(self, *given)
                return local
            routing = moe_routing(
                topk_expert_ids_TK, experts=self.num_experts, group=self.ep_mesh, plan=self.plan, **self.options
            )
            rows = moe_dispatch(x_TD, routing, plan=self.plan)
            return rows, routing.rows_of_experts, (routing, topk_scores_TK)

        def combine(self, routed_output_RD: torch.Tensor, metadata: Any, x_TD: torch.Tensor, **of_padding: int) -> Any:
            if self.ep_mesh is None:
                return LocalTokenDispatcher.combine(self, routed_output_RD, metadata, x_TD, **of_padding)
            routing, scores = metadata
            assert isinstance(routing, Routing)
            return moe_combine(routed_output_RD, routing, scores, plan=self.plan)

    return TileLinkTokenDispatcher


@cache
def routed_experts() -> type:
    """Returns a subclass of torchtitan's `RoutedExperts` whose forward is `tilelink.ops.mixture_of_experts`. Its
    `Config` also has `tokens`, `capacity` and `plan`.

    The mesh is the one that torchtitan gives the token dispatcher; without a mesh, torchtitan computes. Products have
    the dtype of x. Each call joins gate and up in one tensor, because torchtitan keeps them apart. Raises ArgumentError
    for inner experts that are not exactly torchtitan's `GroupedExperts`, and as `mixture_of_experts` does.
    """
    from torchtitan.models.common.moe import GroupedExperts, RoutedExperts

    class TileLinkRoutedExperts(RoutedExperts):
        @dataclass(kw_only=True, slots=True)
        class Config(RoutedExperts.Config):
            tokens: int | None = None
            capacity: int | None = None
            plan: str | None = None

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            if type(self.inner_experts) is not GroupedExperts:
                what = f"inner_experts is {type(self.inner_experts).__name__}: GroupedExperts, whose products are known"
                raise ArgumentError(what, Site.of_user())
            self.options = {"tokens": config.tokens, "capacity": config.capacity, "plan": config.plan}

        def forward(
            self,
            x_BLD: torch.Tensor,
            topk_scores_BLK: torch.Tensor,
            topk_expert_ids_BLK: torch.Tensor,
            num_local_tokens_per_expert_E: torch.Tensor,
        ) -> torch.Tensor:
            given, mesh = (x_BLD, topk_expert_ids_BLK, topk_scores_BLK), getattr(self.token_dispatcher, "ep_mesh", None)
            if mesh is None:
                out: torch.Tensor = super().forward(
                    x_BLD, topk_scores_BLK, topk_expert_ids_BLK, num_local_tokens_per_expert_E
                )
                return out
            experts = self.inner_experts
            weights = experts.w1_EFD, experts.w3_EFD, experts.w2_EDF
            gate, up, down = (local(weight).to(x_BLD.dtype) for weight in weights)
            return mixture_of_experts(*given, torch.cat([gate, up], 1), down, group=mesh, **self.options)

    return TileLinkRoutedExperts
