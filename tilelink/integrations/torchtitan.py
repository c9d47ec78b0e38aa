"""A token dispatcher of torchtitan by our operators: `token_dispatcher().Config` takes the place of the `Config` of
torchtitan's `AllToAllTokenDispatcher`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from tilelink.ops.mixture_of_experts import moe_combine, moe_dispatch
from tilelink.ops.moe_routing import Routing, moe_routing


@cache
def token_dispatcher() -> type:
    """A subclass of torchtitan's `BaseEPTokenDispatcher`. Its `Config` has the fields of that one, and `tokens`,
    `capacity` and `plan` of `tilelink.ops.moe_routing`.

    `dispatch` returns as many rows as a rank has room for, so that no host reads counts: rows lie by local expert, the
    counts are on the device, and padding lies behind the rows. Without an expert-parallel mesh it is torchtitan's local
    dispatcher. Both methods raise as `moe_dispatch` does.
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
            counted = "torch" if self.plan == "torch" else None
            routing = moe_routing(
                topk_expert_ids_TK, experts=self.num_experts, group=self.ep_mesh, plan=counted, **self.options
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
