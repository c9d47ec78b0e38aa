"""Operators of torch for tensor and expert parallelism: linear layers and layers of experts, with their collectives.

    y = tilelink.ops.all_gather_linear(x, [w_gate, w_up], gather_dim=1, group=tp)

Importing this package registers them in `torch.ops.tilelink`. They have gradients, and can be compiled. On CUDA devices
they run our programs. On a CPU they run plain torch, or our programs in Triton's interpreter if TILELINK_BACKEND is
"interpret". See docs/operators.md.
"""

import importlib
import pkgutil
from collections.abc import Iterable

from tilelink.ops.all_gather_linear import all_gather_linear
from tilelink.ops.linear_all_reduce import linear_all_reduce
from tilelink.ops.linear_reduce_scatter import linear_reduce_scatter
from tilelink.ops.mixture_of_experts import (
    dispatch_linear,
    linear_combine,
    mixture_of_experts,
    moe_combine,
    moe_dispatch,
)
from tilelink.ops.moe_routing import even_placement, expert_places, moe_routing
from tilelink.ops.programs import lane, prepare
from tilelink.ops.symm_mem import replace_symm_mem_ops
from tilelink.ops.whole_layer import swiglu
from tilelink.plans import choose as plan

__all__ = [
    "all_gather_linear", "dispatch_linear", "even_placement", "expert_places", "lane", "linear_all_reduce",
    "linear_combine", "linear_reduce_scatter", "mixture_of_experts", "moe_combine", "moe_dispatch", "moe_routing",
    "plan", "prepare", "replace_symm_mem_ops", "swiglu",
]  # fmt: skip


def _take(folders: Iterable[str]) -> None:
    """Exports every function that has the name of its file. The imports above name known ones for type checkers."""
    for file in pkgutil.iter_modules(folders):
        module = importlib.import_module(f"{__name__}.{file.name}")
        if hasattr(module, file.name):
            globals()[file.name] = getattr(module, file.name)


_take(__path__)
