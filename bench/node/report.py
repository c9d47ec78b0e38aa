"""Findings of all ranks of a step: each rank tells rank 0, which writes one record a case. The record names a rank that
tells nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu.report import Report, spread
from bench.node.ranks import Node

FUSED, UNFUSED = "fused, ", "NCCL + cuBLAS"
"""Names of timed forms: the prefix of fused forms, before their schedule, and the unfused form."""
TIMES = "times_us"
"""The key of a case's times: by form, microseconds of its repeats, in the same order on all ranks."""


class NodeReport(Report):
    """Findings of one step on all ranks. `silent`: killed ranks, from which no finding is expected."""

    def __init__(self, path: Path, step: str, node: Node, command: str, seconds: float) -> None:
        own = path if node.rank == 0 else of_rank(path, node.rank)
        super().__init__(own, step, node.place, command, seconds)
        self.node, self.cases, self.silent = node, 0, set[int]()

    def over(self) -> str:
        """Returns why no other case is begun, or "". Rank 0 decides, so that all ranks stop at the same case."""
        self.cases += 1
        key = f"case {self.cases}"
        if self.node.rank == 0:
            self.node.told(key, super().over())
        return self.node.heard(key, 0)

    def settled(self, found: dict[str, Any]) -> dict[str, Any]:
        """Returns the merged findings of all ranks on rank 0, and this rank's findings on other ranks."""
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
    """Merges the findings of all ranks into one. It is right if all are right, else it has the error of the first wrong
    rank. It has the first message, and the largest relative RMS. Times are the longest of any rank, repeat by repeat,
    and are compared; if not `held_against`, in a dry run, they are left out."""
    first = next(iter(by_rank.values()))
    found = dict(first)
    for verdict in (False, None):
        wrong = [r for r, mine in by_rank.items() if mine.get("ok", True) is verdict]
        if wrong:
            mine = by_rank[wrong[0]]
            found |= {"ok": verdict, "error": f"rank {wrong[0]}: {mine.get('error')}", "wrong_ranks": wrong}
            found |= {"traceback": mine["traceback"]} if "traceback" in mine else {}
            break
    said = [mine["message"] for mine in by_rank.values() if "message" in mine]
    found |= {"message": said[0]} if said else {}
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
    """Returns the spread of each form, the fastest fused form, and how many times as fast as unfused it is. A form
    whose host was late has no figures, because they would show the host's time."""
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
    """Returns for each repeat the time of the slowest rank."""
    return [max(of_repeat) for of_repeat in zip(*by_rank, strict=True)]


def of_rank(path: Path, rank: int) -> Path:
    """Returns the file in which a rank other than 0 notes its current case."""
    return path.with_name(f"{path.stem}-rank-{rank}.jsonl")
