"""What stands for a CUDA graph on CPU ranks: the steps that capture and replay graphs run there, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tilelink.runtime.launch import Run


class RecordedCalls:
    """Calls of a rank that were recorded, not launched. Each `replay` launches them with the tensors and in the slots
    that they had; runs are numbered on, as the device numbers those of a graph."""

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
    """Records the calls that a CPU rank makes inside; `group.replay` takes what is yielded, as that of a rank on a GPU
    takes a graph."""
    graph, runs = RecordedCalls(group), group.runs
    group.launch, group.replay = graph.runs.append, RecordedCalls.replay
    try:
        yield graph
    finally:
        del group.launch
        group.runs = runs
