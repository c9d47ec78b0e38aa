"""Random layers of experts through the operators, on gloo processes of this machine, until the time is up.

Each case draws from its seed: the tokens of each rank, top, experts, their places and copies, capacity, slices, plan,
dtype and backend. Results and gradients are compared with all experts on one rank in float64. A routing without room
must raise CapacityError.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import spawn

from bench.check import LIMITS, relative_rms
from bench.references import every_slice, layer_of_experts
from tilelink import ops
from tilelink.errors import CapacityError
from tilelink.ops import swiglu
from tilelink.ops.mixture_of_experts import PLANS

RANKS = 4
PATIENCE = timedelta(seconds=120)
"""How long a process waits for the others. If one is not there by then, that is a finding."""
LANE: dict[str, Any] = {"heap_bytes": 1 << 20, "signal_bytes": 16 << 10, "sms": 40}
NAMES = "x", "topk_weights", "gate_up", "down"


@dataclass(frozen=True)
class Layer:
    """A call of every rank with its gradients. `experts`: places of a rank; `capacity`: rows, None for all;
    `placement`: the expert at each place of all ranks, -1 for none; None if each place has another expert."""

    seed: int
    tokens: tuple[int, ...]
    top: int
    experts: int
    slices: int
    width: int
    dtype: str
    crowded: bool
    none: float
    capacity: int | None
    backend: str
    plan: str | None
    placement: tuple[int, ...] | None = None

    @property
    def world(self) -> int:
        return len(self.tokens)

    @property
    def every(self) -> int:
        """The number of experts that tokens can name."""
        return self.experts * self.world // self.slices if self.placement is None else max(self.placement) + 1

    def places(self, rank: int, topk_idx: torch.Tensor) -> torch.Tensor:
        """Returns the places of the experts that a rank's tokens name. Tokens take turns at copies."""
        if self.placement is None:
            return topk_idx
        numbered = list(enumerate(self.placement))[::-1]
        copies = [[p for p, at in numbered if at == e] for e in range(self.every)]
        found = topk_idx.clone()
        for t, of_token in enumerate(topk_idx.tolist()):
            for k, e in enumerate(of_token):
                found[t, k] = copies[e][(t + rank) % len(copies[e])] if e >= 0 else -1
        return found

    def operands(self) -> list[dict[str, torch.Tensor]]:
        """Returns the operands of each rank, in the dtype."""
        made, kind = [], getattr(torch, self.dtype)
        for rank, tokens in enumerate(self.tokens):
            drawn = torch.Generator().manual_seed(1000 * self.seed + rank)
            scores = torch.rand(tokens, self.every, generator=drawn) - self.crowded * torch.arange(self.every)
            chosen = scores.topk(self.top).indices
            chosen[torch.rand(chosen.shape, generator=drawn) < self.none] = -1
            shapes: dict[str, tuple[int, ...]] = {"x": (tokens, self.width), "topk_weights": (tokens, self.top)}
            shapes |= {"gate_up": (self.experts, 2 * 16, self.width), "down": (self.experts, self.width, 16)}
            given = {n: torch.randn(s, generator=drawn).to(kind) for n, s in shapes.items()}
            made.append(given | {"topk_idx": chosen})
        return made

    def rows(self, ranks: Sequence[dict[str, torch.Tensor]]) -> int:
        """Returns the most rows that come to a rank."""
        chosen = torch.cat([self.places(rank, r["topk_idx"]).flatten() for rank, r in enumerate(ranks)])
        of_parts = chosen[chosen >= 0] // self.experts
        return int(torch.bincount(of_parts, minlength=1).max()) if len(of_parts) else 0

    def right(self, ranks: Sequence[dict[str, torch.Tensor]]) -> list[list[torch.Tensor]]:
        """Returns the right results and gradients of every rank."""
        leaves = [{n: r[n].double().requires_grad_() for n in NAMES} for r in ranks]
        chosen = [self.places(rank, r["topk_idx"]) for rank, r in enumerate(ranks)]
        outs = [
            layer_of_experts(given["x"], of_rank, given["topk_weights"], every_slice(leaves, self.slices))
            for given, of_rank in zip(leaves, chosen, strict=True)
        ]
        torch.stack([out.sum() for out in outs]).sum().backward()
        return [[out.detach(), *(_grad(given[n]) for n in NAMES)] for out, given in zip(outs, leaves, strict=True)]

    def terms_of_weights(self, ranks: Sequence[dict[str, torch.Tensor]], rank: int) -> torch.Tensor:
        """Returns for each choice of a rank the summed magnitudes of the terms in its weight's gradient. The gradient
        itself may be much smaller than its terms, and rounding errors go with the terms."""
        r = {n: t.double() if n in NAMES else t for n, t in ranks[rank].items()}
        chosen, found = self.places(rank, r["topk_idx"]), torch.zeros_like(r["topk_weights"])
        for number, (gate_up, down) in every_slice(ranks, self.slices):
            each = (swiglu(r["x"] @ gate_up.double().T).abs() @ down.double().T.abs()).sum(1, keepdim=True)
            found += each * (chosen == number)
        return found

    def wrong(self, rank: int, group: dist.ProcessGroup) -> str:
        """Returns what is wrong on a rank, or ""."""
        ranks = self.operands()
        given = {n: t.requires_grad_() if n in NAMES else t for n, t in ranks[rank].items()}
        tensors = [given[n] for n in ("x", "topk_idx", "topk_weights", "gate_up", "down")]
        how: dict[str, Any] = {"slices": self.slices, "capacity": self.capacity, "plan": self.plan}
        how["places"] = None if self.placement is None else ops.expert_places(self.placement)
        without_room = self.capacity is not None and self.rows(ranks) > self.capacity
        try:
            out = ops.mixture_of_experts(*tensors, group=group, tokens=max(self.tokens), **how)
        except CapacityError as e:
            return "" if without_room else f"CapacityError: {e.message}"
        if without_room:
            return f"no CapacityError, of {self.rows(ranks)} rows"
        grads = torch.autograd.grad(out.sum(), [given[n] for n in NAMES])
        limit = 16 * LIMITS[self.dtype]
        ranks = [{n: t.detach() for n, t in r.items()} for r in ranks]
        with torch.enable_grad():
            wanted = self.right(ranks)[rank]
        for name, made, right in zip(("out", *NAMES), (out.detach(), *grads), wanted, strict=True):
            error = relative_rms([made], [right]) if right.norm() else float(made.double().norm())
            if name == "topk_weights" and right.norm():
                error *= float(right.norm() / self.terms_of_weights(ranks, rank).norm())
            if not error <= limit:
                return f"{name} is off by {error:.1e}"
        return ""


