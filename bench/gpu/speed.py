"""Times the GEMM, with all signals set, against cuBLAS: one rank on the whole GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

from bench.check import LIMITS, relative_rms
from bench.gpu.place import Place
from bench.gpu.report import Report, spread
from bench.gpu.vain import without_workers
from tilelink.analysis.counting import expected_counts
from tilelink.analysis.machine import machine_of_device
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul import matmul
from tilelink.programs.program import Program
from tilelink.runtime.cuda.script import Script, Streams
from tilelink.runtime.cuda.virtual_world import VirtualGroup, VirtualWorld
from tilelink.runtime.launch import Result

CUBLAS = "cuBLAS (torch.matmul)"
SETS, WARM_UP = 3, 5
"""Sets of inputs that take turns, so that no call finds its inputs in the cache; and the number of warm-up turns."""


NARROW, MARGIN = ("tile=128x128x64", "stages=6"), 1.05
"""Tiles that take the place of wide ones if they are predicted to be faster by a factor; predictions of the GEMM were
2.7 % off."""


def speed(place: Place, report: Report) -> None:
    """Times the GEMMs of the paper's MLPs, in turns with cuBLAS: `matmul`, which waits for nothing, and the GEMM of
    `all_gather_matmul`, with its rows in place and its signals set. Tiles are those that are predicted to be faster.
    Times are by events, with a flushed cache and inputs in turns."""
    for name, (m, n, k) in place.gemms.items():
        shape = f"M={m},N={n},K={k}"
        about: dict[str, Any] = {"dtype": "bfloat16", "world": 1, "shape": shape, "layer": name, "form": place.form}
        about["baseline"] = CUBLAS
        sets = gemm_inputs(place, m, n, k)
        narrow = narrow_is_faster(machine_of_device(place.device), m, n, k)
        schedule = with_tiles("gemm", "multiply", narrow)
        with report.case("GEMM without waits", op="matmul", schedule=schedule, **about) as found:
            found |= against(place, sets, without_waits(place, sets, schedule))
        if ", gate" in name or not place.on_gpu:
            what = "GEMM with all signals set"
            schedule = with_tiles("push", "matmul", narrow)
            with report.case(what, op="all_gather_matmul", schedule=schedule, **about) as found:
                call = signals_set(place, sets, schedule) if place.on_gpu else without_waits(place, sets)
                found |= against(place, sets, call)


def with_tiles(schedule: str, role: str, narrow: bool) -> str:
    """Returns a schedule, with narrow tiles for a role if `narrow`."""
    return ",".join([schedule, *(f"{role}.{change}" for change in NARROW if narrow)])


def narrow_is_faster(described: str | None, m: int, n: int, k: int) -> bool:
    """Whether narrow tiles are predicted to multiply faster, on a GPU of this description; False without one."""
    if described is None:
        return False
    wide, narrow = (
        matmul.simulate(with_tiles("gemm", "multiply", tiles), machine=described, world=1, M=m, N=n, K=k).makespan_us
        for tiles in (False, True)
    )
    return wide > MARGIN * narrow


Tensors = list[tuple[torch.Tensor, torch.Tensor]]
Call = tuple[Callable[[int], None], Callable[..., torch.Tensor]]
"""What is done before a call, out of its time, and the call, of one of the sets of inputs. With `checked` a call fills
its output with NaN first, and raises if a wait ended in vain: memory that is used again may hold an earlier result."""


def gemm_inputs(place: Place, m: int, n: int, k: int) -> Tensors:
    """Returns sets of x (M, K) and a weight (K, N) with the layout of nn.Linear, row by row of (N, K)."""
    matrix = place.matrices(0)
    return [(matrix(m, k), matrix(n, k).T) for _ in range(SETS)]


def against(place: Place, sets: Tensors, call: Call) -> dict[str, Any]:
    """The figures of a call, and its speed over cuBLAS's; its result is checked first."""
    x, weight = sets[0]
    rows = slice(0, None, max(1, len(x) // 512))  # float64 is slow: some rows stand for all
    right = x[rows].cpu().double() @ weight.cpu().double()

    def error() -> float:
        before, ours = call
        before(0)
        return relative_rms([ours(0, checked=True)[rows].cpu()], [right])

    theirs = (lambda k: None, lambda k: torch.matmul(*sets[k]))
    rms = error()
    mine, other = timed(place, [call, theirs]) if rms <= LIMITS["bfloat16"] else ([], [])
    rms = max(rms, error())
    if not rms <= LIMITS["bfloat16"]:
        return {"ok": False, "rel_rms": None if rms == float("inf") else rms, "error": "the result is wrong"}
    flop = 2 * x.shape[0] * x.shape[1] * weight.shape[1]
    found = {"clocks": place.clocks(partial(call[1], 0)), "rel_rms": rms, **spread(mine)}
    found["tflops"] = round(flop / median(mine) / 1e6, 1)
    ratio = round(median(other) / median(mine), 4) if place.on_gpu else None
    return found | {"speedup": ratio, "baseline_us": spread(other)}


def timed(place: Place, calls: list[Call]) -> list[list[float]]:
    """Returns microseconds of each call, for many turns. The order of calls is reversed with each turn."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(-WARM_UP if place.on_gpu else 0, place.repeats):
        for at in range(len(calls))[:: 1 if turn % 2 else -1]:
            before, call = calls[at]
            us = place.clock(partial(call, turn % SETS), partial(before, turn % SETS))
            if turn >= 0:
                times[at].append(us)
    return times


# ---- the calls


def _world(place: Place, sets: Tensors) -> Any:
    x = sets[0][0]
    return place.world(1, heap_bytes=4 * x.nbytes + (64 << 20)) if place.on_gpu else place.world(1)


def without_waits(place: Place, sets: Tensors, schedule: str = "gemm") -> Call:
    """Returns a call of the GEMM that waits for nothing."""
    if not place.on_gpu:
        world = _world(place, sets)
        return lambda k: None, lambda k, checked=False: world.run(
            lambda group: matmul(*sets[k], schedule=schedule, group=group)
        )[0]
    script, group = _script(_world(place, sets), matmul, sets, schedule)
    return lambda k: None, lambda k, checked=False: _play(group, script, sets[k], checked)


def signals_set(place: Place, sets: Tensors, schedule: str = "push") -> Call:
    """Returns a run of one rank without the gather. Before each call, its rows are put in the slot, its signals set."""
    world: VirtualWorld = _world(place, sets)
    script, group = _script(world, all_gather_matmul, sets, schedule, gathers=True)
    prepared = script.record.prepared
    assert [t.name for t in prepared.program.on_heap] == ["full"], "the rows begin where the slot's data do"
    (signals,) = prepared.program.signals
    ((_, at, cells),) = script.record.signals
    counts = expected_counts(signals, prepared.sizes)[0]
    width = prepared.lowered.target.signal_bytes // 4
    words = world.lane.memory(0, at, (cells, width), torch.int32)[:, 0]
    expected = torch.tensor(counts, dtype=torch.int32, device=place.place)
    layout = world.lane.layout
    rows = world.lane.heaps[0][layout.data_at(0) :][: sets[0][0].nbytes]

    def before(k: int) -> None:
        words.copy_(expected)
        rows.copy_(sets[k][0].reshape(-1).view(torch.uint8))

    return before, lambda k, checked=False: _play(group, script, sets[k], checked)


def _script(
    world: VirtualWorld, program: Program, sets: Tensors, schedule: str, gathers: bool = False
) -> tuple[Script, VirtualGroup]:
    """Makes a call in slot 0 once, and returns its script. With `gathers`, the gather is removed from the script."""
    kept: list[Script] = []

    def body(group: VirtualGroup) -> None:
        real = group.play
        group.play = lambda script, *rest: (kept.append(script), real(script, *rest))[1]  # type: ignore[method-assign, func-returns-value]
        program(*sets[0], schedule=schedule, group=group, slot=0)
        group.play = real  # type: ignore[method-assign]

    world.run(body)
    (script,) = kept
    return (without_workers(script, "gather") if gathers else script), world.groups[0]


def _play(
    group: VirtualGroup, script: Script, tensors: tuple[torch.Tensor, torch.Tensor], checked: bool
) -> torch.Tensor:
    """Launches a script on the current stream, past the checks of a call."""
    named = dict(zip(("x", "weight"), tensors, strict=True))
    out = Result((len(tensors[0]), tensors[1].shape[1]), torch.bfloat16)
    for name, result in (script.outputs or {"out": out}).items():
        named[name] = result.allocated(group.allocate)
    if checked:
        named["out"].fill_(float("nan"))
    device = group.lane.device
    script.play(named, Streams(device.current(), {}))
    if checked:
        device.synchronize(device.current())
        group.check()
    return named["out"]
