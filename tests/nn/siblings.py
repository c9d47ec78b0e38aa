"""Layers that share their input and are not computed alike: one without gradients, in autocast, in a checkpointed
region; or whose weights change in between. The functions here run on every rank."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor.parallel import parallelize_module
from torch.utils.checkpoint import checkpoint

from tests.nn.on_ranks import LIMIT, far, mesh_of, whole
from tilelink import nn as tnn

WIDTH, TOKENS = 16, 5
Ways = Callable[["Pair", torch.Tensor], torch.Tensor]


class Pair(nn.Module):
    """Two linears of one input, as `way` calls them. A rank's part of a result has as many features as the input, so
    torch can't see by shapes that it keeps another tensor for the backward than it should."""

    def __init__(self, world: int, way: Ways) -> None:
        super().__init__()
        self.way = way
        self.gate, self.up = nn.Linear(WIDTH, WIDTH * world), nn.Linear(WIDTH, WIDTH * world)
        self.down = nn.Linear(WIDTH * world, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.way(self, x)


def checkpointed(pair: Pair, x: torch.Tensor, reentrant: bool, first: bool) -> torch.Tensor:
    def gate() -> torch.Tensor:
        return checkpoint(lambda y: F.silu(pair.gate(y)), x, use_reentrant=reentrant)  # type: ignore[no-any-return]

    if first:
        return pair.down(gate() * pair.up(x))  # type: ignore[no-any-return]
    up = pair.up(x)
    return pair.down(up * gate())  # type: ignore[no-any-return]


def without_gradients(pair: Pair, x: torch.Tensor, first: bool) -> torch.Tensor:
    up = None if first else pair.up(x)
    with torch.no_grad():
        gate = pair.gate(x)
    return pair.down(gate * (pair.up(x) if up is None else up))  # type: ignore[no-any-return]


def in_autocast(pair: Pair, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        gate = pair.gate(x)
    return pair.down(gate.float() * pair.up(x))  # type: ignore[no-any-return]


def changed(pair: Pair, x: torch.Tensor) -> torch.Tensor:
    gate = pair.gate(x)
    with torch.no_grad():
        pair.up.weight.mul_(3)
    return pair.down(gate * pair.up(x))  # type: ignore[no-any-return]


WAYS: dict[str, Ways] = {
    "a region that is checkpointed": lambda pair, x: checkpointed(pair, x, False, False),
    "no gradients, second": lambda pair, x: without_gradients(pair, x, False),
    "autocast": in_autocast,
    "a weight is changed": changed,
    "a region that is checkpointed, first": lambda pair, x: checkpointed(pair, x, False, True),
    "a reentrant region": lambda pair, x: checkpointed(pair, x, True, False),
    "a reentrant region, first": lambda pair, x: checkpointed(pair, x, True, True),
    "no gradients, first": lambda pair, x: without_gradients(pair, x, True),
}


def apart(group: dist.ProcessGroup, name: str) -> list[str]:
    """What is wrong of two steps, compared with a pair that is whole on every rank. A gradient of zeros may stand for
    none: a linear was computed for the other one, and not used."""
    torch.manual_seed(3)
    right = Pair(dist.get_world_size(group), WAYS[name])
    styles = {"": tnn.SharedColwiseParallel("gate", "up"), "down": tnn.RowwiseParallel()}
    spread = parallelize_module(copy.deepcopy(right), mesh_of(group), styles)
    wrong = []
    for _ in range(2):
        x = torch.randn(2, TOKENS, WIDTH)
        given = [x.clone().requires_grad_() for _ in range(2)]
        results = [pair(g) for pair, g in zip((spread, right), given, strict=True)]
        for y in results:
            y.square().sum().backward()
        pairs = {"result": results, "input": [g.grad for g in given]}
        wanted = dict(right.named_parameters())
        for n, p in spread.named_parameters():
            found, meant = p.grad, wanted[n].grad
            if meant is None:
                wrong += [] if found is None or not whole(found).any() else [f"{n} has a gradient"]
            else:
                pairs[n] = [torch.zeros(0) if found is None else whole(found), meant]
        limit = 1e-2 if "autocast" in name else LIMIT
        wrong += [f"{n}: {far(a, b):.1e}" for n, (a, b) in pairs.items() if not far(a, b) < limit]
        spread.zero_grad(), right.zero_grad()
    return wrong


def one_row(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of layers that are called with one row (features,), as nn.Linear takes it."""
    right = Pair(dist.get_world_size(group), lambda pair, x: pair.down(pair.gate(x) * pair.up(x)))  # type: ignore[no-any-return]
    styles = {"": tnn.SharedColwiseParallel("gate", "up"), "down": tnn.RowwiseParallel()}
    spread = parallelize_module(copy.deepcopy(right), mesh_of(group), styles)
    x = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))
    error = far(spread(x), right(x))
    return [] if error < LIMIT else [f"{error:.1e}"]


class Adapted(nn.Module):
    """A linear with an adapter of low rank, as of LoRA."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.A, self.B = nn.Linear(base.in_features, 3, bias=False), nn.Linear(3, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.B(self.A(x))  # type: ignore[no-any-return]


def with_adapter(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of a step if one of the layers is inside of a wrapper with weights of its own."""
    torch.manual_seed(3)
    right = Pair(dist.get_world_size(group), lambda pair, x: pair.down(pair.gate(x) * pair.up(x)))  # type: ignore[no-any-return]
    right.gate = Adapted(right.gate)  # type: ignore[assignment]
    styles = {
        "": tnn.SharedColwiseParallel("gate.base", "up"), "gate.B": tnn.ColwiseParallel(),
        "down": tnn.RowwiseParallel(),
    }  # fmt: skip
    spread = parallelize_module(copy.deepcopy(right), mesh_of(group), styles)
    x = torch.randn(2, TOKENS, WIDTH)
    results = [pair(x) for pair in (spread, right)]
    for y in results:
        y.square().sum().backward()
    wanted = dict(right.named_parameters())
    pairs = {"result": results, **{n: [whole(p.grad), wanted[n].grad] for n, p in spread.named_parameters()}}
    return [f"{n}: {far(a, b):.1e}" for n, (a, b) in pairs.items() if not far(a, b) < LIMIT]


def copied(group: dist.ProcessGroup) -> list[str]:
    """What is wrong of the copy of a model of which only one of the linears was called."""
    right = Pair(dist.get_world_size(group), lambda pair, x: pair.gate(x))  # type: ignore[no-any-return]
    spread = parallelize_module(copy.deepcopy(right), mesh_of(group), {"": tnn.SharedColwiseParallel("gate", "up")})
    x = torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))
    spread(x)
    second = copy.deepcopy(spread)
    mine = right.up(x).chunk(dist.get_world_size(group), -1)[dist.get_rank(group)]
    error = far(second.up(x), mine)
    return [] if error < LIMIT else [f"{error:.1e}"]
