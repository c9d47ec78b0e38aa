"""Checks results on 1, 2 and 4 ranks: in every dtype and schedule, of uneven parts, call after call, in graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch

from bench.check import LIMIT_OF, relative_rms
from bench.gpu.place import Place, gpu
from bench.gpu.report import Report
from tilelink.frontend.schedule import CopyEngine, Schedule
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
REPLAYS, DRY_REPLAYS = 20, 3
POISON = float("nan")
SCHEDULES = tuple(all_gather_matmul.schedules)
"""The schedules of all_gather_matmul, push and pull first."""


class Inputs:
    """Inputs of all ranks of a program: small whole numbers, whose products are exact, or random numbers."""

    def __init__(
        self, place: Place, parts: Sequence[int], dtype: str, *, whole: bool, seed: int = 0,
        program: Program = all_gather_matmul,
    ) -> None:  # fmt: skip
        random = torch.Generator().manual_seed(seed)
        self.program, adds = program, program in SUMS
        most = 1 if adds else 3  # the largest whole number: partial sums in bfloat16 are exact up to 256
        self.parts, self.whole, n, k = tuple(parts), whole, place.sizes["N"], place.sizes["K"]
        self.dtype: torch.dtype = getattr(torch, dtype)

        def tensor(rows: int, cols: int) -> torch.Tensor:
            if whole:
                return torch.randint(-most, most + 1, (rows, cols), generator=random).to(self.dtype)
            return torch.randn(rows, cols, generator=random).to(self.dtype)

        x = [tensor(sum(self.parts) if adds else m, k) for m in self.parts]
        weight = [tensor(n, k).T for _ in self.parts]
        self.right = self._right(x, weight)
        self.x, self.weight = [t.to(place.place) for t in x], [t.to(place.place) for t in weight]

    def call(self, group: Any, schedule: Schedule | str, **more: Any) -> torch.Tensor:
        """Calls the program on a rank."""
        options = self.options(group, schedule)
        out: torch.Tensor = self.program(self.x[group.rank], self.weight[group.rank], **options, **more)
        return out

    def options(self, group: Any, schedule: Schedule | str) -> dict[str, Any]:
        """Returns the options of a call. If all ranks get the whole sum, a call has no parts."""
        parts = {} if self.program in SUMS and not SUMS[self.program] else {"M": self.parts}
        return {"schedule": schedule, "group": group, "parts": parts}

    def _right(self, x: list[torch.Tensor], weight: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the right results of all ranks, in float64."""
        if self.program not in SUMS:
            return [torch.cat(x).double() @ w.double() for w in weight]
        total = torch.stack([a.double() @ w.double() for a, w in zip(x, weight, strict=True)]).sum(0)
        return list(total.split(self.parts)) if SUMS[self.program] else [total] * len(x)

    def judge(self, results: Sequence[torch.Tensor]) -> dict[str, Any]:
        """Returns the verdict of a record. Whole numbers must be exact after rounding to their dtype."""
        found = [r.cpu() for r in results]
        rms = relative_rms(found, self.right)
        ok = rms <= LIMIT_OF[self.dtype]
        if self.whole:
            ok = all(torch.equal(f, r.to(self.dtype)) for f, r in zip(found, self.right, strict=True))
        return {"ok": ok, "rel_rms": None if rms == float("inf") else rms, "exact": ok if self.whole else None}


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
    inputs = Inputs(place, parts, dtype, whole=True, program=program)
    place.world(world).run(
        lambda group: program.prepare(
            inputs.x[group.rank], inputs.weight[group.rank], **inputs.options(group, schedule)
        )
    )


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
            sets = [Inputs(place, parts, dtype, whole=whole, seed=s, program=program) for s in range(calls)]
            outs = ranks.run(lambda group, sets=sets: [i.call(group, schedule) for i in sets])
            verdict = judged(sets, outs, f" of {'whole' if whole else 'random'} numbers")
            found |= {k: v for k, v in verdict.items() if v is not None}
            if not verdict["ok"]:
                return


def judged(
    sets: Sequence[Any], by_rank: Sequence[Sequence[Any]], numbers: str = "", **more: Any
) -> dict[str, Any]:
    """Returns the verdict on calls in a row: of the first wrong call, with an error, or of the last call. `sets`: the
    `Inputs` or `Operands` of each call; `by_rank`: for each rank the results of its calls; `more`: for `judge`."""
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
                _replays(place, world, schedule, found)


def _replays(place: Place, world: int, schedule: str, found: dict[str, Any]) -> None:
    parts = even_parts(place.sizes["M"], world)
    sets = [Inputs(place, parts, "bfloat16", whole=True, seed=s) for s in range(3)]
    replays = REPLAYS if place.on_gpu else DRY_REPLAYS

    def body(group: Any) -> list[torch.Tensor]:
        rank = group.rank
        x, weight = sets[0].x[rank].clone(), sets[0].weight[rank].clone()
        options: dict[str, Any] = {"schedule": schedule, "group": group, "parts": {"M": parts}}
        all_gather_matmul.prepare(x, weight, **options)
        with place.capture(group) as graph:
            outs = [all_gather_matmul(x, weight, **options) for _ in range(2)]
        kept = []
        for k in range(replays):
            x.copy_(sets[k % 3].x[rank])
            weight.copy_(sets[k % 3].weight[rank])
            for out in outs:
                out.fill_(POISON)
            group.replay(graph)
            settle(group)
            kept.append(torch.stack(outs))
        group.synchronize()
        return kept

    by_rank = place.world(world).run(body)
    for k in range(replays):
        for call in range(2):
            verdict = sets[k % 3].judge([kept[k][call] for kept in by_rank])
            if not verdict["ok"]:
                found |= {"ok": False, "error": f"replay {k}, call {call} is wrong", "rel_rms": verdict["rel_rms"]}
                return
    found |= {"exact": True, "repeats": replays}
