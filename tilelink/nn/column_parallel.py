"""ColumnParallelLinear: the first linear layer of a tensor-parallel pair, in Megatron's way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tilelink.errors import ArgumentError, Site
from tilelink.nn.linear import check_column_plan, column_linear
from tilelink.nn.shards import copy_part, share, shown
from tilelink.ops.collectives import name_of_group, size_of_group


class ColumnParallelLinear(nn.Module):
    """A linear layer whose outputs are spread over the ranks of a group: every rank has `out_features / ranks` of them,
    of all tokens. For several `out_features` (Q, K and V; gate and up) there are as many results, of one weight and one
    gather.

    `weight` is the rank's own, (out_features / ranks, in_features), those of several one under the other; `bias` as
    long. With `sequence_parallel` the input (..., in_features) is the rank's part of the tokens along `gather_dim`, and
    the layer is `tilelink.ops.all_gather_linear` with `plan`; without it every rank has all tokens, nothing is sent in
    the forward, and the gradient of the input comes by `tilelink.ops.linear_all_reduce`.

    A new layer has the values that `nn.Linear` would have, cut: seed all ranks alike. `group`: of torch.distributed, or
    a mesh of one dimension; by default all processes. Raises ShapeError, ScheduleError, ArgumentError, WorldError.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int | Sequence[int],
        bias: bool = True,
        *,
        sequence_parallel: bool = False,
        gather_dim: int = 0,
        group: dist.ProcessGroup | DeviceMesh | str | None = None,
        plan: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features if isinstance(out_features, int) else tuple(out_features)
        self.gather_dim = gather_dim if sequence_parallel else None
        self.group_name, self.plan = name_of_group(group), plan
        check_column_plan(plan, sequence_parallel)
        world = size_of_group(self.group_name)
        self.parts = [share(n, world, "out_features") for n in self._several()]
        rows = sum(self.parts)
        self.weight = nn.Parameter(torch.empty(rows, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(rows, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @classmethod
    def from_linear(cls, linear: nn.Linear | Sequence[nn.Linear], **options: Any) -> ColumnParallelLinear:
        """The rank's part of a layer, or of several that share their input; dtype and device are theirs. `options`:
        those of the class."""
        several = [linear] if isinstance(linear, nn.Linear) else list(linear)
        biases, widths = {m.bias is not None for m in several}, {m.in_features for m in several}
        if len(biases) != 1 or len(widths) != 1:
            shown = ", ".join(str(m) for m in several) or "none"
            what = "layers that share their input have one width, and all a bias or none"
            raise ArgumentError(f"{what}; these are {shown}", Site.of_user())
        sizes = [m.out_features for m in several]
        first = several[0].weight
        layer: ColumnParallelLinear = nn.utils.skip_init(
            cls, widths.pop(), sizes[0] if isinstance(linear, nn.Linear) else sizes, biases.pop(),
            device=first.device, dtype=first.dtype, **options,
        )  # fmt: skip
        layer._take(several)
        for name, parameter in layer.named_parameters():
            parameter.requires_grad_(any(m.get_parameter(name).requires_grad for m in several))
        return layer

    def reset_parameters(self) -> None:
        """New values, those of `nn.Linear` cut."""
        bias, device, dtype = self.bias is not None, self.weight.device, self.weight.dtype
        self._take([nn.Linear(self.in_features, n, bias, device, dtype) for n in self._several()])

    def forward(self, input: torch.Tensor, lengths: Sequence[int] | None = None) -> Any:
        """The result (..., out_features / ranks), or a list of them. `lengths`: how many tokens each rank has along
        `gather_dim`, where that differs."""
        weights = self.weight.split(self.parts)
        biases = [None] * len(weights) if self.bias is None else self.bias.split(self.parts)
        outs = column_linear(input, weights, biases, self.gather_dim, lengths, self.group_name, self.plan)
        return outs[0] if isinstance(self.out_features, int) else outs

    def extra_repr(self) -> str:
        return shown(self, gather_dim=self.gather_dim)

    def _several(self) -> Sequence[int]:
        return [self.out_features] if isinstance(self.out_features, int) else self.out_features

    def _take(self, whole: Sequence[nn.Linear]) -> None:
        """Copies the rank's part of layers into this one."""
        for name, parameter in self.named_parameters():
            for mine, layer in zip(parameter.detach().split(self.parts), whole, strict=True):
                copy_part(layer.get_parameter(name), mine, 0, self.group_name)
