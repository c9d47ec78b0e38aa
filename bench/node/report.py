"""What the ranks of a step find: each tells rank 0, which writes one record a case. A rank that tells nothing is
named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu.report import Report, spread
from bench.node.ranks import Node

FUSED, UNFUSED = "fused, ", "NCCL + cuBLAS"
"""How forms that are timed are called: the fused ones by their schedule."""
TIMES = "times_us"
"""What a case finds under this name are microseconds of repeats, in the order in which all ranks made them, by form."""


class NodeReport(Report):
    """Findings of one step on all ranks. `silent`: ranks of which nothing is expected, since they were killed."""

    def __init__(self, path: Path, step: str, node: Node, command: str, seconds: float) -> None:
        own = path if node.rank == 0 else of_rank(path, node.rank)
        super().__init__(own, step, node.place, command, seconds)
        self.node, self.cases, self.silent = node, 0, set[int]()

    def over(self) -> str:
        """Rank 0 says whether another case is begun, so that all ranks stop at the same."""
        self.cases += 1
        key = f"case {self.cases}"
        if self.node.rank == 0:
            self.node.told(key, super().over())
        return self.node.heard(key, 0)

    def settled(self, found: dict[str, Any]) -> dict[str, Any]:
        """What all ranks found, on rank 0; what this rank found, on the others."""
        key = f"found {self.cases}"
        if self.node.rank:
            self.node.told(key, json.dumps(found, default=str))
            return found
        by_rank: dict[int, dict[str, Any]] = {0: found}
        for rank in sorted({*range(1, self.node.world)} - self.silent):
            try:
                by_rank[rank] = json.loads(self.node.heard(key, rank))
            except RuntimeError:
                by_rank[rank] = {"ok": False, "error": "it told nothing"}
        return merged(by_rank, held_against=self.place.on_gpu)

    def _write(self, what: str, ok: bool | None, kind: str, **found: Any) -> None:
        if self.node.rank == 0:
            super()._write(what, ok, kind, **found)

    def say(self, text: str) -> None:
        if self.node.rank == 0:
            super().say(text)


def merged(by_rank: dict[int, dict[str, Any]], held_against: bool = True) -> dict[str, Any]:
    """One finding of those of all ranks: right if it is on all of them, with the error of the first that is not, and
    the largest relative RMS; times are the longest of any rank, repeat by repeat, and
    are compared. Not `held_against`, in a dry run, they are left out."""
    first = next(iter(by_rank.values()))
    found = dict(first)
    for verdict in (False, None):
        wrong = [r for r, mine in by_rank.items() if mine.get("ok", True) is verdict]
        if wrong:
            mine = by_rank[wrong[0]]
            found |= {"ok": verdict, "error": f"rank {wrong[0]}: {mine.get('error')}", "wrong_ranks": wrong}
            found |= {"traceback": mine["traceback"]} if "traceback" in mine else {}
            break
    found |= {"lost": True} if any(mine.get("lost") for mine in by_rank.values()) else {}
    errors = [mine["rel_rms"] for mine in by_rank.values() if mine.get("rel_rms") is not None]
    found |= {"rel_rms": max(errors)} if errors else {}
    if not held_against:  # times of interpreted kernels say nothing
        found = {k: v for k, v in found.items() if k not in (TIMES, "late")}
    elif all(TIMES in mine for mine in by_rank.values()):
        found[TIMES] = {form: longest([mine[TIMES][form] for mine in by_rank.values()]) for form in first[TIMES]}
        found["late"] = {form: max(mine["late"][form] for mine in by_rank.values()) for form in first["late"]}
        found |= fastest(found[TIMES], found["late"])
    return found


def fastest(times: dict[str, list[float]], late: dict[str, int]) -> dict[str, Any]:
    """The spread of each form, the fastest fused one, and its ratio to the unfused one. A form whose host was late has
    no figures: they would be the host's."""
    spreads = {form: spread(us) for form, us in times.items() if us and not late[form]}
    fused = {form: s["median_us"] for form, s in spreads.items() if form.startswith(FUSED)}
    found: dict[str, Any] = {"forms": spreads}
    if fused:
        best = min(fused, key=lambda form: fused[form])
        found |= {"schedule": best.removeprefix(FUSED), **spreads[best]}
        if UNFUSED in spreads:
            found["speedup"] = round(spreads[UNFUSED]["median_us"] / fused[best], 4)
    return found


def longest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Of each repeat the time of the rank that took longest."""
    return [max(of_repeat) for of_repeat in zip(*by_rank, strict=True)]


def of_rank(path: Path, rank: int) -> Path:
    """Where a rank other than 0 says which case it is at."""
    return path.with_name(f"{path.stem}-rank-{rank}.jsonl")
