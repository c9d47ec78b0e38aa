"""Checks results on 1, 2 and 4 ranks: in every dtype and schedule, of uneven parts, call after call, in graphs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch

from bench.gpu.place import Place, gpu
from bench.gpu.report import Report
from bench.operands import POISON, Operands
from tilelink.frontend.schedule import CopyEngine
from tilelink.frontend.sizes import even_parts
from tilelink.kernels import operators
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.matmul_all_reduce import matmul_all_reduce
from tilelink.kernels.matmul_fabric_all_reduce import matmul_fabric_all_reduce
from tilelink.kernels.matmul_one_shot_all_reduce import matmul_one_shot_all_reduce
from tilelink.kernels.matmul_reduce_scatter import matmul_reduce_scatter
from tilelink.kernels.matmul_ring_reduce_scatter import matmul_ring_reduce_scatter
from tilelink.programs.program import Program

SUMS = {
    matmul_reduce_scatter: True, matmul_ring_reduce_scatter: True, matmul_all_reduce: False,
    matmul_fabric_all_reduce: False, matmul_one_shot_all_reduce: False,
}  # fmt: skip
"""The programs that add up partial sums of all ranks, and whether the rows of the sum are cut over them."""
WORLDS = (2, 1, 4)
DTYPES = ("bfloat16", "float16", "float32")
REPLAYS, DRY_REPLAYS, SETS = 20, 3, 4
SCHEDULES = tuple(all_gather_matmul.schedules)
"""The schedules of all_gather_matmul, push and pull first."""


def operands(
    place: Place, program: Program, parts: Sequence[int], seed: int = 0, *, members: int = 1,
    asked: Collection[str] = (), **how: Any,
) -> Operands:  # fmt: skip
    """Returns operands of a program, bfloat16 and whole numbers unless `how` says otherwise. Lists have so many
    `members` of different widths."""
    n = place.sizes["N"]
    sizes: dict[str, Any] = {"N": n if members == 1 else tuple(n // (k + 1) for k in range(members))}
    return Operands(program, parts, sizes | {"K": place.sizes["K"]}, place.place, asked=asked, seed=seed, **how)


def settle(group: Any) -> None:
    """Does nothing: the stream orders the work of a rank. Tests replace it, since their stand-in has no such order."""


def by_engine(schedule: str, program: Program = all_gather_matmul) -> bool:
    """Whether a schedule uses copy engines."""
    return any(isinstance(r, CopyEngine) for r in program.schedules[schedule].values())


def first(place: Place, report: Report) -> None:
    """Checks the simplest case: one rank, then two ranks, one call, whole numbers."""
    for world in (1, 2):
        parts = even_parts(place.sizes["M"], world)
        _result(place, report, (all_gather_matmul, world, "bfloat16", "push", parts), calls=1, kinds=(True,))


Case = tuple[Program, int, str, str, tuple[int, ...]]
"""Program, world, dtype, schedule, and the parts of M."""


def gathering(place: Place) -> list[Case]:
    """Returns cases of all_gather_matmul: every dtype and schedule, even and uneven parts."""
    m = place.sizes["M"]
    even = [(all_gather_matmul, w, d, s, even_parts(m, w)) for w in WORLDS for d in DTYPES for s in SCHEDULES]
    return even + [(all_gather_matmul, w, DTYPES[0], s, parts) for w, parts in place.parts.items() for s in SCHEDULES]


def adding(place: Place) -> list[Case]:
    """Returns cases of programs that add up: every schedule with uneven parts, every dtype with even parts."""
    even, forms = even_parts(place.sizes["M"], 2), [(p, s) for p in SUMS for s in p.schedules]
    made = [(p, 2, d, next(iter(p.schedules)), even) for p in SUMS for d in DTYPES]
    return [(p, w, DTYPES[0], s, parts) for w, parts in place.parts.items() for p, s in forms] + made


def results(place: Place, report: Report) -> None:
    """Checks two calls in a row with different inputs, in all cases of all_gather_matmul."""
    _results(place, report, gathering(place))


def sums(place: Place, report: Report) -> None:
    """Checks the same for programs that add up."""
    _results(place, report, adding(place))


def _results(place: Place, report: Report, cases: Sequence[Case]) -> None:
    compile_ahead(place, report, _prepare, [(c[0].name, *c[1:]) for c in cases])
    for case in cases:
        _result(place, report, case)


def compile_ahead(
    place: Place, report: Report, prepare: Callable[..., None], cases: Sequence[tuple[Any, ...]]
) -> None:
    """Fills Triton's cache on disk, on several cores: on one core it would take longer than all other work."""
    if not place.compilers:
        return
    with (
        report.case("kernels compiled ahead", processes=place.compilers),
        ProcessPoolExecutor(place.compilers, get_context("spawn")) as pool,
    ):
        for made in [pool.submit(prepare, *case) for case in cases]:
            made.exception(timeout=90)  # errors of a case are recorded when the case runs


