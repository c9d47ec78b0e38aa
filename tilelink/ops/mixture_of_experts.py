"""mixture_of_experts: a layer whose experts are spread over the ranks, and the operators that make it up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from tilelink.errors import ArgumentError, ScheduleError, ShapeError, Site, counted, function_text, listed, public
from tilelink.ops import experts as made_of
from tilelink.ops.agreement import agree, agreed_machine, raise_everywhere, raised_everywhere, told_of_machine
from tilelink.ops.checks import (
    cast_for,
    check_activation,
    check_devices,
    check_dtype,
    check_experts,
    check_one_dtype,
    check_part,
    check_tensor,
    in_autocast,
    no_autocast,
    short,
)
from tilelink.ops.collectives import Members, name_of_group, world_of
from tilelink.ops.moe_routing import Routing, check_numbers, moe_routing
from tilelink.ops.of_all_ranks import gather_weights
from tilelink.ops.once import dispatch_linear_once, linear_combine_once
from tilelink.ops.plain import Plain
from tilelink.ops.programs import path_of, reserved_on
from tilelink.ops.whole_layer import PLANS_OF_ONE, layer_of_experts, swiglu
from tilelink.plans.layer_plans import PAIRS, in_one, is_once, without_changes
from tilelink.plans.names import AUTO, TORCH
from tilelink.plans.room import rows_at_most
from tilelink.plans.whole_layer import LayerQuestion, fastest_layer
from tilelink.runtime.agreement import TOKENS

PLANS = (*(name for pair in PAIRS for name in pair.schedules), *PLANS_OF_ONE, TORCH, AUTO)
"""The plans of `mixture_of_experts`, without changes of a schedule."""


@public
def moe_dispatch(x: torch.Tensor, routing: Routing, *, plan: str | None = None) -> torch.Tensor:
    """Returns the rows (room, K) of the experts of this rank, by expert and then by source rank, then padding.

    `x`: (tokens of this rank, K), in float32, float16 or bfloat16. `routing`: of `moe_routing`. `plan`: "push"
    (default), "pull", "few" or "columns"; or "torch", plain torch. The gradient is `moe_combine`. Raises ArgumentError,
    ShapeError, DtypeError, DeviceError, ScheduleError and CapacityError."""
    _check_call(routing, plan, x=x)
    with no_autocast(x):
        rows: torch.Tensor = made_of.moe_dispatch(
            x=_tokens(x, routing), counts=routing.counts, order=routing.order, place=routing.place, room=routing.room,
            group_name=routing.group_name, plan=plan,
        )  # fmt: skip
    return rows


@public
def moe_combine(
    rows: torch.Tensor, routing: Routing, topk_weights: torch.Tensor | None = None, *, plan: str | None = None
) -> torch.Tensor:
    """Returns (tokens, K): for each token of this rank the sum of its rows, each times its weight. Sums are made in
    float32, in the order of choices.

    `rows`: (room, K), as `moe_dispatch` gives them; `topk_weights`: (tokens, top), ones by default; `routing`, `plan`:
    as for `moe_dispatch`. The gradient is `moe_dispatch`. Raises as `moe_dispatch` does."""
    _check_call(routing, plan, rows=rows, **({} if topk_weights is None else {"topk_weights": topk_weights}))
    with no_autocast(rows):
        back = _back(topk_weights, routing, plan)
        out: torch.Tensor = made_of.moe_combine(x=_rows(rows, routing), **back)[0]
    return out[: routing.mine]


@public
def dispatch_linear(
    x: torch.Tensor, weight: torch.Tensor, routing: Routing, *, plan: str | None = None
) -> torch.Tensor:
    """Dispatches tokens and multiplies each expert's rows by its weight, in one kernel: (room, N), rows @ weight[e].T.

    `x`: (tokens of this rank, K), in float32, float16 or bfloat16; `weight`: (experts of this rank, N, K); `routing`:
    of `moe_routing`; `plan`: a schedule of `tilelink.kernels.dispatch_matmul`, by default the first; "once", by which a
    token goes once to a rank (`all_gather_grouped_matmul`; "once:few" is another schedule), with a routing made for it;
    or "torch". The gradient of x comes by `linear_combine`, the gradient of the weight from the rows, which are kept.
    Raises as `moe_dispatch` does, and ArgumentError for a routing of another plan."""
    _check_call(routing, plan, x=x, weight=weight)
    cast = cast_for(x)
    x, weight = cast(x), cast(weight)
    keep = torch.is_grad_enabled() and weight.requires_grad
    rows: torch.Tensor
    with no_autocast(x):
        if is_once(plan):
            rows, _ = dispatch_linear_once(x=_tokens(x, routing), weight=weight, keep=keep, **_met(routing, plan))
        else:
            rows, _ = made_of.dispatch_linear(
                x=_tokens(x, routing), weight=weight, counts=routing.counts, order=routing.order, place=routing.place,
                room=routing.room, keep=keep, group_name=routing.group_name, plan=plan,
            )  # fmt: skip
    return rows


@public
def linear_combine(
    rows: torch.Tensor,
    weight: torch.Tensor,
    routing: Routing,
    topk_weights: torch.Tensor | None = None,
    *,
    plan: str | None = None,
) -> torch.Tensor:
    """Multiplies each expert's rows by its weight and combines the products, in one kernel: (tokens, N).

    `rows`: (room, K); `weight`: (experts of this rank, N, K); `routing`: of `moe_routing`; `topk_weights`: (tokens,
    top), ones by default; `plan`: a schedule of `tilelink.kernels.matmul_combine`, by default the first; "once", by
    which the rows of a token are added up at their rank before they leave (`grouped_matmul_reduce_scatter`); or
    "torch". The gradient of rows comes by `dispatch_linear`, which also brings what the gradient of the weight needs:
    the gradients of all rows. Raises as `dispatch_linear` does."""
    more = {} if topk_weights is None else {"topk_weights": topk_weights}
    _check_call(routing, plan, rows=rows, weight=weight, **more)
    cast = cast_for(rows)
    rows, weight = cast(rows), cast(weight)
    out: torch.Tensor
    with no_autocast(rows):
        if is_once(plan):
            met, weights = _met(routing, plan), _weights_met(topk_weights, routing, plan)
            out = linear_combine_once(x=_rows(rows, routing), weight=weight, weights=weights, **met)
        else:
            back = _back(topk_weights, routing, plan)
            out, _ = made_of.linear_combine(x=_rows(rows, routing), weight=weight, **back)
    return out[: routing.mine]


@public
def mixture_of_experts(
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    group: dist.ProcessGroup | str | None = None,
    activation: Callable[[torch.Tensor], torch.Tensor] = swiglu,
    tokens: int | None = None,
    capacity: int | None = None,
    slices: int = 1,
    places: torch.Tensor | None = None,
    plan: str | None = None,
) -> torch.Tensor:
    """Returns the sum over a token's experts e of topk_weights * activation(x @ gate_up[e].T) @ down[e].T, for the
    tokens of this rank; experts are spread over the ranks. It is `dispatch_linear`, the activation and
    `linear_combine`, or all of it in one kernel.

    `x`: (..., K), float32, float16 or bfloat16. `topk_idx`: integers (..., top), experts of all ranks numbered rank by
    rank, -1 for none; `topk_weights`: (..., top). `gate_up`: (experts of this rank, 2 * hidden, K), gate first; `down`:
    (experts of this rank, K, hidden). `slices`: how many ranks share an expert, as in `moe_routing`; hidden is then the
    number of hidden features of this rank. The layer has as many experts as `gate_up` of all ranks together: no error
    tells that each rank gives the weights of all experts instead of its own. `places`: the places of experts, as in
    `moe_routing`; gate_up and down then have the weights of this rank's places.
    `activation`: maps the rows of all experts, (rows, 2 * hidden), to (rows, hidden), by default `tilelink.ops.swiglu`;
    padding rows that it gets have any values. `tokens`, `capacity`: as in `moe_routing`; by default no row is dropped.
    `plan`: a schedule of the two programs, "push", "pull", "few" or "columns"; "once", or another schedule of the
    programs by which a token goes once to a rank and one sum of its rows comes back, such as "once:by_rank";
    "one_kernel", "one_kernel:pull" or "one_kernel:few" for the whole layer in one kernel,
    `tilelink.kernels.mixture_of_experts`, whose activation is SwiGLU; "torch"; or "auto": the plan with the shortest
    predicted time. "auto" never takes "torch", and in `torch.compile` never "once". Changes of the schedule may follow
    the name of a plan: "push,dispatch.count=8".

    x, topk_weights, gate_up and down have gradients, which can't be differentiated again. The host reads no count, so
    calls can be captured. Raises ArgumentError, ShapeError, DtypeError, DeviceError, ScheduleError, RankMismatchError;
    and CapacityError on every rank, before anything is sent, if rows have no room or an expert is out of range.
    """
    name, given = name_of_group(group), (x, topk_idx, topk_weights, gate_up, down)
    numbers = {"tokens": tokens, "capacity": capacity, "slices": slices}
    raised_everywhere(name, lambda: _check(*given, activation, plan, numbers), "arguments", *given)
    width, top = x.shape[-1], topk_idx.shape[-1]
    experts, chosen = len(gate_up) * world_of(name) // max(slices, 1), topk_idx.reshape(-1, top)
    if plan == AUTO and activation is swiglu:
        most, hidden = len(chosen) if tokens is None else tokens, down.shape[2]
        plan = _fastest(cast_for(x)(x), name, most, experts, top, hidden, capacity, max(slices, 1))
    routing = moe_routing(
        chosen, experts=experts, group=name, tokens=tokens, capacity=capacity, slices=slices, places=places, plan=plan
    )
    if in_one(plan) or (plan == AUTO and activation is swiglu):
        out = _whole_layer(x.reshape(-1, width), gate_up, down, routing, topk_weights.reshape(-1, top), plan)
        return out.reshape(x.shape)
    rows = dispatch_linear(x.reshape(-1, width), gate_up, routing, plan=plan)
    made = raised_everywhere(name, lambda: _activated(activation, rows, down.shape[2]), "the activation", rows)
    out = linear_combine(made, down, routing, topk_weights.reshape(-1, top), plan=plan)
    return out.reshape(*x.shape[:-1], down.shape[1])


def _check(
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activation: Callable[..., object],
    plan: str | None,
    numbers: dict[str, Any],
) -> None:
    """Raises ArgumentError, ShapeError, DtypeError, DeviceError or ScheduleError if arguments do not fit together."""
    _check_given(plan, {"x": x, "topk_idx": topk_idx, "topk_weights": topk_weights, "gate_up": gate_up, "down": down})
    check_numbers(**numbers)
    alike = 1 <= x.dim() == topk_idx.dim() and topk_idx.shape[:-1] == x.shape[:-1]
    if not alike or topk_weights.shape != topk_idx.shape or not topk_idx.shape[-1]:
        shapes = ", ".join(str(tuple(t.shape)) for t in (x, topk_idx, topk_weights))
        said = f"x, topk_idx and topk_weights have shapes {shapes}"
        raise ShapeError(
            f"{said}; they must be (..., K), (..., top) and (..., top) of the same tokens, top > 0", Site.of_user()
        )
    check_experts(gate_up.shape, down.shape, width=x.shape[-1])
    if not in_autocast(x):
        check_dtype(x.dtype)
        check_one_dtype(x, {"gate_up": gate_up, "down": down})
    check_activation(activation)
    known_plan(plan)
    if in_one(plan) and activation is not swiglu:
        raise ArgumentError(
            f"plan={plan!r} computes SwiGLU inside of its kernel, and activation={function_text(activation)} is "
            f"another function: give tilelink.ops.swiglu, or take plan={PLANS[0]!r}, whose kernels end before the "
            "activation",
            Site.of_user(),
        )


def _activated(activation: Callable[..., Any], rows: torch.Tensor, hidden: int) -> torch.Tensor:
    """The result of an activation. Raises ShapeError if it does not have `hidden` features, those that down takes."""
    made: torch.Tensor = activation(rows)
    check_tensor("the result of activation", made)
    if made.shape != (len(rows), hidden):
        given = f"activation={function_text(activation)} maps {tuple(rows.shape)} to {tuple(made.shape)}"
        raise ShapeError(f"{given}; down takes ({len(rows)}, {hidden})", Site.of_user())
    return made


def _fastest(
    x: torch.Tensor, name: str, tokens: int, experts: int, top: int, hidden: int, capacity: int | None, slices: int
) -> str:
    """Returns the plan that "auto" stands for; all ranks choose alike. Returns "auto" itself while torch compiles,
    when numbers of tokens may be symbols, and if plain torch computes: the operator of the whole layer then chooses.
    Raises RankMismatchError."""
    device, world = x.device, world_of(name)
    if torch.compiler.is_compiling() or path_of(device) is Plain or not tokens * x.shape[-1] or world % slices:
        return AUTO
    room = rows_at_most(world, tokens, top, experts * slices // world) if capacity is None else capacity
    sizes = {
        "tokens": tokens * world, "experts": experts, "top": top, "width": x.shape[-1], "hidden": hidden, "rows": room,
    }  # fmt: skip
    dtype, members = short(x.dtype), Members.named(name)

    def tell() -> dict[str, Any]:
        said = {TOKENS: tokens, "sizes": tuple(sizes.values()), "dtype": dtype, "slices": slices}
        return {"operator": "mixture_of_experts", **said, **told_of_machine(members, device)}

    agree(members, device, tell)
    machine, reserved = agreed_machine(members, device), reserved_on(members, device)
    return fastest_layer(LayerQuestion(machine, reserved, world, dtype, **sizes, slices=slices, once=True))


def _check_call(routing: Routing, plan: object, **tensors: torch.Tensor) -> None:
    """Raises ArgumentError, DeviceError and ScheduleError for arguments of an operator that takes a routing."""
    given = {**tensors, "routing": routing.counts}
    raised_everywhere(routing.group_name, lambda: _check_given(plan, given), "arguments", *tensors.values())


def _check_given(plan: object, tensors: dict[str, Any]) -> None:
    """Checks that tensors are tensors on one device, and that a plan is a string."""
    for name, tensor in tensors.items():
        check_part(name, tensor)
    first = next(iter(tensors))
    check_devices(tensors[first], tensors, first)
    if plan is not None and not isinstance(plan, str):
        raise ScheduleError(f"plan is {plan!r}; it must be the name of one", Site.of_user())


def known_plan(plan: str | None) -> None:
    """Raises ScheduleError for an unknown plan of a layer. Changes after the name are checked in the call."""
    if plan is not None and without_changes(plan) not in PLANS and not in_one(plan):
        raise ScheduleError(f"plan is {plan!r}; there are {listed(PLANS, str(plan))}", Site.of_user())


def _whole_layer(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, routing: Routing, weights: torch.Tensor,
    plan: str | None,
) -> torch.Tensor:  # fmt: skip
    """Computes the layer by one operator."""
    cast = cast_for(x)
    x, gate_up, down = cast(x), cast(gate_up), cast(down)
    with no_autocast(x):
        back = _back(weights, routing, plan)
        trained = (x, gate_up, down, back["weights"])
        back["keep"] = torch.is_grad_enabled() and any(t.requires_grad for t in trained)
        out: torch.Tensor = layer_of_experts(
            x=_tokens(x, routing), gate_up=gate_up, down=down, order=routing.order, room=routing.room, **back
        )[0]
    return out[: routing.mine]


def _back(topk_weights: torch.Tensor | None, routing: Routing, plan: str | None) -> dict[str, Any]:
    """Returns the arguments of operators that bring rows back, without the rows."""
    weights = routing.weights(_weights(topk_weights, routing))
    keep = weights is not None and torch.is_grad_enabled() and weights.requires_grad
    return {
        "counts": routing.counts, "place": routing.place, "weights": weights, "sent": len(routing.order), "keep": keep,
        "group_name": routing.group_name, "plan": plan,
    }  # fmt: skip


def _met(routing: Routing, plan: str | None) -> dict[str, Any]:
    """Returns what operators of plan "once" take from a routing. Raises ArgumentError on every rank if it has none."""
    if routing.once is None:
        what = f'plan is {plan!r}, and the routing was not made for it: moe_routing(..., plan="once")'
        raise_everywhere(routing.group_name, ArgumentError(what, Site.of_user()), routing.counts)
    met = {"token": routing.once.token, "at": routing.once.at, "wanted": routing.once.wanted}
    return {
        "counts": routing.counts, **met, "sent": len(routing.order), "group_name": routing.group_name, "plan": plan,
    }  # fmt: skip


def _weights_met(topk_weights: torch.Tensor | None, routing: Routing, plan: str | None) -> torch.Tensor | None:
    """Returns the weights (tokens of all ranks, top) of the rows on this rank. `topk_weights`: of this rank's tokens.
    The routing is one of plan "once"."""
    weights, once = _weights(topk_weights, routing), routing.once
    if weights is None or once is None:
        return None
    every = gather_weights(x=routing.tokens(weights.float()), group_name=routing.group_name, plan=plan)
    return torch.where(once.choice >= 0, every.gather(1, once.choice.clamp(min=0)), 0)


def _tokens(x: torch.Tensor, routing: Routing) -> torch.Tensor:
    if x.dim() != 2 or len(x) != routing.mine:
        _refuse(f"x has shape {tuple(x.shape)}; the routing is of {counted(routing.mine, 'token')}", x, routing)
    return routing.tokens(x)


def _rows(rows: torch.Tensor, routing: Routing) -> torch.Tensor:
    if rows.dim() != 2 or len(rows) != routing.room:
        _refuse(f"rows have shape {tuple(rows.shape)}; the routing has room for {routing.room}", rows, routing)
    return rows


def _weights(weights: torch.Tensor | None, routing: Routing) -> torch.Tensor | None:
    shape = (routing.mine, routing.place.shape[1] // routing.slices)
    if weights is not None and tuple(weights.shape) != shape:
        _refuse(f"topk_weights have shape {tuple(weights.shape)}; the routing has {shape}", weights, routing)
    return weights


def _refuse(said: str, given: torch.Tensor, routing: Routing) -> NoReturn:
    """Raises ShapeError; the other ranks raise RankFailedError."""
    raise_everywhere(routing.group_name, ShapeError(said, Site.of_user()), given)
