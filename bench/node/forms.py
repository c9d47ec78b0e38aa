"""The baselines of a node's speed: unfused forms that compute the same as a fused operator, on the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial as bound
from typing import Any

import torch
import torch.distributed as dist

from bench.node.report import UNFUSED
from tilelink.ops.collectives import all_gather, reduce_scatter

CHUNKS = 4
Form = Callable[[], torch.Tensor]


@dataclass
class Layer:
    """A layer in all baselines. `gathers`: x (M / world, K) of each rank is gathered, and multiplied by weight (K, N);
    else x (M, K) is multiplied, and the sum over the ranks scattered. The weight has the layout of nn.Linear."""

    gathers: bool
    x: torch.Tensor
    weight: torch.Tensor
    world: int
    on_gpu: bool
    beside: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.on_gpu:
            self.beside = torch.cuda.Stream()

    def forms(self) -> dict[str, Form]:
        """Returns the baselines by name. The collectives are NCCL's on GPUs, and gloo's on CPUs."""
        by_chunks = f"{CHUNKS} chunks on two streams"
        found: dict[str, Form] = {UNFUSED: self._scattered, by_chunks: self._scattered_by_chunks}
        if self.gathers:
            found = {UNFUSED: self._gathered, by_chunks: self._gathered_by_chunks}
        return found | ({"torch symmetric memory": self._symmetric} if self.on_gpu else {})

    # ---- gathered

    def _gathered(self) -> torch.Tensor:
        full = self.x.new_empty(self.world * len(self.x), self.x.shape[1])
        all_gather(full, self.x)
        return full @ self.weight

    def _gathered_by_chunks(self) -> torch.Tensor:
        """Gathers the next chunk of every rank's rows while a chunk is multiplied. Returns (chunk, rows of all ranks,
        N)."""
        rows, cols = len(self.x) // CHUNKS, self.weight.shape[1]
        out = self.x.new_empty(CHUNKS, self.world * rows, cols)
        gathered = self.x.new_empty(CHUNKS, self.world * rows, self.x.shape[1])
        arrived = self._on_the_other_stream(
            lambda k: all_gather(gathered[k], self.x[k * rows : (k + 1) * rows])
        )
        for k in range(CHUNKS):
            arrived(k)
            torch.matmul(gathered[k], self.weight, out=out[k])
        return out

    def in_order(self, result: torch.Tensor) -> torch.Tensor:
        """Returns a result of any baseline with its rows in the usual order."""
        if result.dim() == 2:
            return result
        rows = result.shape[1] // self.world
        return result.view(CHUNKS, self.world, rows, result.shape[2]).transpose(0, 1).flatten(0, 2)

    # ---- scattered

    def _scattered(self) -> torch.Tensor:
        return self._sum_of(self.x @ self.weight)

    def _sum_of(self, partial: torch.Tensor) -> torch.Tensor:
        out = partial.new_empty(len(partial) // self.world, partial.shape[1])
        reduce_scatter(out, partial)
        return out

    def _scattered_by_chunks(self) -> torch.Tensor:
        """Multiplies the next chunk of every rank's rows while the sum of a chunk travels."""
        rows, cols = len(self.x) // self.world // CHUNKS, self.weight.shape[1]
        chunks = self.x.view(self.world, CHUNKS, rows, -1).transpose(0, 1)
        weight = self.weight.expand(self.world, *self.weight.shape)
        partial = self.x.new_empty(CHUNKS, self.world, rows, cols)
        out = self.x.new_empty(CHUNKS * rows, cols)
        for k in range(CHUNKS):
            torch.bmm(chunks[k], weight, out=partial[k])
            self._after(bound(reduce_scatter, out[k * rows : (k + 1) * rows], partial[k].flatten(0, 1)))
        self._join()
        return out

    # ---- streams

    def _on_the_other_stream(self, do: Callable[[int], object]) -> Callable[[int], None]:
        """Does all chunks on the other stream. Returns a function that lets this stream wait for a chunk."""
        if not self.on_gpu:
            for k in range(CHUNKS):
                do(k)
            return lambda k: None
        self.beside.wait_stream(torch.cuda.current_stream())
        done = []
        with torch.cuda.stream(self.beside):
            for k in range(CHUNKS):
                do(k)
                done.append(self.beside.record_event())
        return lambda k: torch.cuda.current_stream().wait_event(done[k])

    def _after(self, do: Callable[[], object]) -> None:
        """Calls `do` on the other stream, after the work on this stream."""
        if not self.on_gpu:
            do()
            return
        self.beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.beside):
            do()

    def _join(self) -> None:
        if self.on_gpu:
            torch.cuda.current_stream().wait_stream(self.beside)

    # ---- torch's own

    def _symmetric(self) -> torch.Tensor:
        assert dist.group.WORLD is not None
        name, ours = dist.group.WORLD.group_name, operators_of_torch()
        if self.gathers:
            _, (out,) = ours.fused_all_gather_matmul(self.x, [self.weight], 0, name, return_A=False)
            return torch.as_tensor(out)
        return torch.as_tensor(ours.fused_matmul_reduce_scatter(self.x, self.weight, "sum", 0, name))


def operators_of_torch() -> Any:
    """Returns torch's symmetric-memory operators; importing their module registers them."""
    import torch.distributed._symmetric_memory

    return torch.ops.symm_mem
