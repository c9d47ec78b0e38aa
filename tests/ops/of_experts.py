"""Layers of experts on every rank."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

import tilelink.ops as ops
from tests.ops.auto_on_ranks import on_machine
from tests.ops.layers import Layer, layers
from tests.ops.on_ranks import computed_by, noted, unchanged_by_checkpoint, unsaid
from tilelink.errors import ArgumentError, TileLinkError

mixture: Any = importlib.import_module("tilelink.ops.mixture_of_experts")  # whose function has its name


def wrong(group: dist.ProcessGroup, calls: Sequence[Layer], backend: str, plan: str | None = None) -> list[str]:
    """What is wrong of these layers on this rank."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    with computed_by(backend, group):
        return [e for call in calls for e in call.errors(call.on(group, plan=plan), rank, world)]


def drawn(group: dist.ProcessGroup, number: int, seed: int, plan: str | None = None) -> list[str]:
    """As `wrong`, of random layers in plain torch."""
    return wrong(group, layers(dist.get_world_size(group), number, seed), "torch", plan)


def by_auto(group: dist.ProcessGroup, machine: str, fastest: str | None) -> tuple[list[str], list[str]]:
    """The programs that the forward of a layer runs by "auto" on a machine, with their schedules, and what is wrong of
    it. `fastest`: the plan that is predicted to be, or None for what the planner says."""
    call, predicted = Layer((5, 3), 2, 2, none=0.2), mixture.fastest_layer

    def given(*of: Any, **options: Any) -> str | None:
        inspect.signature(predicted).bind(*of, **options)
        return fastest

    if fastest is not None:
        mixture.fastest_layer = given
    try:
        with on_machine(machine), noted() as runs:
            errors = wrong(group, [call], "interpret", "auto")
    finally:
        mixture.fastest_layer = predicted
    names = [f"{program.name} {options['schedule']}" for program, options in runs if "schedule" in options]
    return [n for n in names if "backward" not in n], errors


# ---- as torch sees them


def opchecked(group: dist.ProcessGroup, part: int) -> None:
    """Asks torch whether the operators are what they say, in every third of these calls, from number `part` on."""
    rank, world, name = dist.get_rank(group), dist.get_world_size(group), group.group_name
    numbers = torch.Generator().manual_seed(rank)
    counts = torch.tensor([[2, 0], [1, 3], [0, 0], [1, 1]], dtype=torch.int32)

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=numbers).requires_grad_()

    def bare(*leaves: torch.Tensor) -> list[torch.Tensor]:
        return [t.detach() for t in leaves]

    assert world == 2
    order, scale = torch.tensor([0, 2, 1, 0, -1], dtype=torch.int32), torch.rand(5, generator=numbers)
    place = torch.tensor([[0, 3], [2, -1], [1, -1]], dtype=torch.int32)
    op = torch.ops.tilelink
    calls = (
        (op.dispatch_linear, (leaf(3, 4), leaf(2, 6, 4), counts, order, place, 9, True, name, None)),
        (op.dispatch_linear, (leaf(3, 4), leaf(2, 6, 4).detach(), counts, order, place, 9, False, name, None)),
        (op.linear_combine, (leaf(9, 4), leaf(2, 6, 4), counts, place, leaf(3, 2), 5, True, name, None)),
        (op.linear_combine, (leaf(9, 4), leaf(2, 6, 4), counts, place, None, 5, False, name, None)),
        (op.moe_dispatch, (leaf(3, 4), counts, order, place, 9, name, None)),
        (op.moe_combine, (leaf(9, 4), counts, place, leaf(3, 2), 5, True, name, None)),
        (op.expert_gradients, (leaf(9, 6).detach(), leaf(9, 4).detach(), counts, name, None)),
        (op.dispatch_linear_backward, (*bare(leaf(9, 4), leaf(2, 6, 4), leaf(9, 6)), counts, place, 5, name, None)),
        (op.linear_combine_backward, (*bare(leaf(9, 4), leaf(2, 6, 4), leaf(3, 6)), counts, order, None, name, None)),
        (op.linear_combine_backward, (*bare(leaf(9, 4), leaf(2, 6, 4), leaf(3, 6)), counts, order, scale, name, None)),
        (
            op.layer_of_experts,
            (leaf(3, 4), leaf(2, 6, 4), leaf(2, 4, 3), counts, order, place, leaf(3, 2), 9, 5, True, name, None),
        ),
        (
            op.layer_of_experts,
            (*bare(leaf(3, 4), leaf(2, 6, 4), leaf(2, 4, 3)), counts, order, place, None, 9, 5, False, name, None),
        ),
        (op.route, (place, 4, 1, name, None)),
        (op.route, (place.long(), 2, 2, name, None)),
        (op.dispatch_linear_once, (leaf(3, 4), leaf(2, 6, 4), counts, *once_of(rank), 5, True, name, None)),
        (op.linear_combine_once, (leaf(9, 4), leaf(2, 6, 4), counts, *once_of(rank), leaf(6, 2), 5, name, None)),
        (op.linear_combine_once, (leaf(9, 4), leaf(2, 6, 4), counts, *once_of(rank), None, 5, name, None)),
        (op.route_once, (place, 4, 1, name, None, 9)),
        (op.gather_weights, (leaf(3, 2), name, None)),
        (op.sum_of_weights, (leaf(6, 2), name, None)),
    )
    for operator, arguments in calls[part::3]:
        torch.library.opcheck(operator.default, arguments)


