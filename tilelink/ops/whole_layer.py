"""The operator of torch for a whole layer of experts: one kernel or, if "auto" predicts them to be faster, two kernels.
Its gradient is made of the operators of `tilelink.ops.experts`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tilelink.errors import ArgumentError
from tilelink.kernels.mixture_of_experts import mixture_of_experts
from tilelink.ops import routed
from tilelink.ops.agreement import agreed_machine
from tilelink.ops.checks import check_experts, check_one_dtype, short
from tilelink.ops.experts import Sums, as_dispatched, dispatch_linear, linear_combine
from tilelink.ops.experts_backward import dispatch_linear_gradients, linear_combine_gradients
from tilelink.ops.operator import Operator
from tilelink.ops.plain import Plain
from tilelink.ops.programs import Programs, reserved_on
from tilelink.plans.layer_plans import OF_ROWS, ONE_KERNEL, plan_of, without_changes
from tilelink.plans.names import AUTO, TORCH, Plan, names_program, planned
from tilelink.plans.whole_layer import LayerQuestion, fastest_layer

OPERATOR = mixture_of_experts.name
PLANS_OF_ONE = (ONE_KERNEL, *(f"{ONE_KERNEL}:{schedule}" for schedule in list(mixture_of_experts.schedules)[1:]))
"""The plans by which this operator computes the layer, as `tilelink.plans.names` calls them."""


def swiglu(rows: torch.Tensor) -> torch.Tensor:
    """Returns silu(gate) * up, (n, hidden), for rows (n, 2 * hidden), gate first; in their dtype."""
    gate, up = rows.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


@dataclass
class LayerOfExperts(Sums):
    """Sends tokens to their experts; each expert multiplies its rows twice, with SwiGLU between. The products go back,
    and each token adds up its own: (tokens, K). If `keep`, three more results are for the gradients: the rows of this
    rank's experts, (room, K); their first products, before SwiGLU, (room, 2 * hidden); and the rows that came back,
    (sent, K). Otherwise these are empty."""

    name = "layer_of_experts"
    results = "(Tensor, Tensor, Tensor, Tensor)"
    program = mixture_of_experts

    x: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    counts: torch.Tensor
    order: torch.Tensor
    place: torch.Tensor
    weights: torch.Tensor | None
    room: int
    sent: int
    keep: bool
    group_name: str
    plan: str | None

    def check(self) -> None:
        super().check()
        self.check_weight(self.gate_up)
        check_experts(self.gate_up.shape, self.down.shape)
        check_one_dtype(self.x, {"down": self.down})

    def check_plan(self) -> None:
        if names_program(self.plan):
            planned(OPERATOR, self.plan)

    def plan_of_path(self) -> Plan:
        """Returns the plan of the one kernel or, if "auto" predicts two kernels to be faster, of the first of them."""
        if self.plan != AUTO:
            return planned(OPERATOR, self.plan)
        members, device, (tokens, top) = self.members, self.x.device, self.place.shape
        asked = LayerQuestion(
            agreed_machine(members, device), reserved_on(members, device), members.world,
            short(self.x.dtype), tokens=tokens * members.world, experts=len(self.counts), top=top,
            width=self.x.shape[1], hidden=self.down.shape[2], rows=self.room,
        )  # fmt: skip
        name = fastest_layer(asked)
        if without_changes(name) in PLANS_OF_ONE:
            return planned(OPERATOR, name)
        return plan_of(OF_ROWS, OF_ROWS.first, name)._replace(name=name)

    def run(self, path: Plain) -> tuple[torch.Tensor, ...]:
        if not isinstance(path, Programs):
            return self._plain(path)
        x, one = self.x, path.plan.program is mixture_of_experts
        total, returned = self.results_of(path, x.shape[1])
        rows = path.empty(x, (self.room, x.shape[1])) if self.keep else None
        made = None if one and not self.keep else path.empty(x, (self.room, self.gate_up.shape[1]))
        parts = self.parts(tokens=len(x), sent=self.sent, routed=self.room)
        sums = {"out": total, "weights": self.weights, "kept": returned, "parts": parts}
        if one:
            gate, up = (half.mT for half in self.gate_up.chunk(2, 1))
            gates, ups = (None, None) if made is None else made.chunk(2, 1)
            given = (x, gate, up, self.down.mT, self.counts, self.order, self.place)
            path.call(*given, gathered=rows, gates=gates, ups=ups, **sums)
        else:
            path.call(x, self.gate_up.mT, self.counts, self.order, out=made, gathered=rows, parts=parts)
            assert made is not None
            second = Programs(self.members, plan_of(OF_ROWS, OF_ROWS.second, path.plan.name))
            second.call(swiglu(made), self.down.mT, self.counts, self.place, **sums)
        kept = (rows, made, returned) if self.keep else (None, None, None)
        return total, *map(self.or_nothing, kept)

    def _plain(self, path: Plain) -> tuple[torch.Tensor, ...]:
        x = self.x
        rows = routed.dispatched(path, routed.taken(x, self.order), self.counts, self.room)
        made = routed.multiplied(path, rows, self.gate_up, self.counts)
        out = routed.multiplied(path, swiglu(made), self.down, self.counts)
        total, back = self.summed(routed.combined(path, out, self.counts, self.sent))
        return (total, rows, made, back) if self.keep else (total, x.new_empty(0), x.new_empty(0), back)

    def setup(self, ctx: Any, output: tuple[torch.Tensor, ...]) -> None:
        _, rows, made, back = output
        given = (self.x, self.gate_up, self.down, self.weights)
        if not self.keep and any(t is not None and t.requires_grad for t in given):
            raise ArgumentError("gradients need intermediate results of the kernel: pass keep=True")
        plan = self.plan if self.plan in (TORCH, AUTO) else planned(OPERATOR, self.plan).schedule.name
        ctx.call = {"counts": self.counts, **self.options, "plan": plan}
        ctx.sent, ctx.room = self.sent, self.room
        ctx.mark_non_differentiable(rows, made, back)
        ctx.save_for_backward(self.place, self.weights, back, rows, made, self.gate_up, self.down)

    @staticmethod
    def backward(ctx: Any, saved: Any, *grads: Any) -> Mapping[str, Any]:
        (place, weights, back, rows, made, gate_up, down), grad = saved, grads[0].contiguous()
        found = {"weights": routed.weights_of(grad, place, back)} if ctx.needs_input_grad[6] else {}
        of_x, *of_weights = ctx.needs_input_grad[:3]
        if not of_x and not any(of_weights):
            return found
        gate, up = made.float().chunk(2, 1)
        some = gate.sigmoid()
        if any(of_weights):
            order, scale = routed.sources(place, weights, ctx.sent)
            hidden = (gate * some * up).to(made.dtype)
            given = {"x": hidden, "weight": down, "dout": grad, "order": order, "scale": scale}
            dhidden, found["down"] = linear_combine_gradients(**given, **ctx.call)
        else:
            dhidden, _ = dispatch_linear(weight=down.mT, keep=False, **as_dispatched(ctx, saved, grad))
        dgate = dhidden.float() * up * some * (1 + gate * (1 - some))
        dmade = torch.cat([dgate, dhidden.float() * gate * some], 1).to(made.dtype)
        back_to = {"place": place, "sent": ctx.sent, **ctx.call}
        if any(of_weights):
            given = {"x": rows, "weight": gate_up, "dout": dmade}
            found["x"], found["gate_up"] = dispatch_linear_gradients(**given, **back_to)
        else:
            found["x"], _ = linear_combine(x=dmade, weight=gate_up.mT, weights=None, keep=False, **back_to)
        return found


layer_of_experts = Operator(LayerOfExperts)
