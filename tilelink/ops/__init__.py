"""Operators of torch: linear layers with the collective before or behind them, for tensor parallelism.

    y = tilelink.ops.all_gather_linear(x, [w_gate, w_up], gather_dim=1, group=tp)

They stand in `torch.ops.tilelink` once this package is imported, have gradients, and can be compiled. On CUDA devices
they run our programs; on a CPU plain torch, or the programs in Triton's interpreter where TILELINK_BACKEND is
"interpret". See docs/operators.md.
"""

from tilelink.ops.all_gather_linear import all_gather_linear
from tilelink.ops.lanes import lane
from tilelink.ops.linear_all_reduce import linear_all_reduce
from tilelink.ops.linear_reduce_scatter import linear_reduce_scatter
from tilelink.ops.preparing import prepare
from tilelink.ops.symm_mem import replace_symm_mem_ops
from tilelink.plans import choose as plan

__all__ = [
    "all_gather_linear", "lane", "linear_all_reduce", "linear_reduce_scatter", "plan", "prepare",
    "replace_symm_mem_ops",
]  # fmt: skip
