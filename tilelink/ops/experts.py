"""The operators of torch that layers of experts are made of. Each is the gradient of another: rows go to experts and
come back, with a product on the way or without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tilelink.errors import ArgumentError, DtypeError, ScheduleError, ShapeError, listed
from tilelink.kernels.combine import combine
from tilelink.kernels.dispatch import dispatch
from tilelink.kernels.dispatch_matmul import dispatch_matmul
from tilelink.kernels.expert_weight_gradient import expert_weight_gradient
from tilelink.kernels.matmul_combine import matmul_combine
from tilelink.ops import routed
from tilelink.ops.checks import DTYPES
from tilelink.ops.operator import Call, Operator
from tilelink.ops.plain import Plain
from tilelink.ops.programs import Programs, path_of
from tilelink.plans.names import AUTO, TORCH, Plan
from tilelink.programs.program import Program
from tilelink.programs.schedule_text import NamedSchedule


class OfExperts(Call):
    """A call on rows that go to experts. `x`: a matrix of tokens or rows; `counts`: (experts of all ranks, world), the
    same on every rank; `order`: (sent,), the token of each row that this rank sends; `place`: (tokens, top), the row of
    each choice of a token, or -1; `program`: by which it is computed."""

    program: ClassVar[Program]
    counts: torch.Tensor

    def check(self) -> None:
        if self.x.dim() != 2 or self.x.dtype not in DTYPES:
            raise DtypeError(f"x is {self.x.dtype} {tuple(self.x.shape)}: a matrix of rows, of {DTYPES}")
        shape, world = tuple(self.counts.shape), self.members.world
        if len(shape) != 2 or shape[1] != world or not shape[0] or shape[0] % world:
            raise ShapeError(f"counts have shape {shape}: (experts of all ranks, {world}), as many on each rank")
        self.check_plan()

    def check_plan(self) -> None:
        known = list(self.program.schedules)
        if self.plan not in (None, TORCH, AUTO, *known):
            raise ScheduleError(f"plan is {self.plan!r}; there are {listed([*known, TORCH, AUTO], str(self.plan))}")

    def check_weight(self, weight: torch.Tensor) -> None:
        experts = len(self.counts) // self.members.world
        if weight.dim() != 3 or len(weight) != experts or weight.shape[2] != self.x.shape[1]:
            raise ShapeError(
                f"weight has shape {tuple(weight.shape)}: ({experts}, N, {self.x.shape[1]}), of the experts of a rank"
            )
        if weight.dtype != self.x.dtype:
            raise DtypeError(f"weight is {weight.dtype}, x {self.x.dtype}: both have one dtype")

    def told(self) -> Mapping[str, Any]:
        return {"rows": tuple(self.x.shape), "experts": tuple(self.counts.shape)}

    def _path(self) -> Plain:
        """Nothing of this is predicted: "auto" is the first schedule."""
        path = path_of(self.x.device, self.plan)
        if path is Plain or not self.x.numel():
            return Plain(self.members)
        name = next(iter(self.program.schedules)) if self.plan in (None, AUTO) else str(self.plan)
        return Programs(self.members, Plan(name, self.program, NamedSchedule(name)))

    def parts(self, **lengths: int) -> dict[str, Sequence[int]]:
        """Tokens of each rank, and the room for rows on both sides."""
        return {d: (n,) * self.members.world for d, n in lengths.items()}


class Sums(OfExperts):
    """A call that adds rows up, each times its entry of `weights`, (tokens, top). `sent`: room for rows that come back;
    `keep`: whether these are a result, too, as the gradient of weights needs them."""

    place: torch.Tensor
    weights: torch.Tensor | None
    sent: int
    keep: bool

    def told(self) -> Mapping[str, Any]:
        place, weights = tuple(self.place.shape), self.weights is not None
        return {**super().told(), "place": place, "weights": weights, "sent": self.sent, "keep": self.keep}

    def results_of(self, path: Programs, columns: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Where a program puts the sums, and the rows that come back."""
        sums = path.empty(self.x, (len(self.place), columns))
        return sums, path.empty(self.x, (self.sent, columns)) if self.keep else None

    def summed(self, back: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The results in plain torch, of the rows that came back."""
        return routed.summed(back, self.place, self.weights), back if self.keep else back.new_empty(0)

    def keep_for_gradients(self, ctx: Any, back: torch.Tensor, *more: torch.Tensor) -> None:
        if self.weights is not None and self.weights.requires_grad and not self.keep:
            raise ArgumentError("weights get their gradient from the rows that come back: keep=True")
        ctx.called = {"counts": self.counts, "group_name": self.group_name, "plan": self.plan}
        ctx.sent, ctx.room = self.sent, len(self.x)
        ctx.mark_non_differentiable(back)
        ctx.save_for_backward(self.place, self.weights, back, *more)


def spread(ctx: Any, grad: torch.Tensor) -> dict[str, Any]:
    """What dispatches the gradients of the rows that tokens are sums of, each a token of its own."""
    place, weights, *_ = ctx.saved_tensors
    order = torch.arange(ctx.sent, dtype=torch.int32, device=grad.device)
    rows = routed.spread(grad, place, weights, ctx.sent)
    return {"x": rows, "order": order, "place": order[:, None], "room": ctx.room, **ctx.called}


@dataclass
class DispatchLinear(OfExperts):
    """Tokens go to their experts, each of which multiplies its rows: (room, N); and the rows themselves, where they are
    asked for. Behind the rows of this rank there is room."""

    name = "dispatch_linear"
    results = "(Tensor, Tensor)"
    program = dispatch_matmul

    x: torch.Tensor
    weight: torch.Tensor
    counts: torch.Tensor
    order: torch.Tensor
    place: torch.Tensor
    room: int
    keep: bool
    group_name: str
    plan: str | None

    def check(self) -> None:
        super().check()
        self.check_weight(self.weight)

    def told(self) -> Mapping[str, Any]:
        shapes = {"weight": tuple(self.weight.shape), "order": tuple(self.order.shape)}
        return {**super().told(), **shapes, "room": self.room, "keep": self.keep}

    def run(self, path: Plain) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight, nothing = self.x, self.weight, self.x.new_empty(0)
        if not isinstance(path, Programs):
            rows = routed.dispatched(path, routed.taken(x, self.order), self.counts, self.room)
            return routed.multiplied(path, rows, weight, self.counts), rows if self.keep else nothing
        out = path.empty(x, (self.room, weight.shape[1]))
        kept = path.empty(x, (self.room, x.shape[1])) if self.keep else None
        parts = self.parts(tokens=len(x), sent=len(self.order), routed=self.room)
        path.call(x, weight.mT, self.counts, self.order, out=out, gathered=kept, parts=parts)
        return out, nothing if kept is None else kept

    def setup(self, ctx: Any, output: tuple[torch.Tensor, torch.Tensor]) -> None:
        if self.weight.requires_grad and not self.keep:
            raise ArgumentError("a weight gets its gradient from the rows of its expert: keep=True")
        ctx.call = {"group_name": self.group_name, "plan": self.plan}
        ctx.sent = len(self.order)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(self.weight, self.counts, self.place, output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Mapping[str, Any]:
        (weight, counts, place, rows), (grad, _) = ctx.saved_tensors, grads
        found = {}
        if ctx.needs_input_grad[0]:
            back = {"place": place, "weights": None, "sent": ctx.sent, "keep": False}
            found["x"], _ = linear_combine(x=grad.contiguous(), weight=weight.mT, counts=counts, **back, **ctx.call)
        if ctx.needs_input_grad[1]:
            found["weight"] = expert_gradients(dout=grad, x=rows, counts=counts, **ctx.call)
        return found


@dataclass
class LinearCombine(Sums):
    """Each expert multiplies its rows, these go back where they came from, and each token adds up its own: (tokens, N);
    and the rows that came back, (sent, N), in the order of experts, where they are asked for."""

    name = "linear_combine"
    results = "(Tensor, Tensor)"
    program = matmul_combine

    x: torch.Tensor
    weight: torch.Tensor
    counts: torch.Tensor
    place: torch.Tensor
    weights: torch.Tensor | None
    sent: int
    keep: bool
    group_name: str
    plan: str | None

    def check(self) -> None:
        super().check()
        self.check_weight(self.weight)

    def told(self) -> Mapping[str, Any]:
        return {**super().told(), "weight": tuple(self.weight.shape)}

    def run(self, path: Plain) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = self.x, self.weight
        if not isinstance(path, Programs):
            routed.check_room(path, self.counts, self.sent, len(x))
            made = routed.multiplied(path, x, weight, self.counts)
            return self.summed(routed.combined(path, made, self.counts, self.sent))
        out, kept = self.results_of(path, weight.shape[1])
        parts = self.parts(tokens=len(self.place), sent=self.sent, routed=len(x))
        path.call(x, weight.mT, self.counts, self.place, out=out, weights=self.weights, kept=kept, parts=parts)
        return out, x.new_empty(0) if kept is None else kept

    def setup(self, ctx: Any, output: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.keep_for_gradients(ctx, output[1], self.x, self.weight)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Mapping[str, Any]:
        (place, _, back, x, weight), grad, keep = ctx.saved_tensors, grads[0], bool(ctx.needs_input_grad[1])
        found = {"weights": routed.weights_of(grad, place, back)} if ctx.needs_input_grad[4] else {}
        if ctx.needs_input_grad[0] or keep:
            found["x"], rows = dispatch_linear(weight=weight.mT, keep=keep, **spread(ctx, grad))
        return found | ({"weight": expert_gradients(dout=rows, x=x, **ctx.called)} if keep else {})


@dataclass
class Dispatch(OfExperts):
    """Tokens go to their experts: (room, K), by expert and source. Behind the rows of this rank there is room."""

    name = "moe_dispatch"
    results = "Tensor"
    program = dispatch

    x: torch.Tensor
    counts: torch.Tensor
    order: torch.Tensor
    place: torch.Tensor
    room: int
    group_name: str
    plan: str | None

    def told(self) -> Mapping[str, Any]:
        return {**super().told(), "order": tuple(self.order.shape), "room": self.room}

    def run(self, path: Plain) -> torch.Tensor:
        if not isinstance(path, Programs):
            return routed.dispatched(path, routed.taken(self.x, self.order), self.counts, self.room)
        out = path.empty(self.x, (self.room, self.x.shape[1]))
        parts = self.parts(tokens=len(self.x), sent=len(self.order), routed=self.room)
        path.call(self.x, self.counts, self.order, out=out, parts=parts)
        return out

    def setup(self, ctx: Any, output: torch.Tensor) -> None:
        ctx.call = {"sent": len(self.order), "group_name": self.group_name, "plan": self.plan}
        ctx.save_for_backward(self.counts, self.place)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Mapping[str, Any]:
        counts, place = ctx.saved_tensors
        back = {"counts": counts, "place": place, "weights": None, "keep": False}
        return {"x": moe_combine(x=grads[0].contiguous(), **back, **ctx.call)[0]}


@dataclass
class Combine(Sums):
    """Rows go back from their experts, and each token adds up its own: (tokens, K); and the rows that came back,
    (sent, K), in the order of all experts, where they are asked for."""

    name = "moe_combine"
    results = "(Tensor, Tensor)"
    program = combine

    x: torch.Tensor
    counts: torch.Tensor
    place: torch.Tensor
    weights: torch.Tensor | None
    sent: int
    keep: bool
    group_name: str
    plan: str | None

    def run(self, path: Plain) -> tuple[torch.Tensor, torch.Tensor]:
        if not isinstance(path, Programs):
            return self.summed(routed.combined(path, self.x, self.counts, self.sent))
        out, kept = self.results_of(path, self.x.shape[1])
        parts = self.parts(tokens=len(self.place), sent=self.sent, routed=len(self.x))
        path.call(self.x, self.counts, self.place, out=out, weights=self.weights, kept=kept, parts=parts)
        return out, self.x.new_empty(0) if kept is None else kept

    def setup(self, ctx: Any, output: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.keep_for_gradients(ctx, output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Mapping[str, Any]:
        (place, _, back), grad = ctx.saved_tensors, grads[0]
        found = {"weights": routed.weights_of(grad, place, back)} if ctx.needs_input_grad[3] else {}
        return found | ({"x": moe_dispatch(**spread(ctx, grad))} if ctx.needs_input_grad[0] else {})


@dataclass
class ExpertGradients(OfExperts):
    """dout^T @ x over the rows of each expert of this rank: the gradients of weights (experts, N, K)."""

    name = "expert_gradients"
    results = "Tensor"
    program = expert_weight_gradient

    dout: torch.Tensor
    x: torch.Tensor
    counts: torch.Tensor
    group_name: str
    plan: str | None

    def check_plan(self) -> None:
        """The plan is that of a layer: it says whether plain torch computes this."""
        self.plan = TORCH if self.plan == TORCH else None

    def run(self, path: Plain) -> torch.Tensor:
        if not isinstance(path, Programs):
            return routed.weight_gradients(path, self.dout, self.x, self.counts)
        experts = len(self.counts) // self.members.world
        made = path.empty(self.x, (experts, self.dout.shape[1], self.x.shape[1]))
        parts = self.parts(sent=self.members.world * len(self.x), routed=len(self.x))
        path.call(self.dout, self.x, self.counts, dweight=made, parts=parts)
        return made


@dataclass
class GatherCounts(OfExperts):
    """The counts of all ranks, (experts of all ranks, world), from those of each: x is (1, experts of all ranks).
    `tokens`: the most that a rank has, each at `top` experts."""

    name = "gather_counts"
    results = "Tensor"
    program = dispatch

    x: torch.Tensor
    tokens: int
    top: int
    group_name: str
    plan: str | None

    def check(self) -> None:
        if self.x.dtype != torch.int32 or self.x.dim() != 2 or len(self.x) != 1 or self.x.shape[1] % self.members.world:
            raise ShapeError(f"{tuple(self.x.shape)} experts: as many on each of {self.members.world} ranks")

    def told(self) -> Mapping[str, Any]:
        return {"experts": self.x.shape[1], "top": self.top, "the most tokens of a rank (tokens=)": self.tokens}

    def run(self, path: Plain) -> torch.Tensor:
        return path.all_gather(self.x, [1] * self.members.world)().T.contiguous()


dispatch_linear, linear_combine = Operator(DispatchLinear), Operator(LinearCombine)
moe_dispatch, moe_combine = Operator(Dispatch), Operator(Combine)
expert_gradients, gather_counts = Operator(ExpertGradients), Operator(GatherCounts)
