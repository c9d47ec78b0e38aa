"""Layers and parallel styles of torch, computed by the operators of `tilelink.ops`.

    parallelize_module(block, mesh, {"ff": tilelink.nn.SharedColwiseParallel("gate", "up", input_layouts=Shard(1)),
                                     "ff.down": tilelink.nn.RowwiseParallel(output_layouts=Shard(1))})

Styles replace the styles of `torch.distributed.tensor.parallel`; layers replace Megatron's. See docs/layers.md.
"""

from tilelink.nn.expert_parallel import ExpertParallel, replace_moe
from tilelink.nn.layers import ColumnParallelLinear, RowParallelLinear
from tilelink.nn.moe import MoE
from tilelink.nn.styles import ColwiseParallel, RowwiseParallel, SharedColwiseParallel

__all__ = [
    "ColumnParallelLinear", "ColwiseParallel", "ExpertParallel", "MoE", "RowParallelLinear", "RowwiseParallel",
    "SharedColwiseParallel", "replace_moe",
]  # fmt: skip
