"""Times fused operators against unfused forms, on all ranks, for layers of the paper's MLPs.

Every rank times the same forms equally often, in the same order, which is reversed with each repeat. Before each call,
the cache is flushed, and a collective lets the ranks begin together. The time of a repeat is the slowest rank's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from bench.check import LIMITS, relative_rms
from bench.gpu.place import FLUSHED, flush
from bench.node.forms import Form, Layer
from bench.node.ranks import Node
from bench.node.report import FUSED, TIMES, UNFUSED, NodeReport
from bench.node.right import schedules
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.ops.collectives import all_gather
from tilelink.runtime.cuda.clock import timed_once

WARM_UP, REPEATS = 3, 20
SLEEP = 8_000_000
"""Cycles that the device sleeps while the host enqueues. They are many, since no rank may repeat a call alone."""


def speed(node: Node, report: NodeReport) -> None:
    """Writes a record for each layer: the median of each form, and the ratio of unfused to the fastest fused form."""
    if node.shared:
        report.add("speed", ok=None, error="ranks share a GPU: times say nothing, and NCCL does not run")
        return
    group: Any = None
    for name, (m, n, k) in node.place.gemms.items():
        gathers = ", down" not in name
        program = all_gather_matmul if gathers else matmul_reduce_scatter
        about = {"op": program.name, "dtype": "bfloat16", "world": node.world, "layer": name, "baseline": UNFUSED}
        with report.case("fused against unfused", shape=f"M={m},N={n},K={k}", **about) as found:
            if group is None:
                group = node.group(**({"reserved": 0, "heap_bytes": 1 << 30} if node.place.on_gpu else {}))
            found |= layer(node, report, group, gathers, (m, n, k))


def layer(node: Node, report: NodeReport, group: Any, gathers: bool, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Returns the times of all forms of a layer on this rank; a form that is wrong, or raises an error, has none."""
    m, n, k = shape
    program = all_gather_matmul if gathers else matmul_reduce_scatter
    x = node.place.matrices(node.rank)(m // node.world if gathers else m, k)
    weight = node.place.matrices(0 if gathers else node.world)(n, k).T
    baselines = Layer(gathers, x, weight, node.world, node.place.on_gpu)
    forms: dict[str, Form] = dict(baselines.forms())
    for schedule in schedules(node, program):
        forms[f"{FUSED}{schedule}"] = lambda s=schedule: program(x, weight, schedule=s, group=group)  # type: ignore[misc]
    refused: dict[str, str] = {}
    right = _right(x, weight, gathers)
    for form, do in forms.items():
        try:
            error = _off(baselines.in_order(do()), right)
            why = "" if error <= LIMITS["bfloat16"] * 4 else f"the result is wrong: relative RMS {error}"
        except Exception as e:
            why = f"{type(e).__name__}: {e}"
        if why:
            refused[form] = why
        _agree(node, refused, form)
    forms = {form: do for form, do in forms.items() if form not in refused}
    group.synchronize()
    times, late = timed(node, forms)
    clocks = node.place.clocks(lambda: torch.matmul(x, weight))
    wrong = {form: why for form, why in refused.items() if form.startswith(FUSED)}
    found: dict[str, Any] = {TIMES: times, "late": late, "clocks": clocks, "refused": refused, "ok": not wrong}
    return found | ({"error": str(wrong)} if wrong else {})


def _agree(node: Node, refused: dict[str, str], form: str) -> None:
    """Makes all ranks refuse a form that one rank refuses, so that all time the same forms."""
    by_rank: list[str | None] = [None] * node.world
    dist.all_gather_object(by_rank, refused.get(form))
    if why := next((f"rank {r}: {w}" for r, w in enumerate(by_rank) if w), None):
        refused[form] = why


def timed(node: Node, forms: dict[str, Form]) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Returns microseconds of every repeat of each form, and how often the host was late."""
    times: dict[str, list[float]] = {form: [] for form in forms}
    late = dict.fromkeys(forms, 0)
    before = _before(node)
    for repeat in range(-WARM_UP, REPEATS if node.place.on_gpu else node.place.repeats):
        names = list(forms)[:: 1 if repeat % 2 else -1]
        for form in names:
            us, was_late = _once(node, forms[form], before)
            if repeat >= 0:
                times[form].append(round(us, 3))
                late[form] += was_late
    return times, late


def _before(node: Node) -> Callable[[], object]:
    """Returns what is enqueued before a call: it flushes the cache and lets the ranks meet."""
    if not node.place.on_gpu:
        return dist.barrier
    flushed = torch.zeros(FLUSHED // 8, dtype=torch.int64, device=node.place.place)
    word = torch.zeros(1, device=node.place.place)
    return lambda: (flush(flushed), dist.all_reduce(word))


def _once(node: Node, do: Form, before: Callable[[], object]) -> tuple[float, bool]:
    if node.place.on_gpu:
        return timed_once(do, before, SLEEP)
    return node.place.clock(do, before), False


def _right(x: torch.Tensor, weight: torch.Tensor, gathers: bool) -> torch.Tensor:
    """Returns the right result on this rank, by torch in float32."""
    world, rank = dist.get_world_size(), dist.get_rank()
    if gathers:
        full = x.new_empty(world * len(x), x.shape[1])
        all_gather(full, x)
        return full.float() @ weight.float()
    total = x.float() @ weight.float()
    dist.all_reduce(total)
    return total.chunk(world)[rank]


def _off(result: torch.Tensor, right: torch.Tensor) -> float:
    return relative_rms([result.float()], [right])