def once_of(rank: int) -> list[torch.Tensor]:
    """token, at and wanted of a rank, of the counts of `opchecked`."""
    token = [[0, 1, 2, 0, 1, 2], [0, 1]][rank]
    rows = [[0, 1, 2, 3, 4, 5], [0, -1, -1, -1, 1, -1]][rank]
    wanted = [[[0, 0], [0, -1], [0, -1]], [[0, -1], [0, 0], [0, -1]]][rank]
    made = [token + [0] * (9 - len(token)), [[row, -1] for row in rows], wanted]
    return [torch.tensor(of, dtype=torch.int32) for of in made]


def compiled(group: dist.ProcessGroup, backend: str, plan: str | None) -> list[str]:
    """What is wrong of a layer that is compiled without a break, with its gradients."""
    rank, world, call = dist.get_rank(group), dist.get_world_size(group), Layer((4,), 2, 2, none=0.2)
    given = call.operands(world)[rank]
    leaves = {k: t.requires_grad_() for k, t in given.items() if k != "topk_idx"}
    layer = torch.compile(
        lambda of: ops.mixture_of_experts(**of, group=group, plan=plan), fullgraph=True, backend=backend
    )
    made = layer(given)
    grads = torch.autograd.grad(made, list(leaves.values()), call.cotangent(rank))
    found = {"out": made.detach()} | {f"grad of {k}": g for k, g in zip(leaves, grads, strict=True)}
    return call.errors(found, rank, world)


