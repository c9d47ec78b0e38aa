"""A pool of processes, one a rank of a `torch.distributed` group, that run functions of test modules together."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from tests import collector

PATIENCE = 120
"""Seconds until a pool that gives no answer is given up. No test waits for it to pass."""
IMPORTED = [
    "torch.distributed", "triton.runtime.interpreter", "tilelink.ops.programs", "tilelink.plans", "tilelink.nn",
    "torch._dynamo", "torch.testing._internal.optests",
]  # fmt: skip
"""What processes are forked with. The first call of a custom operator imports torch._dynamo, which takes seconds."""
SMALL = {"heap_bytes": 256 << 10, "signal_bytes": 4 << 10, "sms": 20}
"""Options of a lane that is made quickly."""


@dataclass(frozen=True)
class Failure:
    """What a rank raised."""

    kind: str
    text: str
    trace: str


def fork_server() -> Any:
    """The context of processes that are forked from one that has imported what takes long. A process has one such
    server, which the first to need it starts: tests that make processes in other ways call this before."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    forkserver.ensure_running()
    return context


class Pool:
    """`world` processes. They are forked from a process that has imported what takes long, and has no threads."""

    def __init__(self, world: int) -> None:
        context = fork_server()
        self.world = world
        self._folder = tempfile.TemporaryDirectory()
        self._pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, world, self._folder.name, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function(*arguments)` returned on each rank, or the Failure that it raised; None from the dead."""
        for pipe in self._pipes:
            pipe.send((function, arguments))
        found: list[Any] = [None] * self.world
        open_ = dict(zip(self._pipes, range(self.world), strict=True))
        while open_:
            ready = wait(list(open_), timeout=PATIENCE)
            if not ready:
                self.close()
                raise TimeoutError(f"ranks {list(open_.values())} give no answer to {function.__name__}")
            for pipe in ready:
                rank = open_.pop(pipe)
                try:
                    found[rank] = pipe.recv()
                except EOFError:
                    self.processes[rank].join()
        return found

    def results(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function(*arguments)` returned on each rank. Raises AssertionError for what a rank raised."""
        found = self.run(function, *arguments)
        for rank, outcome in enumerate(found):
            assert not isinstance(outcome, Failure), f"rank {rank}: {outcome.trace}"
        return found

    def failures(self, function: Callable[..., Any], *arguments: Any) -> list[Failure]:
        """What `function(*arguments)` raised, which has to be something on each rank."""
        found = self.run(function, *arguments)
        assert all(isinstance(f, Failure) for f in found), found
        return found

    def close(self) -> None:
        """Ends the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(5)
            process.kill()
            process.join()
        self._folder.cleanup()


def members(*ranks: int) -> Any:
    """The group of these ranks, made once. All ranks of the pool call this alike."""
    if ranks not in _groups:
        _groups[ranks] = dist.new_group(list(ranks))
    return _groups[ranks]


_groups: dict[Sequence[int], Any] = {}


def _serve(rank: int, world: int, folder: str, pipe: Connection) -> None:
    """The life of a process: ends when the pipe is closed."""
    torch.set_num_threads(1)
    collector.calm()
    os.environ["TILELINK_CACHE"] = f"{folder}/kernels"
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    while True:
        try:
            function, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = function(*arguments)
        except Exception as e:
            answer = Failure(type(e).__name__, str(e), traceback.format_exc())
        pipe.send(answer)
