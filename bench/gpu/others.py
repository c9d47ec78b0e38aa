"""Are the other programs right? Every schedule of each program that neither `results` nor `sums` runs, or in the form
that they do not: backward, gated, of two weights with what is gathered kept, collectives alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from bench.check import LIMITS, relative_rms
from bench.gpu.place import Place, gpu
from bench.gpu.report import Report
from bench.gpu.right import POISON, compile_ahead
from tilelink.frontend.program import Program
from tilelink.kernels import operators
from tilelink.kernels.all_gather import all_gather
from tilelink.kernels.all_gather_gated_matmul import all_gather_gated_matmul
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.kernels.all_gather_matmul_backward import all_gather_matmul_backward
from tilelink.kernels.all_reduce import all_reduce
from tilelink.kernels.matmul import matmul
from tilelink.kernels.matmul_reduce_scatter_backward import matmul_reduce_scatter_backward
from tilelink.kernels.reduce_scatter import reduce_scatter
from tilelink.language import Each

WORLD, DTYPE, CALLS, MEMBERS = 2, torch.bfloat16, 2, 2
Rank = Mapping[str, Any]
"""What a rank gives: tensors by parameter, or lists of them."""
Results = list[list[torch.Tensor]]
"""By rank, in the order in which the program returns them."""


def _together(ranks: Sequence[Rank], name: str) -> torch.Tensor:
    return torch.cat([r[name] for r in ranks])


def _gather(ranks: Sequence[Rank], parts: Sequence[int]) -> Results:
    return [[_together(ranks, "x")] for _ in ranks]


def _kept(ranks: Sequence[Rank], parts: Sequence[int]) -> Results:
    full = _together(ranks, "x")
    return [[*(full @ w for w in r["weight"]), full] for r in ranks]


def _gated(ranks: Sequence[Rank], parts: Sequence[int]) -> Results:
    full = _together(ranks, "x")
    return [[torch.nn.functional.silu(full @ r["gate"]) * (full @ r["up"])] for r in ranks]


def _gather_backward(ranks: Sequence[Rank], parts: Sequence[int]) -> Results:
    full = _together(ranks, "x")
    dx = torch.stack([d @ w.T for r in ranks for d, w in zip(r["dy"], r["weight"], strict=True)]).sum(0)
    of_weights = [[*(full.T @ d for d in r["dy"]), *(d.sum(0) for d in r["dy"])] for r in ranks]
    return [[mine, *more] for mine, more in zip(dx.split(list(parts)), of_weights, strict=True)]


def _scatter_backward(ranks: Sequence[Rank], parts: Sequence[int]) -> Results:
    full = _together(ranks, "dy")
    return [[full @ r["weight"].T, r["x"].T @ full, full.sum(0)] for r in ranks]


def _scatter(ranks: Sequence[Rank], parts: Sequence[int]) -> Results:
    return [[mine] for mine in torch.stack([r["x"] for r in ranks]).sum(0).split(list(parts))]


def _reduce(ranks: Sequence[Rank], parts: Sequence[int]) -> Results:
    return [[torch.stack([r["x"] for r in ranks]).sum(0)] for _ in ranks]


def _matmul(ranks: Sequence[Rank], parts: Sequence[int]) -> Results:
    return [[r["x"] @ r["weight"]] for r in ranks]


RIGHT: dict[Program, Callable[[Sequence[Rank], Sequence[int]], Results]] = {
    all_gather_matmul: _kept, all_gather_gated_matmul: _gated, all_gather_matmul_backward: _gather_backward,
    matmul_reduce_scatter_backward: _scatter_backward, all_gather: _gather, reduce_scatter: _scatter,
    all_reduce: _reduce, matmul: _matmul,
}  # fmt: skip
"""The programs, and what is right of each, from what all ranks give, in float64."""
ROUNDED = (all_gather_gated_matmul,)
"""Of whole numbers these don't make whole ones: held to the limit of the relative RMS instead."""


