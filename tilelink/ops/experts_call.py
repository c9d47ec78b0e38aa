"""What calls of the operators of experts have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from tilelink.errors import DtypeError, ShapeError
from tilelink.ops.checks import check_dtype, short
from tilelink.ops.operator import Call
from tilelink.ops.plain import Plain
from tilelink.ops.programs import Programs, path_of
from tilelink.plans.layer_plans import OF_ROWS, Pair, plan_of
from tilelink.plans.names import AUTO, TORCH, Plan
from tilelink.programs.program import Program


class OfExperts(Call):
    """A call on rows that go to experts. `x`: a matrix of tokens or rows; `counts`: (experts of all ranks, world), the
    same on every rank; `order`: (sent,), the token of each row that this rank sends; `place`: (tokens, top), the row of
    each choice of a token, or -1; `weight`: (experts of this rank, N, K), in calls with a product; `program`: by which
    it is computed; `pair`: the programs whose schedules are its plans."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    program: ClassVar[Program]
    pair: ClassVar[Pair] = OF_ROWS
    once_differentiable = True
    counts: torch.Tensor
    weight: torch.Tensor

    @property
    def options(self) -> dict[str, Any]:
        """What the calls of its gradient take of it, besides tensors."""
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
        """Raises ScheduleError for what is no plan, TileSizeError for a tile that can't be."""
        if self.plan not in (None, TORCH, AUTO):
            plan_of(self.pair, self.program, self.plan)

    def check_weight(self, weight: torch.Tensor) -> None:
        experts = len(self.counts) // self.members.world
        if weight.dim() != 3 or len(weight) != experts or weight.shape[2] != self.x.shape[1]:
            raise ShapeError(
                f"weight has shape {tuple(weight.shape)}; "
                f"it must be ({experts}, N, {self.x.shape[1]}), of the experts of a rank"
            )
        if weight.dtype != self.x.dtype:
            raise DtypeError(f"weight is {short(weight.dtype)}, x {short(self.x.dtype)}; both must have one dtype")

    def or_nothing(self, tensor: torch.Tensor | None) -> torch.Tensor:
        """The tensor; an empty one for None, which operators do not return."""
        return self.x.new_empty(0) if tensor is None else tensor

    def told(self) -> Mapping[str, Any]:
        """The shapes of its tensors, and its numbers."""
        given = {n: getattr(self, n) for n in self.__dataclass_fields__ if n not in ("group_name", "plan")}
        return {n: tuple(v.shape) if isinstance(v, torch.Tensor) else v for n, v in given.items()}

    def _path(self) -> Plain:
        """Nothing of this is predicted: "auto" is the first schedule."""
        path = path_of(self.x.device, self.plan)
        if path is Plain or not self.x.numel():
            return Plain(self.members)
        return Programs(self.members, self.plan_of_path())

    def plan_of_path(self) -> Plan:
        """The program, in the schedule that the call names."""
        return plan_of(self.pair, self.program, None if self.plan == AUTO else self.plan)

    def parts(self, **lengths: int) -> dict[str, Sequence[int]]:
        """Tokens of each rank, and the room for rows on both sides."""
        return {d: (n,) * self.members.world for d, n in lengths.items()}
