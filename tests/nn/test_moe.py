"""The layer of experts on groups of all sizes, beside one that has all experts in one place."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from bench.references import layer_of_experts
from tests.ops.groups import GROUPS, assert_right, on_two
from tests.ops.on_ranks import computed_by, on_groups
from tests.parameters import first_of
from tests.runtime.processes import Pool
from tilelink.errors import ArgumentError, DtypeError, ScheduleError, ShapeError, TileLinkError
from tilelink.nn import MoE
from tilelink.ops import even_placement, expert_places

WIDTH, HIDDEN, TOP, TOKENS = 16, 16, 2, 6


class InOnePlace(nn.Module):
    """All experts, one after the other."""

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor, router: nn.Module, shared: nn.Module) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Parameter(gate_up.clone()), nn.Parameter(down.clone())
        self.router, self.shared = copy.deepcopy(router), copy.deepcopy(shared)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(self.router(x).softmax(-1), TOP)
        weights = weights / weights.sum(-1, keepdim=True)
        experts = enumerate(zip(self.gate_up, self.down, strict=True))
        return self.shared(x) + layer_of_experts(x, chosen, weights, experts)


def both(group: dist.ProcessGroup, slices: int = 1, uneven: bool = False) -> tuple[MoE, InOnePlace, torch.Tensor]:
    """The layer of this rank, the whole one, and the tokens of all ranks. `slices`: 0 for as many as ranks; `uneven`:
    ranks have different numbers of experts, and the first expert has a copy on the last rank."""
    world = dist.get_world_size(group)
    torch.manual_seed(3)
    experts, placement = 2 * world - uneven, None
    if uneven:
        placement = even_placement(experts, world)
        placement[-1] = 0  # the place that is free
    gate_up, down = torch.randn(experts, 2 * HIDDEN, WIDTH) / 4, torch.randn(experts, WIDTH, HIDDEN) / 4
    router, shared = nn.Linear(WIDTH, experts), nn.Linear(WIDTH, WIDTH)
    whole = InOnePlace(gate_up, down, router, shared)
    layer = MoE.of(gate_up, down, TOP, group=group, router=router, shared=shared, tokens=TOKENS,
                   slices=slices or world, placement=placement)  # fmt: skip
    return layer, whole, torch.randn(world, 2, TOKENS // 2, WIDTH)


def off(name: str, made: torch.Tensor, right: torch.Tensor, limit: float) -> list[str]:
    error = float((made - right).norm() / right.norm())
    return [] if error < limit else [f"{name} is off by {error:.1e}"]


def layers(group: dist.ProcessGroup, backend: str, slices: int = 1, uneven: bool = False) -> list[str]:
    """What is wrong of a result and of all gradients."""
    layer, whole, x = both(group, slices, uneven)
    rank = dist.get_rank(group)
    mine, every = x[rank].clone().requires_grad_(), x.clone().requires_grad_()
    with computed_by(backend, group):
        out = layer(mine)
        (out**2).sum().backward()
    right = whole(every)
    (right**2).sum().backward()
    replicated = {n: p.grad.clone() for n, p in layer.named_parameters() if n not in ("gate_up", "down")}
    for grad in replicated.values():
        dist.all_reduce(grad, group=group)
    found = off("out", out, right[rank], 1e-5) + off("grad of x", mine.grad, every.grad[rank], 1e-4)
    for name, parameter in whole.named_parameters():
        right = parameter.grad
        if name not in replicated:
            right = layer._part(right[layer._mine], *((1, 2) if name == "gate_up" else (2, 1)))
        grad = replicated[name] if name in replicated else layer.get_parameter(name).grad
        if uneven and name not in replicated:  # the gradients of copies add up
            of_expert = torch.where(torch.tensor(layer._mine).view(-1, 1, 1) == 0, grad, 0).sum(0)
            dist.all_reduce(of_expert, group=group)
            grad = torch.stack([of_expert if e == 0 else g for e, g in zip(layer._mine, grad, strict=True)])
        found += off(f"grad of {name}", grad, right, 1e-4)
    return found


def trained(group: dist.ProcessGroup) -> list[str]:
    """20 steps of both, and one curve of losses."""
    layer, whole, x = both(group)
    rank = dist.get_rank(group)
    target = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-3) for m in (layer, whole)]
    found, curve = [], list[float]()
    for step in range(20):
        losses = [((layer(x[rank]) - target[rank]) ** 2).sum(), ((whole(x) - target) ** 2).sum()]
        for optimizer, loss in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
        for name, parameter in layer.named_parameters():
            if name not in ("gate_up", "down"):
                dist.all_reduce(parameter.grad, group=group)
        total = losses[0].detach().clone()
        dist.all_reduce(total, group=group)
        found += off(f"loss {step}", total, losses[1].detach(), 1e-4)
        curve.append(float(total))
        for optimizer in optimizers:
            optimizer.step()
    return found if curve[-1] < 0.9 * curve[0] else [*found, f"nothing is learnt: {curve}"]


def refused(group: dist.ProcessGroup) -> list[str]:
    """What is not said of layers that can't be."""
    world, found = dist.get_world_size(group), []
    of_shapes = torch.zeros(2, 8, 4), torch.zeros(2, 4, 5)
    for make, kind, said in (
        (lambda: MoE(4, 4, world + 1, 1, group=group), ArgumentError, f"as many on each of {world} ranks"),
        (lambda: MoE(4, 4, world, world + 1, group=group), ArgumentError, f"it must be from 1 to {world}, the"),
        (lambda: MoE(4, 3, world, 1, group=group, slices=2), ShapeError, "hidden is 3, which 2 ranks can't share even"),
        (lambda: MoE(4, 4, world, 1, group=group, slices=3), ArgumentError, "slices=3; it must divide the num"),
        (lambda: MoE(4, 4, world, 1, group=group)(torch.zeros(3, 5)), ShapeError, "(3, 5); it must be (..., 4)"),
        (
            lambda: MoE(4, 4, world, 1, group=group, router=torch.nn.Linear(4, 9))(torch.zeros(3, 4)), ShapeError,
            f"the router returned shape (3, 9); it must return one tensor of scores, (3, {world})",
        ),
        (
            lambda: MoE(4, 4, world, 1, group=group, router=Pair(4, world))(torch.zeros(3, 4)), ArgumentError,
            f"the router returned a tuple; it must return one tensor of scores, (3, {world})",
        ),
        (
            lambda: MoE(4, 4, world, 1, group=group, shared=Pair(4, 4))(torch.zeros(3, 4)), ArgumentError,
            "the shared module returned a tuple; it must return one tensor to add to the result, (3, 4)",
        ),
        (
            lambda: MoE(4, 4, world, 1, group=group, shared=nn.Linear(4, 3))(torch.zeros(3, 4)), ShapeError,
            "the shared module returned shape (3, 3); it must return one tensor to add to the result, (3, 4)",
        ),
        (lambda: MoE(4, 4, 3, 1, group=group, placement=[0, 1]), ArgumentError, "a placement of 2 experts, and the"),
        (lambda: MoE(4, 4, 3, 1, group=group, placement=[2, 0]), ArgumentError, "is [2, 0], without expert 1; it"),
        (lambda: MoE(4, 4, 3, 1, group=group, placement=[2, 0, 1]), ArgumentError, f"as many on each of {world} rank"),
        (lambda: MoE.of(*of_shapes, 1, group=group), ShapeError, "down (2, 4, 5); they must be (experts, 2"),
        (lambda: MoE.of(of_shapes[0][0], of_shapes[1], 1, group=group), ShapeError, "gate_up has shape (8, 4), down"),
        (lambda: MoE(8, -16, 4, 2, group=group), ArgumentError, "hidden=-16; it must be an integer, 0 or more"),
        (lambda: MoE(8, 16, 4.0, 2, group=group), ArgumentError, "experts=4.0; it must be an integer"),
        (lambda: MoE(8, 16, 4, 1.5, group=group), ArgumentError, "top=1.5; it must be an integer"),
        (lambda: MoE(8, 16, -2, 1, group=group), ArgumentError, "experts=-2; it must be an integer"),
        (lambda: MoE(None, 16, 4, 1, group=group), ArgumentError, "width=None; it must be an integer"),
        (lambda: MoE(8, 16, 4, 1, slices=1.5, group=group), ArgumentError, "slices=1.5; it must be an integer"),
        (lambda: MoE(8, 16, 4, 1, capacity="x", group=group), ArgumentError, "capacity='x'; it must be an integer"),
        (lambda: MoE(8, 16, 4, 1, placement="0123", group=group), ArgumentError, "it must be a sequence of integers"),
        (lambda: MoE(8, 16, 4, 1, dtype=torch.float64, group=group), DtypeError, "dtype is float64; operators take"),
        (lambda: MoE.of(None, of_shapes[1], 1, group=group), ArgumentError, "gate_up is None, not a tensor"),
        (lambda: MoE(4, 4, world, 1, group=group, plan="ring"), ScheduleError, "plan is 'ring'; there are push, "),
    ):  # fmt: skip
        try:
            make()
            found.append(f"nothing is said: {said}")
        except TileLinkError as e:
            found += [] if isinstance(e, kind) and said in e.message else [e.message]
    return found