class Inputs:
    """Whole numbers of all ranks, so small that sums are exact, in parts that are not even; in lists, two members of
    unequal widths. Optional inputs are left out, optional outputs asked for."""

    def __init__(self, place: Place, program: Program, seed: int = 0) -> None:
        self.program, self.place, self.parts = program, place.place, place.parts[WORLD]
        lists = any(isinstance(p, Each) for p in program.declared.values())
        self.variant = program.of(MEMBERS) if lists else program
        recorded = self.variant.recorded(self.variant.optional - self.variant.on_demand).tensors
        self.tensors = {t.name: t for t in recorded if t.kind != "buffer"}
        n = place.sizes["N"]
        self.sizes = {"M": sum(self.parts), "K": place.sizes["K"], "N": n, "N_0": n, "N_1": n // 2}
        self.random = torch.Generator().manual_seed(seed)
        self.ranks = [self._given(rank, "input") for rank in range(WORLD)]
        self.right = RIGHT[program]([_each(_double, given) for given in self.ranks], self.parts)

    def call(self, do: Callable[..., Any], group: Any, schedule: str) -> list[torch.Tensor]:
        """Lets the program do it on a rank; all that it returns."""
        cut = any(t.sharded is not None for t in self.tensors.values())
        parts = {"parts": {"M": self.parts}} if cut else {}
        outs = self._given(group.rank, "output")
        given = self.ranks[group.rank] | {n: t for n, t in outs.items() if n in self.program.on_demand}
        given = _each(lambda t: t.to(self.place), given)
        return _flat(do(**given, schedule=schedule, group=group, **parts))

    def judge(self, results: Results) -> dict[str, Any]:
        """What a record says of the results of all ranks."""
        pairs = [(y.cpu(), e) for mine, right in zip(results, self.right, strict=True)
                 for y, e in zip(mine, right, strict=True)]  # fmt: skip
        rms = max(relative_rms([y], [e]) for y, e in pairs)
        whole = self.program not in ROUNDED
        exact = all(torch.equal(y, e.to(DTYPE)) for y, e in pairs) if whole else None
        ok = rms <= LIMITS["bfloat16"] and exact is not False
        return {"ok": ok, "rel_rms": None if rms == float("inf") else rms, "exact": exact}

    def _given(self, rank: int, kind: str) -> dict[str, Any]:
        """A rank's inputs, or outputs, by parameter."""
        found: dict[str, Any] = {}
        for parameter, members in self.variant.flattened.items():
            made = [self._tensor(n, rank) for n, _ in members if n in self.tensors and self.tensors[n].kind == kind]
            if made:
                found[parameter] = made if isinstance(self.program.declared[parameter], Each) else made[0]
        return found

    def _tensor(self, name: str, rank: int) -> torch.Tensor:
        word = self.tensors[name]
        shape = [self.parts[rank] if k == word.sharded else self.sizes[d] for k, d in enumerate(word.dims)]
        if word.kind == "output":
            return torch.full(shape, POISON, dtype=DTYPE)
        return torch.randint(-1, 2, shape, generator=self.random).to(DTYPE)


def _each(change: Callable[[torch.Tensor], torch.Tensor], given: Rank) -> dict[str, Any]:
    return {n: [change(t) for t in v] if isinstance(v, list) else change(v) for n, v in given.items()}


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double()


def _flat(results: Any) -> list[torch.Tensor]:
    """The outputs of a call, of which there may be lists."""
    if isinstance(results, torch.Tensor):
        return [results]
    return [t for r in results or () for t in _flat(r)]


def cases() -> list[tuple[str, str]]:
    """Programs and schedules, by name."""
    return [(program.name, schedule) for program in RIGHT for schedule in program.schedules]


def others(place: Place, report: Report) -> None:
    """Two calls in a row of different inputs, on two ranks, in every case."""
    compile_ahead(place, report, prepare, cases())
    for name, schedule in cases():
        program, (n, k) = operators()[name], (place.sizes[d] for d in "NK")
        about = {"dtype": "bfloat16", "world": WORLD, "shape": f"M={list(place.parts[WORLD])},N={n},K={k}"}
        with report.case("result", op=name, schedule=schedule, **about) as found:
            sets = [Inputs(place, program, seed) for seed in range(CALLS)]
            outs = place.world(WORLD).run(lambda g, i=sets, p=program, s=schedule: [x.call(p, g, s) for x in i])
            for call, inputs in enumerate(sets):
                found |= {"calls": CALLS, **inputs.judge([of_rank[call] for of_rank in outs])}
                if not found["ok"]:
                    found["error"] = f"call {call} is wrong"
                    break


def prepare(name: str, schedule: str) -> None:
    """Compiles a case on the GPU."""
    place, program = gpu(), operators()[name]
    inputs = Inputs(place, program)
    place.world(WORLD).run(lambda group: inputs.call(program.prepare, group, schedule))
