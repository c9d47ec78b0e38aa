"""Layers in Megatron's way: the two linear layers of a tensor-parallel pair, each holding the rank's own tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tilelink.errors import ArgumentError, Site, public, public_class
from tilelink.nn.linear import check_column_plan, check_row_plan, column_linear, row_linear, share
from tilelink.ops.checks import check_own_dtype, check_sizes, check_type, short
from tilelink.ops.collectives import Members, name_of_group


def _check_linears(layers: Sequence[Any], takes: str) -> None:
    """Raises ArgumentError unless all layers given to `from_linear` are linear layers. `takes`: what it takes."""
    for layer in layers:
        if not isinstance(layer, nn.Linear):
            of = f" of shape {tuple(layer.shape)}" if isinstance(layer, torch.Tensor) else ""
            what = f"from_linear is given a {type(layer).__name__}{of}"
            raise ArgumentError(f"{what}; it takes {takes}", Site.of_user())


class _Part(nn.Module):
    """The rank's part of linear layers that share their input, with their rows one layer under the other. `cut`: the
    dimension along which each parameter is cut, or None for a copy on every rank; `parts`: rows of each layer."""

    cut: ClassVar[dict[str, int | None]]
    weight: nn.Parameter
    bias: nn.Parameter | None
    in_features: int
    out_features: int | tuple[int, ...]
    group_name: str
    plan: str | None

    def _make(self, parts: Sequence[int], columns: int, bias: bool, device: Any, dtype: torch.dtype | None) -> None:
        self.parts, rows = list(parts), sum(parts)
        self.weight = nn.Parameter(torch.empty(rows, columns, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(rows, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @classmethod
    def _of(cls, whole: Sequence[nn.Linear], out_features: Any, **options: Any) -> Self:
        first = whole[0]
        layer: Self = nn.utils.skip_init(
            cls, first.in_features, out_features, first.bias is not None,
            device=first.weight.device, dtype=first.weight.dtype, **options,
        )  # fmt: skip
        layer._take(whole)
        for name, parameter in layer.named_parameters():
            parameter.requires_grad_(first.get_parameter(name).requires_grad)
        return layer

    def reset_parameters(self) -> None:
        """Sets new values: this rank's part of the values that `nn.Linear` would have."""
        bias, device, dtype = self.bias is not None, self.weight.device, self.weight.dtype
        sizes = [self.out_features] if isinstance(self.out_features, int) else self.out_features
        self._take([nn.Linear(self.in_features, n, bias, device, dtype) for n in sizes])

    def _take(self, whole: Sequence[nn.Linear]) -> None:
        """Copies the rank's part of whole layers into this layer."""
        members = Members.named(self.group_name)
        for name, parameter in self.named_parameters():
            for mine, layer in zip(parameter.detach().split(self.parts), whole, strict=True):
                theirs, dim = layer.get_parameter(name).detach(), self.cut[name]
                mine.copy_(theirs if dim is None else theirs.chunk(members.world, dim)[members.rank])

    def _shown(self, along: str, dim: int | None) -> str:
        told: dict[str, Any] = {"in_features": self.in_features, "out_features": self.out_features}
        told["bias"] = self.bias is not None
        if dim is not None:
            told |= {"sequence_parallel": True, along: dim}
        if self.plan is not None:
            told["plan"] = repr(self.plan)
        return ", ".join(f"{k}={v}" for k, v in told.items()) + f", a rank has {tuple(self.weight.shape)}"


