"""Experts of Hugging Face transformers by our operators, under the expert parallelism of transformers itself.

    tilelink.integrations.transformers.register()
    DistributedConfig(ep_size=8, ep_implementation="tilelink")
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

from tilelink.errors import ArgumentError, Site
from tilelink.nn.expert_parallel import ExpertParallel, computed, gate_of
from tilelink.nn.layouts import Layouts, local
from tilelink.ops.collectives import name_of_group


def register(name: str = "tilelink", **options: Any) -> type:
    """Registers an `EPImplementation` under a name for `DistributedConfig(ep_implementation=)`, and returns it.

    `options`: of `tilelink.nn.ExpertParallel`: activation, tokens, capacity, plan. Ranks of a tensor-parallel group
    share a batch: each rank computes a part of the tokens, and the results are gathered. Raises ArgumentError and
    ScheduleError for options; the implementation raises as `ExpertParallel` does.
    """
    style = ExpertParallel(**options)
    if style.cut != "experts" or style.layout != Shard(0):
        what = "transformers says how experts and tokens are laid out: no cut=, no input_layouts="
        raise ArgumentError(what, Site.of_user())

    from transformers.distributed.expert_parallel import EPImplementation, EPImplementationInterface

    class TileLinkEP(EPImplementation):
        """Spreads whole experts over the ranks of `ep_mesh`. Ranks of a `tp_mesh` have the same tokens."""

        def __init__(self, experts: torch.nn.Module, ep_mesh: DeviceMesh, tp_mesh: DeviceMesh) -> None:
            super().__init__(experts, ep_mesh, tp_mesh)
            style.check(experts, ep_mesh)
            self.experts, self.number = experts, len(experts.get_parameter(style.down))
            layout = Replicate() if tp_mesh.size() > 1 else Shard(0)
            group = name_of_group(ep_mesh)
            self.layouts = Layouts(layout, layout, True, style.options["plan"], group, lambda: tp_mesh)

        def __call__(
            self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
        ) -> torch.Tensor:
            gate_up, down = (local(getattr(self.experts, name)) for name in (style.gate_up, style.down))
            if len(down) * self.ep_mesh.size() != self.number:
                what = f"{type(self.experts).__name__} has {len(down)} of {self.number} experts on this rank"
                plan = f'"grouped_gemm" for {style.gate_up} and {style.down}'
                raise ArgumentError(f"{what}, of {self.ep_mesh.size()} ranks: the plan needs {plan}", Site.of_user())
            given = hidden_states, top_k_index, top_k_weights
            return computed(
                given, gate_up, down, style.activation or gate_of(self.experts), self.layouts, style.options
            )

    EPImplementationInterface.register(name, TileLinkEP)
    return TileLinkEP