def under_autocast(group: dist.ProcessGroup) -> tuple[torch.dtype, list[str]]:
    """The dtype of a result in torch.autocast, and what is wrong of it."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    call = Layer((4,), 2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        found = {k: t for k, t in call.on(group).items() if k == "out"}
    right = call.right(world)[rank]["out"]
    far = (found["out"].double() - right).norm() / right.norm()
    return found["out"].dtype, [f"off by {far:.1e}"] if far > 2e-2 else []


# ---- bad input


def of_another_routing(group: dist.ProcessGroup) -> str:
    """What a product raises by which tokens go once, with a routing that was made for another plan."""
    world, call = dist.get_world_size(group), Layer((4,), 2, 2)
    given = call.operands(world)[dist.get_rank(group)]
    routing = ops.moe_routing(given["topk_idx"], experts=2 * world, group=group)
    try:
        ops.dispatch_linear(given["x"], given["gate_up"], routing, plan="once")
    except TileLinkError as e:
        return f"{type(e).__name__}: {e.message}"
    return "nothing"


def told(group: dist.ProcessGroup, backend: str, **options: Any) -> tuple[str, list[str]]:
    """What a bad call raises on this rank, and what is wrong of the good call after it. `options`: `skewed`, which
    sends all tokens to the first experts; `expert`, that of the first token of rank 0; `only`, a rank that alone has
    these; and those of the call."""
    if options.pop("only", dist.get_rank(group)) != dist.get_rank(group):
        options = {}
    skewed, expert = options.pop("skewed", False), options.pop("expert", None)
    rank, world, call = dist.get_rank(group), dist.get_world_size(group), Layer((6,), 2, 2, skewed=skewed)
    given, said = call.operands(world)[rank], "nothing"
    if expert is not None and rank == 0:
        given["topk_idx"][0, 0] = expert
    with computed_by(backend, group):
        try:
            ops.mixture_of_experts(**given | options.pop("given", {}), group=group, **options)
            if backend == "interpret":
                ops.lane(group).synchronize()
        except TileLinkError as e:
            said = f"{type(e).__name__}: {e.message}"
        return said, call.errors(call.on(group), rank, world)


def one_gradient_alone(group: dist.ProcessGroup, backend: str) -> list[str]:
    """Gradients that differ where only one of those of rows and of weights is asked for, by name."""
    rank, world, call = dist.get_rank(group), dist.get_world_size(group), Layer((4, 3), 2, 2, none=0.2)
    given, wrong = call.operands(world)[rank], []
    tokens = max(map(call.of, range(world)))
    with computed_by(backend, group):
        every = call.on(group)
        for alone in ("x", "gate_up", "down"):
            leaves = {k: t.detach().requires_grad_(k == alone) if k != "topk_idx" else t for k, t in given.items()}
            out = ops.mixture_of_experts(**leaves, group=group, tokens=tokens)
            (grad,) = torch.autograd.grad(out, leaves[alone], call.cotangent(rank))
            if not torch.allclose(grad, every[f"grad of {alone}"], rtol=1e-5, atol=1e-6):
                wrong.append(alone)
    return wrong


def parts_of_it(group: dist.ProcessGroup, backend: str) -> list[bool]:
    """Of tokens that go and come back, without a product: sums of themselves; and how many rows each expert has."""
    rank, world, call = dist.get_rank(group), dist.get_world_size(group), Layer((5, 3), 3, 2, none=0.3)
    every = call.operands(world)
    given = every[rank]
    with computed_by(backend, group):
        routing = ops.moe_routing(given["topk_idx"], experts=call.experts * world, group=group, tokens=5)
        rows = ops.moe_dispatch(given["x"], routing)
        back = ops.moe_combine(rows, routing, given["topk_weights"])
    there = given["topk_idx"] >= 0
    scale = (given["topk_weights"] * there).sum(1, keepdim=True)
    mine = range(rank * call.experts, (rank + 1) * call.experts)
    counted = [sum(int((r["topk_idx"] == e).sum()) for r in every) for e in mine]
    sent = torch.cat([r["x"][(r["topk_idx"] == e).any(1)] for e in mine for r in every])
    return [
        routing.rows_of_experts.tolist() == counted,
        torch.equal(rows[: len(sent)], sent),
        torch.allclose(back, scale * given["x"], atol=1e-6),
    ]


def with_other_tokens(group: dist.ProcessGroup, plan: str | None) -> str:
    """What a call raises in which each rank has another number of tokens, and none is told."""
    rank, world, call = dist.get_rank(group), dist.get_world_size(group), Layer((4, 5))
    try:
        ops.mixture_of_experts(**call.operands(world)[rank], group=group, plan=plan)
    except TileLinkError as e:
        return f"{type(e).__name__}: {e.message}"
    return "nothing"


def with_a_failing_activation(group: dist.ProcessGroup) -> tuple[str, list[str]]:
    """What a call raises whose activation raises on rank 1, and what is wrong of the good call after it."""
    rank, world, call, said = dist.get_rank(group), dist.get_world_size(group), Layer((6,), 2, 2), "nothing"

    def fails(rows: torch.Tensor) -> torch.Tensor:
        if rank == 1:
            raise ValueError("mine")
        return rows.chunk(2, -1)[0]

    try:
        ops.mixture_of_experts(**call.operands(world)[rank], group=group, activation=fails)
    except (TileLinkError, ValueError) as e:
        said = f"{type(e).__name__}: {e}"
    return said, call.errors(call.on(group), rank, world)


def checkpointed(group: dist.ProcessGroup, plan: str | None) -> list[str]:
    """Gradients that an activation checkpoint changes: of a layer, or without a plan of its parts without a product."""
    rank, world, call = dist.get_rank(group), dist.get_world_size(group), Layer((6,), 2, 2, none=0.2)
    given = call.operands(world)[rank]
    chosen, leaves = given.pop("topk_idx"), [t.requires_grad_() for t in given.values()]

    def layer(*tensors: torch.Tensor) -> torch.Tensor:
        of = dict(zip(given, tensors, strict=True))
        return ops.mixture_of_experts(topk_idx=chosen, **of, group=group, plan=plan)

    def parts(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        routing = ops.moe_routing(chosen, experts=2 * world, group=group)
        return ops.moe_combine(ops.moe_dispatch(x, routing), routing, weights)

    each = {"layer": (layer, leaves), "parts": (parts, [given["x"], given["topk_weights"]])}
    return [f"{name}, {graph}" for name, (f, of) in each.items() for graph in (False, True)
            if not unchanged_by_checkpoint(f, of, graph)]  # fmt: skip


def refused(group: dist.ProcessGroup) -> list[str]:
    """What is not said of calls of the parts that can't be."""
    rank, world, call = dist.get_rank(group), dist.get_world_size(group), Layer((6,), 2, 2)
    given, found = call.operands(world)[rank], list[str]()
    x, weight = given["x"], given["gate_up"]
    routing = ops.moe_routing(given["topk_idx"], experts=2 * world, group=group)
    rows = ops.moe_dispatch(x, routing)
    linear: Any = torch.nn.Linear(16, 16)
    bad: Any = [x]
    spread = DTensor.from_local(x, DeviceMesh.from_group(group, "cpu"), [Shard(0)])
    for make, said in (
        (lambda: ops.dispatch_linear(x, linear, routing), "ArgumentError: weight is a Linear, not a tensor: its"),
        (lambda: ops.dispatch_linear(x, weight.to("meta"), routing), "DeviceError: weight is on meta, x on cpu"),
        (lambda: ops.moe_dispatch(bad, routing), "ArgumentError: x is a list, not a tensor"),
        (lambda: ops.moe_dispatch(spread, routing), "ArgumentError: x is a DTensor of shape (12, 16): operators take"),
        (lambda: ops.moe_combine(rows, routing, bad), "ArgumentError: topk_weights is a list, not a tensor"),
        (lambda: ops.linear_combine(rows.to("meta"), weight, routing), "DeviceError: weight is on cpu, rows on meta"),
        (lambda: ops.moe_routing(given["topk_idx"], experts=bad, group=group), "ArgumentError: experts=[tensor"),
    ):
        found += unsaid(make, said)
        dist.barrier(group)
    return found