@public_class
class ColumnParallelLinear(_Part):
    """A linear layer whose output features are spread over the ranks of a group: every rank has `out_features / ranks`
    of them, for all tokens. Several `out_features` (Q, K and V; gate and up) give as many results, from one weight and
    one gather.

    `weight` is the rank's own, (out_features / ranks, in_features); several weights lie one under the other. `bias` has
    as many rows. With `sequence_parallel` the input (..., in_features) is the rank's part of the tokens along
    `gather_dim`, and the layer is `tilelink.ops.all_gather_linear` with `plan`. Without it every rank has all tokens,
    the forward sends nothing, and the gradient of the input comes by `tilelink.ops.linear_all_reduce`.

    A new layer has its part of the values that `nn.Linear` would have: seed all ranks alike. `group`: of
    torch.distributed, or a mesh of one dimension; by default all processes. Raises ArgumentError, ShapeError,
    DtypeError, ScheduleError, WorldError.
    """

    cut: ClassVar = {"weight": 0, "bias": 0}

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
        given: Any = out_features
        one = isinstance(given, str) or not isinstance(given, Iterable)
        sizes = [given] if one else list(given)
        if not sizes:
            raise ArgumentError(f"out_features={out_features!r}: at least one is needed", Site.of_user())
        for n in sizes:
            check_sizes(in_features=in_features, out_features=n)
        check_type("gather_dim", gather_dim, "int")
        check_own_dtype(dtype)
        self.in_features = in_features
        self.out_features = int(sizes[0]) if one else tuple(sizes)
        self.gather_dim = gather_dim if sequence_parallel else None
        self.group_name, self.plan = name_of_group(group), plan
        check_column_plan(plan, sequence_parallel)
        world = Members.named(self.group_name).world
        self._make([share(n, world, "out_features") for n in sizes], in_features, bias, device, dtype)

    @classmethod
    @public
    def from_linear(cls, linear: nn.Linear | Sequence[nn.Linear], **options: Any) -> Self:
        """Returns the rank's part of a layer, or of several layers that share their input, with their dtype and device.
        `options`: as of the class."""
        if isinstance(linear, nn.Linear):
            return cls._of([linear], linear.out_features, **options)
        given: Any = linear
        several = list(given) if isinstance(given, Iterable) and not isinstance(given, torch.Tensor) else [given]
        _check_linears(several, "an nn.Linear, or a list of them")
        if len({(m.bias is not None, m.in_features) for m in several}) != 1:
            shown = ", ".join(str(m) for m in several) or "none"
            what = "layers that share their input have one width, and all a bias or none"
            raise ArgumentError(f"{what}; these are {shown}", Site.of_user())
        for all_have, of in (
            ("one dtype", lambda p: short(p.dtype)),
            ("a gradient, or all none", lambda p: f"requires_grad={p.requires_grad}"),
        ):
            have = [", ".join(f"{name} {of(p)}" for name, p in m.named_parameters()) for m in several]
            if len(set(have)) != 1:
                what = f"layers that share their input become one parameter, so all must have {all_have}"
                raise ArgumentError(f"{what}; these have {'; '.join(have)}", Site.of_user())
        return cls._of(several, [m.out_features for m in several], **options)

    def forward(self, input: torch.Tensor, lengths: Sequence[int] | None = None) -> Any:
        """Returns the result (..., out_features / ranks), or a list of results. `lengths`: how many tokens each rank
        has along `gather_dim`, if ranks differ."""
        weights = self.weight.split(self.parts)
        biases = [None] * len(weights) if self.bias is None else self.bias.split(self.parts)
        outs = column_linear(input, weights, biases, self.gather_dim, lengths, self.group_name, self.plan)
        return outs[0] if isinstance(self.out_features, int) else outs

    def extra_repr(self) -> str:
        return self._shown("gather_dim", self.gather_dim)


@public_class
class RowParallelLinear(_Part):
    """A linear layer whose input features are spread over the ranks of a group, as a `ColumnParallelLinear` before it
    leaves them. Products are summed over the ranks, and the bias is added once, to the sum.

    `weight` is the rank's own, (out_features, in_features / ranks). `bias`, (out_features,), and its gradient are the
    same on every rank. The input is (..., in_features / ranks). With `sequence_parallel` the result is the rank's part
    of the tokens along `scatter_dim`, by `tilelink.ops.linear_reduce_scatter`. Without it every rank has the whole
    result, by `tilelink.ops.linear_all_reduce`. `plan`: a plan of this operator.

    A new layer has its part of the values that `nn.Linear` would have: seed all ranks alike. `group`: of
    torch.distributed, or a mesh of one dimension; by default all processes. Raises ArgumentError, ShapeError,
    DtypeError, ScheduleError, WorldError.
    """

    cut: ClassVar = {"weight": 1, "bias": None}

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
        check_sizes(in_features=in_features, out_features=out_features)
        check_type("scatter_dim", scatter_dim, "int")
        check_own_dtype(dtype)
        self.in_features, self.out_features = in_features, int(out_features)
        self.scatter_dim = scatter_dim if sequence_parallel else None
        self.group_name, self.plan = name_of_group(group), plan
        check_row_plan(plan, sequence_parallel)
        columns = share(in_features, Members.named(self.group_name).world, "in_features")
        self._make([out_features], columns, bias, device, dtype)

    @classmethod
    @public
    def from_linear(cls, linear: nn.Linear, **options: Any) -> Self:
        """Returns the rank's part of a layer, with the layer's dtype and device. `options`: as of the class."""
        _check_linears([linear], "one nn.Linear")
        return cls._of([linear], linear.out_features, **options)

    def forward(self, input: torch.Tensor, lengths: Sequence[int] | None = None) -> torch.Tensor:
        """Returns the result (..., out_features). `lengths`: how many tokens each rank gets along `scatter_dim`, if
        the ranks can't share them evenly."""
        return row_linear(input, self.weight, self.bias, self.scatter_dim, lengths, self.group_name, self.plan)

    def extra_repr(self) -> str:
        return self._shown("scatter_dim", self.scatter_dim)