def layer(seed: int) -> Layer:
    """Returns the layer of a seed."""
    dice = random.Random(seed)
    world = dice.choice([1, 2, 3, 4])
    slices = dice.choice([n for n in (1, 1, 2, world) if world % n == 0])
    experts = dice.choice([1, 2, 3, 5])
    tokens = tuple(dice.choice([0, 1, 2, 5, 9]) for _ in range(world))
    placement = _placement(dice, experts * world) if slices == 1 and dice.random() < 0.4 else None
    top = dice.randint(1, min(4, experts * world // slices if placement is None else max(placement) + 1))
    backend = dice.choice(["torch", "torch", "interpret"])
    whole = slices != world  # no plan may then send all tokens to all ranks
    known = [p for p in PLANS if not (whole and p.endswith((":engine", ":multicast")))]
    plan = dice.choice([None, *known] if backend == "interpret" else [None, None, "once"])
    dtype, width = dice.choice(list(LIMITS)), dice.choice([16, 24, 40])
    capacity = dice.choice([None, None, sum(tokens) * top, 3])
    odd = dice.random() < 0.2, dice.choice([0.0, 0.0, 0.3, 1.0])
    return Layer(seed, tokens, top, experts, slices, width, dtype, *odd, capacity, backend, plan, placement)


def _placement(dice: random.Random, places: int) -> tuple[int, ...]:
    """Draws the expert at each place: each expert has one place or more, and some places have no expert."""
    every = dice.randint(1, places)
    more = [dice.choice([-1, dice.randrange(every)]) for _ in range(places - every)]
    found = [*range(every), *more]
    dice.shuffle(found)
    return tuple(found)


def soaked(first: int, seconds: float) -> list[tuple[int, str]]:
    """Runs cases; returns their seeds, and what is wrong with each, or "". Stops at a finding. Raises as spawn does."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_serve, (folder, first, seconds), RANKS)
        found: list[tuple[int, str]] = torch.load(Path(folder) / "found")
        return found


def _serve(rank: int, folder: str, first: int, seconds: float) -> None:
    """Runs the cases in one process of the group."""
    torch.set_num_threads(1)
    store = FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=PATIENCE)
    groups = [dist.new_group(list(range(n))) for n in range(1, RANKS + 1)]
    found, with_lane, until = list[tuple[int, str]](), set[int](), time.monotonic() + seconds
    for seed in range(first, first + 1_000_000):
        drawn, said = layer(seed), ""
        if rank < drawn.world:
            os.environ["TILELINK_BACKEND"] = drawn.backend
            group = groups[drawn.world - 1]
            if drawn.backend == "interpret" and drawn.world not in with_lane:
                ops.lane(group, **LANE)
                with_lane.add(drawn.world)
            try:
                said = drawn.wrong(rank, group)
            except Exception as e:
                said = f"{type(e).__name__}: {e}"
        every: list[Any] = [None] * RANKS
        dist.all_gather_object(every, (said, time.monotonic() > until))
        wrong = [f"rank {r}: {text}" for r, (text, _) in enumerate(every) if text]
        found.append((seed, f"{'; '.join(wrong)}\n    in {drawn}" if wrong else ""))
        if wrong or any(over for _, over in every):
            break
    if rank == 0:
        torch.save(found, Path(folder) / "found")
    dist.destroy_process_group()


def _grad(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
