"""Checks the layer of experts: `ops.mixture_of_experts` on a group of one process, against all experts in float64. It
checks two routings in a row, the gradients, and on a GPU another routing through one captured graph."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from bench.check import LIMITS, relative_rms
from bench.gpu.place import Place
from bench.gpu.report import Report
from bench.references import every_slice, layer_of_experts
from tilelink import ops
from tilelink.ops.known import BACKEND

EXPERTS, TOP, HIDDEN = 4, 2, 64
NAMES = "x", "topk_weights", "gate_up", "down"


def experts(place: Place, report: Report) -> None:
    """Checks two calls with different routings and their gradients, and a graph."""
    tokens, width = place.sizes["M"], place.sizes["K"]
    about = {"op": "mixture_of_experts", "dtype": "bfloat16", "world": 1, "shape": f"tokens={tokens},K={width}"}
    with alone("nccl" if place.on_gpu else "gloo"):
        with report.case("result and gradients", **about) as found:
            for seed in range(2):
                given = operands(place, tokens, width, seed)
                found |= judged(_result_and_gradients(given), right(given))
                if not found["ok"]:
                    found["error"] = f"call {seed} is wrong"
                    break
        if place.on_gpu:
            with report.case("a graph and another routing", **about) as found:
                found |= replayed(place, tokens, width)


@contextmanager
def alone(backend: str) -> Iterator[Any]:
    """A context with a process group of this process alone. On a CPU, its operators run in Triton's interpreter, not as
    plain torch."""
    before = os.environ.get(BACKEND)
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    os.environ[BACKEND] = "interpret"
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()
        os.environ.pop(BACKEND)
        os.environ |= {} if before is None else {BACKEND: before}


def operands(place: Place, tokens: int, width: int, seed: int) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    shapes = {
        "x": (tokens, width), "gate_up": (EXPERTS, 2 * HIDDEN, width), "down": (EXPERTS, width, HIDDEN),
        "topk_weights": (tokens, TOP),
    }  # fmt: skip
    made = {n: torch.randn(s, generator=drawn).bfloat16().to(place.place).requires_grad_() for n, s in shapes.items()}
    chosen = torch.rand(tokens, EXPERTS, generator=drawn).topk(TOP).indices
    chosen[torch.rand(tokens, TOP, generator=drawn) < 0.2] = -1
    return made | {"topk_idx": chosen.to(place.place)}


def right(given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Returns the result and the gradients, by plain torch in float64 on the CPU."""
    leaves = {n: given[n].detach().cpu().double().requires_grad_() for n in NAMES}
    out = layer_of_experts(leaves["x"], given["topk_idx"].cpu(), leaves["topk_weights"], every_slice([leaves]))
    return [out.detach(), *torch.autograd.grad(out.sum(), list(leaves.values()))]


def judged(made: list[torch.Tensor], wanted: list[torch.Tensor]) -> dict[str, Any]:
    """Returns the verdict on results in bfloat16. Each was rounded several times on its way."""
    errors = [relative_rms([m.cpu()], [w]) for m, w in zip(made, wanted, strict=True)]
    return {"ok": max(errors) <= 8 * LIMITS["bfloat16"], "rel_rms": max(errors), "calls": 2}


def replayed(place: Place, tokens: int, width: int) -> dict[str, Any]:
    """Captures a graph with one routing and replays it with another one. Returns the verdict on the result."""
    given, other = (operands(place, tokens, width, seed) for seed in (2, 3))
    tensors = (given[n] for n in ("x", "topk_idx", "topk_weights", "gate_up", "down"))
    with torch.no_grad():
        ops.prepare(ops.mixture_of_experts, *tensors, group=dist.group.WORLD)
        place.settle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = _call(given)
        for name, tensor in given.items():
            tensor.copy_(other[name])
        graph.replay()
    place.settle()
    return judged([out], right(other)[:1])


def _call(given: dict[str, torch.Tensor]) -> torch.Tensor:
    rest = (given[n] for n in ("topk_idx", "topk_weights", "gate_up", "down"))
    return ops.mixture_of_experts(given["x"], *rest, group=dist.group.WORLD)


def _result_and_gradients(given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    out = _call(given)
    return [out.detach(), *torch.autograd.grad(out.sum(), [given[n] for n in NAMES])]
