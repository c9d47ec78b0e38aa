"""The tests for a GPU, on a stand-in: that they ask what torch and the runtime allow is known before they meet one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.parameters import first_of
from tests.runtime import test_on_gpu as gpu
from tests.runtime.cuda_stand_in import StandIn, virtual_world
from tilelink.runtime.cuda.virtual_world import VirtualGroup, VirtualWorld

REPLAYS = 3


class Graph:
    """A graph as torch's is: it takes one capture in its life."""

    def __init__(self) -> None:
        self.captured: Any = None

    def replay(self) -> None:
        self.captured.replay()


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    """The tests for a GPU have stand-ins from here on."""
    made: list[StandIn] = []

    def world(n: int, **options: Any) -> VirtualWorld:
        made.append(StandIn(sms=48))
        return virtual_world(n, made[-1], **options)

    @contextmanager
    def capture(graph: Graph, stream: Any) -> Iterator[None]:
        if graph.captured is not None:
            raise RuntimeError("This CUDAGraph instance already owns a captured graph.")
        with made[-1].capture() as graph.captured:
            yield

    def replay(group: VirtualGroup, graph: Graph) -> None:
        replayed(group, graph)
        group.synchronize()  # a stand-in has no order behind which the next operation of torch would come

    replayed = VirtualGroup.replay
    monkeypatch.setattr(VirtualGroup, "replay", replay)
    monkeypatch.setattr(gpu, "VirtualWorld", world)
    monkeypatch.setattr(gpu, "REPLAYS", REPLAYS)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    return made


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize("schedule", first_of(["push", "engine", "pull", "multicast"], 2))
def test_results(schedule: str) -> None:
    gpu.test_results(2, schedule)


@pytest.mark.usefixtures("devices")
def test_graphs() -> None:
    gpu.test_a_graph_and_what_may_not_be_captured()


@pytest.mark.usefixtures("devices")
def test_a_graph_that_is_used_again_is_refused() -> None:
    graph = Graph()
    gpu.VirtualWorld(1)
    with torch.cuda.graph(graph, stream=None):  # type: ignore[arg-type]
        pass
    with pytest.raises(RuntimeError, match="already owns"), torch.cuda.graph(graph, stream=None):  # type: ignore[arg-type]
        pass


@pytest.mark.usefixtures("devices")
def test_a_rank_that_does_not_call() -> None:
    gpu.test_a_rank_that_does_not_call()
