"""Recorded calls that stand for a CUDA graph on CPU ranks, so that steps with graphs run there, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tilelink.runtime.launch import Run


class RecordedCalls:
    """Calls of a rank that were recorded, not launched. Each `replay` launches them with their tensors and slots, and
    new run numbers, as the device numbers runs of a graph."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.runs: list[Run] = []

    def replay(self) -> None:
        group = self.group
        for run in self.runs:
            run.number, group.runs = group.runs, group.runs + 1
            group.launch(run)


@contextmanager
def recorded(group: Any) -> Iterator[RecordedCalls]:
    """A context that records the calls of a CPU rank. It yields an object for `group.replay`, in place of a graph."""
    graph, runs = RecordedCalls(group), group.runs
    group.launch, group.replay = graph.runs.append, RecordedCalls.replay
    try:
        yield graph
    finally:
        del group.launch
        group.runs = runs
