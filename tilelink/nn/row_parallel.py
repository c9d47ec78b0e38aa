"""RowParallelLinear: the second linear layer of a tensor-parallel pair, in Megatron's way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tilelink.nn.linear import check_row_plan, row_linear
from tilelink.nn.shards import copy_part, share, shown
from tilelink.ops.collectives import name_of_group, size_of_group


class RowParallelLinear(nn.Module):
    """A linear layer whose input features are spread over the ranks of a group, as a `ColumnParallelLinear` before it
    leaves them: products are summed over the ranks, and the bias is added once, to the sum.

    `weight` is the rank's own, (out_features, in_features / ranks); `bias` (out_features,) the same on every rank, and
    so is its gradient. The input is (..., in_features / ranks). With `sequence_parallel` the result is the rank's part
    of the tokens along `scatter_dim`, by `tilelink.ops.linear_reduce_scatter`; without it all of it on every rank, by
    `tilelink.ops.linear_all_reduce`. `plan`: one of that operator.

    A new layer has the values that `nn.Linear` would have, cut: seed all ranks alike. `group`: of torch.distributed, or
    a mesh of one dimension; by default all processes. Raises ShapeError, ScheduleError, WorldError.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        sequence_parallel: bool = False,
        scatter_dim: int = 0,
        group: dist.ProcessGroup | DeviceMesh | str | None = None,
        plan: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.scatter_dim = scatter_dim if sequence_parallel else None
        self.group_name, self.plan = name_of_group(group), plan
        check_row_plan(plan, sequence_parallel)
        part = share(in_features, size_of_group(self.group_name), "in_features")
        self.weight = nn.Parameter(torch.empty(out_features, part, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @classmethod
    def from_linear(cls, linear: nn.Linear, **options: Any) -> RowParallelLinear:
        """The rank's part of a layer; dtype and device are its own. `options`: those of the class."""
        weight, bias = linear.weight, linear.bias is not None
        layer: RowParallelLinear = nn.utils.skip_init(
            cls, linear.in_features, linear.out_features, bias, device=weight.device, dtype=weight.dtype, **options
        )
        layer._take(linear)
        for name, parameter in layer.named_parameters():
            parameter.requires_grad_(linear.get_parameter(name).requires_grad)
        return layer

    def reset_parameters(self) -> None:
        """New values, those of `nn.Linear` cut."""
        bias, device, dtype = self.bias is not None, self.weight.device, self.weight.dtype
        self._take(nn.Linear(self.in_features, self.out_features, bias, device, dtype))

    def forward(self, input: torch.Tensor, lengths: Sequence[int] | None = None) -> torch.Tensor:
        """The result (..., out_features). `lengths`: how many tokens each rank gets along `scatter_dim`, where they
        can't be shared evenly."""
        return row_linear(input, self.weight, self.bias, self.scatter_dim, lengths, self.group_name, self.plan)

    def extra_repr(self) -> str:
        return shown(self, scatter_dim=self.scatter_dim)

    def _take(self, whole: nn.Linear) -> None:
        """Copies the rank's part of a layer into this one."""
        copy_part(whole.weight, self.weight.detach(), 1, self.group_name)
        if self.bias is not None:
            copy_part(whole.bias, self.bias.detach(), None, self.group_name)
