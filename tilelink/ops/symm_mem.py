"""Replaces torch's fused symmetric-memory operators, which async tensor parallelism calls, with our operators."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilelink.errors import ShapeError, Site, TargetError
from tilelink.ops.all_gather_linear import all_gather_linear
from tilelink.ops.linear_reduce_scatter import linear_reduce_scatter

SCALED = ("fused_all_gather_scaled_matmul", "fused_scaled_matmul_reduce_scatter")


class SymmMemOps:
    """See `replace_symm_mem_ops`."""

    _library: torch.library.Library | None = None
    _asked = 0

    def enable(self) -> None:
        """Makes calls of the fused operators run ours from now on. Call `disable` once for each `enable`."""
        cls = type(self)
        cls._asked += 1
        if cls._library is not None:
            return
        import torch.distributed._symmetric_memory  # defines torch.ops.symm_mem, and takes seconds

        library = torch.library.Library("symm_mem", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*[Oo]verriding a previously registered kernel.*")
            for device in ("CPU", "CUDA"):
                library.impl("fused_all_gather_matmul", _fused_all_gather_matmul, device, allow_override=True)
                library.impl("fused_matmul_reduce_scatter", _fused_matmul_reduce_scatter, device, allow_override=True)
        for name in SCALED:  # torch has them on CUDA devices, where they stay
            library.impl(name, _not_scaled(name), "CPU")
        cls._library = library

    def disable(self) -> None:
        """Undoes one `enable`. After the last one, torch's own operators run again."""
        cls = type(self)
        cls._asked = max(cls._asked - 1, 0)
        if not cls._asked:
            cls._library = None  # torch undoes the registrations of a library when nothing refers to it

    def __enter__(self) -> SymmMemOps:
        self.enable()
        return self

    def __exit__(self, *_: object) -> None:
        self.disable()


def replace_symm_mem_ops() -> SymmMemOps:
    """Makes `torch.ops.symm_mem.fused_all_gather_matmul` and `fused_matmul_reduce_scatter` run our operators, on CUDA
    devices and on CPUs. This holds inside `with tilelink.replace_symm_mem_ops():`, or between `.enable()` and
    `.disable()` of the returned object. Code that torch compiles to these operators (async tensor parallelism) then
    runs ours. The operators for scaled (float8) matrices stay torch's on CUDA devices. On CPUs, where torch has none,
    they raise TargetError."""
    return SymmMemOps()


def _fused_all_gather_matmul(
    A_shard: torch.Tensor, Bs: Sequence[torch.Tensor], gather_dim: int, group_name: str, *, return_A: bool = True
) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    weights = [_linear_weight(B) for B in Bs]
    found = all_gather_linear(A_shard, weights, gather_dim=gather_dim, group=group_name, return_gathered=return_A)
    return found if return_A else (None, found)


def _fused_matmul_reduce_scatter(
    A: torch.Tensor, B: torch.Tensor, reduce_op: str, scatter_dim: int, group_name: str
) -> torch.Tensor:
    return linear_reduce_scatter(A, _linear_weight(B), scatter_dim=scatter_dim, reduce_op=reduce_op, group=group_name)


def _linear_weight(B: torch.Tensor) -> torch.Tensor:
    """Returns the weight (N, K) of torch's B (K, N). Raises ShapeError."""
    if B.dim() != 2:
        raise ShapeError(f"B has shape {tuple(B.shape)}: it must be (K, N)", Site.of_user())
    return B.T


def _not_scaled(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise TargetError(f"symm_mem.{name} is not replaced, and torch has none for CPUs", Site.of_user())

    return refuse
