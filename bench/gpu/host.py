"""Measures the host's time of a call, of a program and of an operator of torch, compared with a bare launch by Triton:
many small calls, without waits.

Without a GPU, launches do nothing: kernels are compiled for sm_90, and all code above CUDA's driver runs. A bare launch
then does nothing either, so the difference is the time of our code.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl

from bench.gpu.experts import alone
from bench.gpu.no_cuda import NoDevice, in_place_of_cuda, missing
from bench.gpu.place import Place
from bench.gpu.report import Report, spread
from tilelink import ops
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.ops import programs
from tilelink.runtime.cuda.virtual_world import VirtualGroup, VirtualWorld

CALLS, TIMES = 20, 60
"""How many calls are averaged, so few that all fit into the device's queue; and how many averages are taken."""


@triton.jit
def little(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


class Empty(torch.autograd.Function):
    """What autograd costs a call with a gradient that saves its two tensors."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return torch.empty_like(x)


def host(place: Place, report: Report) -> None:
    """Records the time of calls, and of a bare launch, by the clock of the host; and whether the kernels of calls are
    launched past Triton."""
    about: dict[str, Any] = {"op": "all_gather_matmul", "dtype": "bfloat16", "world": 1}
    what = "host time of a call" if place.on_gpu else "host time of a call whose launches do nothing"
    clock = time.perf_counter if place.on_gpu else time.thread_time  # other processes do not affect it
    if not place.on_gpu and (lacks := missing()):
        report.add(what, ok=None, error=f"it needs {lacks}", **about)
        return
    with report.case(what, **about) as found:
        here = place if place.on_gpu else _nowhere()
        x, weight, other, out = (torch.ones(128, 128, device=here.place).bfloat16() for _ in range(4))
        trained = weight.clone().requires_grad_()
        figures: dict[str, list[float]] = {}

        def body(group: VirtualGroup) -> None:
            def call(**options: Any) -> Callable[[], Any]:
                return lambda: all_gather_matmul(x, weight, group=group, **options)

            calls = {
                "bare": lambda: little[(1,)](x, out, 128, BLOCK=128), "push": call(schedule="push"),
                "pull": call(schedule="pull"), "push_into": call(schedule="push", out=out),
                "operator": lambda: ops.all_gather_linear(x, weight),
                "operator_of_two": lambda: ops.all_gather_linear(x, [weight, other]),
                "operator_reduce_scatter": lambda: ops.linear_reduce_scatter(x, weight),
                "operator_trained": lambda: ops.linear_all_reduce(x, trained),
                "gather_trained": lambda: ops.all_gather_linear(x, trained),
                "scatter_trained": lambda: ops.linear_reduce_scatter(x, trained),
                "empty_function": lambda: Empty.apply(x, trained),
            }  # fmt: skip
            with alone("gloo") as one:
                programs._lanes[one] = {group.lane.place.type: group}  # type: ignore[dict-item]  # a virtual rank
                for name, do in calls.items():
                    do(), do(), do()  # it is checked, compiled for each slot, and then watched
                    figures[name] = [_time(do, here.settle, clock) for _ in range(TIMES)]

        world = here.world(1)
        world.run(body)
        found["past_triton"] = all(kernel.directly is not None for kernel in world.lane.loaded.values())
        for name, us in figures.items():
            found[f"{name}_us"] = spread(us)
        for name in ("push", "operator"):
            found[f"{name}_above_a_bare_launch_us"] = round(median(figures[name]) - median(figures["bare"]), 2)
        if place.on_gpu:
            found |= spread(figures["push"])


def _time(call: Callable[[], Any], settle: Callable[[], None], clock: Callable[[], float]) -> float:
    """Returns microseconds of the host for one of many calls."""
    settle()
    began = clock()
    for _ in range(CALLS):
        call()
    took = (clock() - began) / CALLS * 1e6
    settle()
    return took


def _nowhere() -> Any:
    """A place on `NoDevice`."""
    library = in_place_of_cuda()

    def world(ranks: int) -> VirtualWorld:
        return VirtualWorld(ranks, device=NoDevice(library), heap_bytes=4 << 20, signal_bytes=1 << 12)

    return SimpleNamespace(place=torch.device("cpu"), world=world, settle=lambda: None)
