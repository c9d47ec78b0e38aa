"""Tests of fusing on one GPU: virtual ranks against the same copies and torch.matmul, and the loopback link."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import torch

from bench.check import LIMITS, relative_rms
from bench.gpu.loopback import LoopbackGroup, Prepared
from bench.gpu.place import Place
from bench.gpu.report import Report, spread
from bench.gpu.right import by_engine
from bench.gpu.speed import timed
from tilelink.analysis.machine import machine, machine_of_device
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.programs.program import Program

WORLDS, WORLD = (2, 4), 8
"""The numbers of virtual ranks, and of ranks of the loopback link (one real rank and its peers)."""
NODE = "h100"
"""The machine whose link the loopback link stands for, if no description names the GPU."""
STEP = 256
"""Scaled sizes are multiples of this number, so that no tile leaves a rest."""
CHUNKS = 4
"""The chunks of rows of the unfused form on two streams."""
RATIOS, BALANCED = (4.0, 2.0, 1.0, 0.5, 0.25), ("engine", "pull")
"""Times of a GEMM over those of its transfers, and the schedules that are timed for each ratio."""
OVERLAP = "1 - (fused - GEMM) / (unfused - GEMM), FLUX's overlap efficiency (arXiv 2406.06858, section 5)"
Do = Callable[[], Any]


# ---- virtual ranks


def one_card(place: Place, report: Report) -> None:
    """Times all ranks of a world on one GPU, fused, against the same copies and torch.matmul on the whole GPU."""
    for program in (all_gather_matmul, matmul_reduce_scatter):
        for name, (m, n, k) in layers(place, program):
            for world in WORLDS:
                for schedule in program.schedules:
                    about: dict[str, Any] = {"op": program.name, "dtype": "bfloat16", "world": world, "layer": name}
                    about |= {"schedule": schedule, "shape": f"M={m},N={n},K={k}"}
                    what = "fused on virtual ranks against copies, then cuBLAS"
                    if not place.on_gpu or by_engine(schedule, program):
                        why = "copy engines are not in graphs" if place.on_gpu else "no GPU"
                        report.add(what, ok=None, error=why, **about)
                        continue
                    with report.case(what, baseline="copies, then torch.matmul", **about) as found:
                        found |= _virtual(place, program, schedule, world, (m, n, k))


def layers(place: Place, program: Program, count: int = 2) -> list[tuple[str, tuple[int, int, int]]]:
    """Returns the first layers that a program computes: an MLP gathers rows before gate, and scatters after down."""
    scatters = program is matmul_reduce_scatter
    found = [(name, shape) for name, shape in place.gemms.items() if name.endswith(", down") == scatters]
    return (found or list(place.gemms.items()))[:count]


def _virtual(place: Place, program: Program, schedule: str, world: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    m, n, k = shape
    gathers = program is all_gather_matmul
    x = [place.matrices(r)(m // world if gathers else m, k) for r in range(world)]
    weight = [place.matrices(world + r)(n, k).T for r in range(world)]
    ranks = place.world(world, heap_bytes=_heap(m, n, k, gathers, 2))

    def body(group: Any) -> tuple[Any, torch.Tensor]:
        mine = x[group.rank], weight[group.rank]
        program.prepare(*mine, schedule=schedule, group=group)
        with place.capture(group) as graph:
            out = program(*mine, schedule=schedule, group=group)
        return graph, out

    captured = ranks.run(body)
    device = ranks.device

    def fused() -> list[torch.Tensor]:
        outside = device.current()
        for group, (graph, _) in zip(ranks.groups, captured, strict=True):
            device.follow(group.stream, outside)
            with device.on(group.stream):
                graph.replay()
        for group in ranks.groups:
            device.follow(outside, group.stream)
        return [out for _, out in captured]

    unfused = _gathered(x, weight) if gathers else _scattered(x, weight)
    return _against(place, fused, unfused)


def _gathered(x: Sequence[torch.Tensor], weight: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
    """Returns the unfused form that gathers: every rank copies the rows of all ranks, then multiplies."""
    full = [x[0].new_empty(sum(map(len, x)), x[0].shape[1]) for _ in x]

    def do() -> list[torch.Tensor]:
        for mine in full:
            for rows, theirs in zip(mine.split([len(t) for t in x]), x, strict=True):
                rows.copy_(theirs)
        return [mine @ w for mine, w in zip(full, weight, strict=True)]

    return do


def _scattered(x: Sequence[torch.Tensor], weight: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
    """Returns the unfused form that scatters: every rank multiplies and copies its parts to homes, which add up."""
    world, rows, n = len(x), len(x[0]) // len(x), weight[0].shape[1]
    inbox = [x[0].new_empty(world, rows, n) for _ in x]

    def do() -> list[torch.Tensor]:
        for source, (a, b) in enumerate(zip(x, weight, strict=True)):
            for home, part in enumerate((a @ b).split(rows)):
                inbox[home][source].copy_(part)
        return [mine.sum(0) for mine in inbox]

    return do


# ---- the loopback link

BY_THREADS = (
    (all_gather_matmul, "push,gather.via=load-store"), (matmul_reduce_scatter, "push,send.via=load-store"),
)  # fmt: skip
"""The schedules that bulk copies (`push`) are compared with: the same SMs, whose threads load and store."""


def loopback(place: Place, report: Report) -> None:
    """Times one of eight ranks whose peers are memory of the host: fused, against the same copies and torch.matmul.
    Records the overlap efficiency, too."""
    if not place.on_gpu:
        report.add("the loopback link", ok=None, error="no GPU")
        return
    device = place.world(1).device
    with report.case("the loopback link: its rate") as found:
        rate = link_rate(place)
        found["gb_s"] = round(rate, 1)
    for program, schedule, name, shape, ratio in balances(place, rate):
        about = {"op": program.name, "dtype": "bfloat16", "world": WORLD, "layer": name, "link_gb_s": round(rate, 1)}
        about |= {"schedule": schedule, "shape": "M={},N={},K={}".format(*shape), "compute_to_transfers": ratio}
        with report.case("the loopback link", baseline="copies, then torch.matmul", **about) as found:
            found |= over_the_link(place, device, program, schedule, shape)
    for program, by_threads in BY_THREADS:
        for name, shape in layers(place, program):
            m, n, k = scaled(shape, node_rate(place.device) / rate, program is all_gather_matmul)
            for schedule in (*program.schedules, by_threads):
                about = {"op": program.name, "dtype": "bfloat16", "world": WORLD, "layer": name}
                about |= {"schedule": schedule, "shape": f"M={m},N={n},K={k}", "scaled_from": shape}
                about |= {"link_gb_s": round(rate, 1), "node_gb_s": round(node_rate(place.device), 1)}
                with report.case("the loopback link", baseline="copies, then torch.matmul", **about) as found:
                    found |= over_the_link(place, device, program, schedule, (m, n, k))


def balances(place: Place, rate: float) -> Iterator[tuple[Program, str, str, tuple[int, int, int], float]]:
    """Yields programs and schedules with the sizes of a layer, one of them changed so that the GEMM takes `RATIOS`
    times as long as its transfers over a link of `rate` GB/s: N of a gather, K of a scattered sum."""
    tflops = machine(machine_of_device(place.device) or NODE).matmul_rate("bfloat16")
    for program in (all_gather_matmul, matmul_reduce_scatter):
        gathers = program is all_gather_matmul
        name, (m, n, k) = layers(place, program, 1)[0]
        us = 2 * m * (k if gathers else n) * (WORLD - 1) / WORLD / rate / 1e3
        for ratio in RATIOS:
            size = max(1, round(ratio * us * tflops * 1e6 / (2 * m * (k if gathers else n)) / STEP)) * STEP
            for schedule in BALANCED:
                yield program, schedule, name, (m, size, k) if gathers else (m, n, size), ratio


def link_rate(place: Place, size: int = 256 << 20) -> float:
    """Returns GB/s of a copy to memory of the host."""
    source = torch.empty(size, dtype=torch.uint8, device=place.place)
    target = torch.empty(size, dtype=torch.uint8, pin_memory=place.place.type == "cuda")
    us = median(place.clock(lambda: target.copy_(source, non_blocking=True), lambda: None) for _ in range(5))
    return size / us / 1e3


def scaled(shape: tuple[int, int, int], slower: float, gathers: bool) -> tuple[int, int, int]:
    """Returns a shape with more to compute for the same bytes on the link, by the factor by which the link is `slower`
    than a node's; never less. Bytes of a gather do not depend on N; bytes of a scattered sum do not depend on K."""
    m, n, k = shape
    if slower <= 1:
        return shape
    larger = max(1, round((n if gathers else k) * slower / STEP)) * STEP
    return (m, larger, k) if gathers else (m, n, larger)


