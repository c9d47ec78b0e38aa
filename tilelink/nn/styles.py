"""Parallel styles for `torch.distributed.tensor.parallel.parallelize_module`: torch's own, by our operators."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement
from torch.distributed.tensor.parallel import ColwiseParallel as TorchColwiseParallel
from torch.distributed.tensor.parallel import RowwiseParallel as TorchRowwiseParallel

from tilelink.nn.layouts import is_shard
from tilelink.nn.linear import check_column_plan, check_row_plan
from tilelink.nn.spreading import can_be_ours, layouts_of, make_colwise, make_rowwise


class ColwiseParallel(TorchColwiseParallel):
    """As torch's ColwiseParallel, with the same arguments: output features of an `nn.Linear` are spread over the ranks.
    Where its input is spread over tokens (`input_layouts=Shard(1)`, say), the gather and the product are one
    `tilelink.ops.all_gather_linear`, with `plan`; where every rank has the input, its gradient comes by
    `linear_all_reduce`. All else is as in torch: other modules, features that can't be shared evenly, a redistribution
    of the result. For linears that share one input there is `SharedColwiseParallel`.

    Raises ScheduleError, ArgumentError, and ShapeError where a plan asks for a program and features can't be shared.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        plan: str | None = None,
    ) -> None:
        super().__init__(
            input_layouts=input_layouts, output_layouts=output_layouts, use_local_output=use_local_output
        )
        check_column_plan(plan, is_shard(self.input_layouts[0]))
        self.plan = plan

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        layouts = layouts_of(self, device_mesh, self.plan)
        if not can_be_ours(module, "out_features", device_mesh, self.plan):
            return super()._apply(module, device_mesh)
        make_colwise({"": module}, device_mesh, layouts, self.src_data_rank)
        return module


class RowwiseParallel(TorchRowwiseParallel):
    """As torch's RowwiseParallel, with the same arguments: input features of an `nn.Linear` are spread over the ranks,
    and products are summed over them. A result that is spread over tokens (`output_layouts=Shard(1)`, say) is one
    `tilelink.ops.linear_reduce_scatter`, one that every rank has (Replicate(), the default) a `linear_all_reduce`;
    `plan` is one of that operator. All else is as in torch: other modules, features that can't be shared evenly, a
    redistribution of the input, a result that is Partial().

    Raises ScheduleError, ArgumentError, and ShapeError where a plan asks for a program and features can't be shared.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        plan: str | None = None,
    ) -> None:
        super().__init__(
            input_layouts=input_layouts, output_layouts=output_layouts, use_local_output=use_local_output
        )
        check_row_plan(plan, is_shard(self.output_layouts[0]), self.output_layouts[0].is_partial())
        self.plan = plan

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        layouts = layouts_of(self, device_mesh, self.plan)
        if layouts.output.is_partial() or not can_be_ours(module, "in_features", device_mesh, self.plan):
            return super()._apply(module, device_mesh)
        make_rowwise(module, device_mesh, layouts, self.src_data_rank)
        return module