def twice_differentiated(group: dist.ProcessGroup, backend: str, plan: str | None) -> str:
    """What is said of a gradient of a gradient."""
    rank, world, call = dist.get_rank(group), dist.get_world_size(group), Layer((6,), 2, 2)
    given = call.operands(world)[rank]
    given["x"].requires_grad_(True)
    with computed_by(backend, group):
        out = ops.mixture_of_experts(**given, group=group, plan=plan)
        (grad,) = torch.autograd.grad(out.square().sum(), given["x"], create_graph=True)
        try:
            grad.square().sum().backward()
        except ArgumentError as e:
            return str(e)
    return "nothing"


def of_other_integers(group: dist.ProcessGroup) -> list[Any]:
    """Counts of the first expert for experts beyond 32 bits, by both kinds of plans, and for 256 places in 8 bits; and
    what is wrong with choices that lie column by column."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    wide, small = torch.tensor([[2**32, 2**32 + 1]]), torch.tensor([[0, 1], [0, 1]], dtype=torch.uint8)
    counts = [ops.moe_routing(wide, experts=4, group=group, plan=plan).counts[0].tolist() for plan in (None, "once")]
    places = torch.zeros(256, 1, dtype=torch.int64)  # all experts at the first
    counts.append(ops.moe_routing(small, experts=256, group=group, places=places).counts[0].tolist())
    call = Layer((6,), 2, 2)
    given = call.operands(world)[rank]
    turned = ops.mixture_of_experts(
        **given | {"topk_idx": given["topk_idx"].T.contiguous().T}, group=group, plan="once"
    )  # fmt: skip
    right = ops.mixture_of_experts(**given, group=group, plan="once")
    return [*counts, [] if torch.equal(turned, right) else ["other rows"]]