def _prepare(name: str, world: int, dtype: str, schedule: str, parts: tuple[int, ...]) -> None:
    place, program = gpu(), operators()[name]
    given = operands(place, program, parts, dtype=getattr(torch, dtype))
    place.world(world).run(lambda group: given.call(program.prepare, group, schedule=schedule))


def _result(
    place: Place, report: Report, case: Case, calls: int = 2, kinds: Sequence[bool] = (True, False)
) -> None:
    program, world, dtype, schedule, parts = case
    shape = f"M={list(parts)},N={place.sizes['N']},K={place.sizes['K']}"
    about = {"op": program.name, "dtype": dtype, "world": world, "schedule": schedule, "shape": shape}
    with report.case("result", **about) as found:
        ranks = place.world(world)
        found |= {"calls": calls, "of": "whole and random numbers" if len(kinds) > 1 else "whole numbers"}
        for whole in kinds:
            how: dict[str, Any] = {"dtype": getattr(torch, dtype), "whole": whole}
            sets = [operands(place, program, parts, seed, **how) for seed in range(calls)]
            outs = ranks.run(lambda group, sets=sets: [i.call(program, group, schedule=schedule) for i in sets])
            verdict = judged(sets, outs, f" of {'whole' if whole else 'random'} numbers")
            found |= {k: v for k, v in verdict.items() if v is not None}
            if not verdict["ok"]:
                return


def judged(
    sets: Sequence[Operands], by_rank: Sequence[Sequence[Any]], numbers: str = "", **more: Any
) -> dict[str, Any]:
    """Returns the verdict on calls in a row: of the first wrong call, with an error, or of the last call. `sets`: the
    operands of each call; `by_rank`: for each rank the results of its calls; `more`: for `judge`."""
    found: dict[str, Any] = {}
    for call, (given, results) in enumerate(zip(sets, zip(*by_rank, strict=True), strict=True)):
        found = given.judge(results, **more)
        if not found["ok"]:
            return found | {"error": f"call {call}{numbers} is wrong"}
    return found


def graphs(place: Place, report: Report) -> None:
    """Captures two calls, and replays them with changing inputs."""
    for world in WORLDS if place.on_gpu else WORLDS[:1]:
        for schedule in SCHEDULES:
            about: dict[str, Any] = {"op": "all_gather_matmul", "dtype": "bfloat16", "world": world}
            about["schedule"] = schedule
            if by_engine(schedule) and not place.probed.allows("engines_in_graphs"):
                report.add("graph", ok=None, error=place.probed.why_not("engines_in_graphs"), **about)
                continue
            with report.case("graph replayed with changing inputs", **about) as found:
                parts = even_parts(place.sizes["M"], world)
                sets = [operands(place, all_gather_matmul, parts, seed) for seed in range(SETS)]
                kept = place.world(world).run(lambda g, i=sets, s=schedule: replayed(place, g, i, s, calls=2))
                found |= judged_replays(sets, kept)


def replayed(
    place: Place, group: Any, sets: Sequence[Operands], schedule: str, calls: int
) -> list[list[list[torch.Tensor]]]:
    """Captures so many calls with the first inputs, and replays them with each of the other inputs in their memory.
    Returns the results of every replay: those of each call."""
    live, *others = sets
    live.call(all_gather_matmul.prepare, group, schedule=schedule)
    with place.capture(group) as graph:
        outs = [live.call(all_gather_matmul, group, schedule=schedule) for _ in range(calls)]
    kept = []
    for k in range(REPLAYS if place.on_gpu else DRY_REPLAYS):
        live.overwrite(group.rank, others[k % len(others)])
        for out in (y for of_call in outs for y in of_call):
            out.fill_(POISON)
        group.replay(graph)
        settle(group)
        kept.append([[y.clone() for y in of_call] for of_call in outs])
    group.synchronize()
    return kept


def judged_replays(
    sets: Sequence[Operands], by_rank: Sequence[list[list[list[torch.Tensor]]]], **more: Any
) -> dict[str, Any]:
    """Returns the verdict on what `replayed` returned for each rank; `more`: for `judge`."""
    _, *others = sets
    for k, replay in enumerate(zip(*by_rank, strict=True)):
        for call, results in enumerate(zip(*replay, strict=True)):
            verdict = others[k % len(others)].judge(results, **more)
            if not verdict["ok"]:
                return verdict | {"error": f"replay {k}, call {call} is wrong"}
    return {"exact": True, "repeats": len(by_rank[0])}
