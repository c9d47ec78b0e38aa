"""Timelines for tests: of an all-gather and a matmul, and of spans by hand."""

from __future__ import annotations

from typing import Literal

from tilelink.analysis.timeline import PREDICTED, Span, Timeline


def timeline(
    ranks: int = 4, workers: int = 4, chunks: int = 4, unit: str = "us", source: str = PREDICTED
) -> Timeline:
    """On each rank, worker 0 gathers for the rank after it, and the others multiply what theirs was given."""
    spans: list[Span] = []
    gathered: dict[tuple[int, int], int] = {}
    for rank in range(ranks):
        for chunk in range(chunks):
            gathered[(rank + 1) % ranks, chunk] = len(spans)
            start = 10.25 * chunk + rank
            label = f"M[{chunk * 128}:{chunk * 128 + 128}]"
            spans.append(Span(rank, 0, "gather", "tile", label, start, start + 10.25))
    for rank in range(ranks):
        for worker in range(1, workers):
            free = 0.0
            for chunk in range(chunks):
                cause = gathered[rank, chunk]
                rows = f"M[{chunk * 128}:{chunk * 128 + 128}]"
                ready = max(free, spans[cause].stop)
                label = f"{rows} N[{(worker - 1) * 256}:{worker * 256}]"
                spans.append(Span(rank, worker, "matmul", "tile", label, free, ready + 7.5))
                spans.append(Span(rank, worker, "matmul", "wait", f"full {rows}", free, ready, cause))
                free = ready + 7.5
    return Timeline("all-gather + matmul", unit, source, tuple(spans))


TILE = Span(0, 0, "matmul", "tile", "M[0:128]", 0.0, 10.0)
WAIT = Span(0, 0, "matmul", "wait", "full M[0:128]", 1.0, 4.0)


def of(*spans: Span) -> Timeline:
    return Timeline("spans", "us", PREDICTED, spans)


def span(
    rank: int, worker: int, role: str, start: float, stop: float,
    kind: Literal["tile", "wait"] = "tile", cause: int | None = None,
) -> Span:  # fmt: skip
    return Span(rank, worker, role, kind, f"{role} {start:g}", start, stop, cause)


GATHERED = of(
    span(1, 0, "gather", 0, 4),  # 0
    span(1, 0, "gather", 4, 9),  # 1
    span(0, 0, "matmul", 1, 7),  # 2: does not wait
    span(0, 0, "matmul", 7, 15),  # 3: waits for 1
    span(0, 0, "matmul", 7, 10, "wait", 1),
    span(0, 1, "matmul", 2, 14),  # 5: waits for 0
    span(0, 1, "matmul", 2, 5, "wait", 0),
)