def node_rate(device: str) -> float:
    """Returns GB/s that copy engines of the described machine reach; without a description, of an H100's node."""
    return machine(machine_of_device(device) or NODE).agent("copy_engine").saturation


def over_the_link(
    place: Place, device: Any, program: Program, schedule: str, shape: tuple[int, int, int], world: int = WORLD,
    *, shared: bool = True,
) -> dict[str, Any]:  # fmt: skip
    m, n, k = shape
    gathers = program is all_gather_matmul
    x, peers = (place.matrices(seed)(m // world if gathers else m, k) for seed in range(2))
    weight = place.matrices(2)(n, k).T
    group = LoopbackGroup(device, world, _heap(m, n, k, gathers, 1), 1 << 19, shared)
    given = Prepared(group, program, schedule, x, weight, peers)
    fused = given.checked()
    full = torch.cat([x, *[peers] * (world - 1)]) if gathers else x
    right = full[: len(fused)][_some(fused)].float() @ weight.float()
    rms = relative_rms([fused[_some(fused)].float().cpu()], [right.cpu()])
    if not rms <= LIMITS["bfloat16"] * 2:
        return {"ok": False, "rel_rms": rms, "error": "the result is wrong"}
    unfused, in_chunks = (_copies(place, group, given, full, chunks) for chunks in (1, CHUNKS))
    forms: list[tuple[Do, Do]] = [
        (given.before, given.call), (_nothing, unfused), (_nothing, in_chunks),
        (_nothing, lambda: torch.matmul(full, weight)),
    ]  # fmt: skip
    mine, other, chunked, gemm = timed(place, [(_of(before), _of(do)) for before, do in forms])
    given.checked()
    found = {"rel_rms": rms, "clocks": place.clocks(unfused), **spread(mine), "baseline_us": spread(other)}
    found |= {"chunks": CHUNKS, "chunked_us": spread(chunked), "gemm_us": spread(gemm), "overlap": OVERLAP}
    found |= {"overlap_efficiency": None, "speedup": None}
    if place.on_gpu:
        fused_us, unfused_us, gemm_us = map(median, (mine, other, gemm))
        found["speedup"] = round(unfused_us / fused_us, 4)
        found["overlap_efficiency"] = overlap_efficiency(fused_us, unfused_us, gemm_us)
    return found


def overlap_efficiency(fused: float, unfused: float, gemm: float) -> float | None:
    """Returns the share of the unfused form's time besides its GEMM that fusing hides, see `OVERLAP`. None if there is
    no such time; negative if the fused form takes longer than the unfused one."""
    return round(1 - (fused - gemm) / (unfused - gemm), 4) if unfused > gemm else None


def _copies(place: Place, group: LoopbackGroup, given: Prepared, full: torch.Tensor, chunks: int) -> Do:
    """Returns an unfused form with the same traffic on the link as the schedule, by copies: rows to or from peers
    before torch.matmul, or parts of the sum after it. Several chunks of rows overlap: the copies of a chunk are on a
    second stream, beside the products of others."""
    gathers, world = given.program is all_gather_matmul, group.world
    resource = given.program.unchanged(given.schedule, given.program.optional)["gather" if gathers else "send"]
    fetches = getattr(resource, "at", None) == ("reader" if gathers else "home")
    part = given.x if gathers else given.x.new_empty(len(given.x) // world, given.weight.shape[1])
    host = torch.empty(part.shape, dtype=part.dtype, pin_memory=place.place.type == "cuda")
    here = torch.empty_like(part)

    def cross(mine: torch.Tensor) -> None:
        here.copy_(host, non_blocking=True) if fetches else host.copy_(mine, non_blocking=True)

    device = group.lane.device
    link = device.stream() if chunks > 1 else None

    def do() -> None:
        stream = device.current()
        beside, sums = link or stream, list[torch.Tensor]()  # sums are kept until they have crossed
        device.follow(beside, stream)
        for chunk, rows in enumerate(full.chunk(chunks)):
            parts = range(not chunk, world // chunks)  # the first part of the first chunk is this rank's
            if gathers:
                with device.on(beside):
                    for _ in parts:
                        cross(given.x)
                device.follow(stream, beside)
            sums.append(torch.matmul(rows, given.weight))
            if not gathers:
                device.follow(beside, stream)
                with device.on(beside):
                    for k in parts:
                        cross(sums[-1].chunk(world // chunks)[k])
        device.follow(stream, beside)

    return do


# ---- both


def _against(place: Place, fused: Callable[[], list[torch.Tensor]], unfused: Callable[[], list[torch.Tensor]]) -> Any:
    """Returns the figures of the fused form, after comparing its results with the unfused form."""
    ours, theirs = fused(), unfused()
    place.settle()
    rms = relative_rms([y[_some(y)].float().cpu() for y in ours], [y[_some(y)].double().cpu() for y in theirs])
    if not rms <= LIMITS["bfloat16"] * 2:  # both are rounded
        return {"ok": False, "rel_rms": None if rms == float("inf") else rms, "error": "the result is wrong"}
    mine, other = timed(place, [(_of(_nothing), _of(fused)), (_of(_nothing), _of(unfused))])
    ratio = round(median(other) / median(mine), 4) if place.on_gpu else None
    found = {"rel_rms": rms, "clocks": place.clocks(unfused), **spread(mine)}
    return found | {"speedup": ratio, "baseline_us": spread(other)}


def _some(result: torch.Tensor) -> slice:
    """Returns a slice of rows to check in place of all: the host is slow."""
    return slice(0, None, max(1, len(result) // 256))


def _nothing() -> None:
    """Does nothing: for calls that need no preparation."""


def _of(do: Do) -> Callable[[int], Any]:
    """Returns a call for `timed` that ignores the number of the set of inputs."""
    return lambda k: do()


def _heap(m: int, n: int, k: int, gathers: bool, slots: int) -> int:
    """Bytes of a heap that holds what is gathered, or what is sent, in its slots."""
    return slots * (2 * m * (k if gathers else 2 * n) + 2 * m * k + (8 << 20))
