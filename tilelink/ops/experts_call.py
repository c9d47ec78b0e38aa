"""The base class of all calls of operators of experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from tilelink.errors import ShapeError
from tilelink.ops.checks import check_dtype, check_one_dtype
from tilelink.ops.operator import Call
from tilelink.ops.plain import Plain
from tilelink.ops.programs import path_of
from tilelink.plans.layer_plans import OF_ROWS, Pair, plan_of
from tilelink.plans.names import AUTO, Plan, names_program
from tilelink.programs.program import Program


class OfExperts(Call):
    """A call on rows that go to experts. `x`: a matrix of tokens or rows; `counts`: (experts of all ranks, world), rows
    of each expert from each rank; `order`: (sent,), the token of each row that this rank sends; `place`: (tokens, top),
    the row of each choice of a token, or -1; `weight`: (experts of this rank, N, K), in calls with a product;
    `program`: the program that computes it; `pair`: the two programs whose schedules are its plans."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    program: ClassVar[Program]
    pair: ClassVar[Pair] = OF_ROWS
    counts: torch.Tensor
    weight: torch.Tensor

    @property
    def options(self) -> dict[str, Any]:
        """The options that calls of its gradient take from it."""
        return {"group_name": self.group_name, "plan": self.plan}

    def check(self) -> None:
        if self.x.dim() != 2:
            raise ShapeError(f"x has shape {tuple(self.x.shape)}; it must be a matrix of rows")
        check_dtype(self.x.dtype)
        shape, world = tuple(self.counts.shape), self.members.world
        if len(shape) != 2 or shape[1] != world or not shape[0] or shape[0] % world:
            raise ShapeError(
                f"counts have shape {shape}; "
                f"it must be (experts of all ranks, {world}), with as many experts on each rank"
            )
        self.check_plan()
        if "weight" in self.__dataclass_fields__:
            self.check_weight(self.weight)

    def check_plan(self) -> None:
        """Raises ScheduleError for an unknown plan, TileSizeError for an impossible tile."""
        if names_program(self.plan):
            plan_of(self.pair, self.program, self.plan)

    def check_weight(self, weight: torch.Tensor) -> None:
        experts = len(self.counts) // self.members.world
        if weight.dim() != 3 or len(weight) != experts or weight.shape[2] != self.x.shape[1]:
            raise ShapeError(
                f"weight has shape {tuple(weight.shape)}; "
                f"it must be ({experts}, N, {self.x.shape[1]}), of the experts of a rank"
            )
        check_one_dtype(self.x, {"weight": weight})

    def or_nothing(self, tensor: torch.Tensor | None) -> torch.Tensor:
        """Returns the tensor, or an empty one for None, since operators do not return None."""
        return self.x.new_empty(0) if tensor is None else tensor

    def told(self) -> Mapping[str, Any]:
        """Returns the shapes of its tensors and the values of its other fields, without group and plan."""
        given = {n: getattr(self, n) for n in self.__dataclass_fields__ if n not in ("group_name", "plan")}
        return {n: tuple(v.shape) if isinstance(v, torch.Tensor) else v for n, v in given.items()}

    def _plan(self) -> Plan | None:
        """Returns the plan of the call. Such calls are not predicted, so "auto" takes the first schedule."""
        if path_of(self.x.device, self.plan) is Plain or not self.x.numel():
            return None
        return self.plan_of_path()

    def plan_of_path(self) -> Plan:
        """Returns the program in the schedule that the call names."""
        return plan_of(self.pair, self.program, None if self.plan == AUTO else self.plan)

    def parts(self, **lengths: int) -> dict[str, Sequence[int]]:
        """Returns the parts of each dimension: every rank has the same length."""
        return {d: (n,) * self.members.world for d, n in lengths.items()}


class WithoutSchedules(OfExperts):
    """A call whose program has no choice of schedules. `plan`: the plan of the layer, which here says only whether
    plain torch computes."""

    def check_plan(self) -> None:
        """Takes any plan."""

    def plan_of_path(self) -> Plan:
        return plan_of(self.pair, self.program, None)