class Pair(nn.Linear):
    """Returns a tuple, as some routers do."""

    def forward(self, input: torch.Tensor) -> Any:
        return super().forward(input), 1


class Failing(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        raise ValueError("mine")


def with_a_failing_module(group: dist.ProcessGroup, name: str) -> list[str]:
    """What a layer raises whose router or shared module raises on rank 1, and another one in its next call."""
    world, found = dist.get_world_size(group), []
    for module in (Failing(4, world) if dist.get_rank(group) else None, None):
        try:
            MoE(4, 4, world, 1, group=group, **{name: module})(torch.zeros(3, 4))
            found.append("computed")
        except (TileLinkError, ValueError) as e:
            found.append(f"{type(e).__name__}: {getattr(e, 'message', e)}")
    return found


def new(group: dist.ProcessGroup, plans: Sequence[str] = ()) -> dict[str, Any]:
    """A new layer, seeded alike on all ranks, and its bytes by plan."""
    torch.manual_seed(5)
    layer = MoE(8, 4, 4, 2, group=group, tokens=10, dtype=torch.bfloat16)
    heap = layer.heap_bytes(10)
    made = {"down": layer.down.detach(), "said": repr(layer), "bytes": heap}
    for plan in plans:
        layer.plan = plan
        made[plan] = layer.heap_bytes(10)
    return made


@pytest.mark.parametrize("groups", first_of([[(2,), (1, 2, 3)], GROUPS]), ids=["one and three", "of all sizes"])
def test_results_and_gradients(pool: Pool, groups: list[tuple[int, ...]]) -> None:
    """Of uneven experts on the other numbers of ranks, too, in every run."""
    assert_right(pool, groups, layers, "torch")


def test_slices_of_every_expert(pool: Pool) -> None:
    assert_right(pool, GROUPS[1:2], layers, "torch", 2)
    assert_right(pool, [(0, 1, 2, 3)], layers, "torch", 2)
    assert_right(pool, [(0, 1, 2, 3)], layers, "torch", 0)


def test_uneven_experts_and_copies(pool: Pool) -> None:
    assert_right(pool, GROUPS[1:], layers, "torch", 1, True)


@pytest.mark.parametrize("uneven", first_of([False, True]))
def test_by_programs(pool: Pool, uneven: bool) -> None:
    assert_right(pool, [(0, 1)], layers, "interpret", 1, uneven)


@pytest.mark.parametrize("group", first_of([(0, 1), (0, 1, 2, 3)]), ids=len)
def test_twenty_steps_have_one_curve(pool: Pool, group: tuple[int, ...]) -> None:
    assert_right(pool, [group], trained)


def test_layers_that_cannot_be(pool: Pool) -> None:
    assert_right(pool, [(0, 1)], refused)


@pytest.mark.parametrize("name", ["router", "shared"])
def test_a_module_that_raises_on_one_rank_is_told_to_the_others(pool: Pool, name: str) -> None:
    of_peer, of_rank = on_two(pool, with_a_failing_module, name)
    what = {"router": "the router", "shared": "the shared module"}[name]
    assert of_rank == ["ValueError: mine", "computed"]
    assert of_peer == [f"RankFailedError: rank 1 raised ValueError in {what}: mine", "computed"]


def test_placements() -> None:
    assert even_placement(10, 4) == [0, 1, 2, 3, 4, 5, 6, 7, -1, 8, 9, -1]
    assert even_placement(2, 3) == [0, 1, -1] and even_placement(4, 2) == [0, 1, 2, 3]
    assert expert_places([1, 0, -1, 1]).tolist() == [[1, -1], [0, 3]]


def test_a_new_layer_is_one_on_any_number_of_ranks(pool: Pool) -> None:
    (one,) = pool.results(on_groups, [(0,)], new)[0]
    two = on_two(pool, new, ("one_kernel", "one_kernel:pull", "pull", "once:pull", "auto", "torch"))
    assert torch.equal(torch.cat([made["down"] for made in two]), one["down"])
    assert len({float(w.norm()) for w in one["down"]}) == 4
    room = 2 * 10 * 2  # two experts of a rank take a token at most
    assert f"10 tokens a rank: room for {room} rows" in two[0]["said"] and "2 experts of this rank" in two[0]["said"]
    assert two[0]["bytes"] == pytest.approx(room * 8 * 2 + 20 * 8 * 2, abs=1024), "of matmul_combine: made, and back"
    rows, hidden = room * 8 * 2, room * 4 * 2
    assert two[0]["one_kernel"] == pytest.approx(2 * rows + hidden + 20 * 8 * 2, abs=1024), "of all its buffers"
    assert two[0]["one_kernel:pull"] > two[0]["one_kernel"], "tokens are published"
    assert two[0]["auto"] == max(v for k, v in two[0].items() if k not in ("down", "said")), "it may be any of them"
    assert two[0]["torch"] == 0
