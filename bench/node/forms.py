"""What can be done in place of a fused operator, on the same tensors: the baselines of the speed of a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial as bound
from typing import Any

import torch
import torch.distributed as dist

from bench.node.report import UNFUSED

CHUNKS = 4
Form = Callable[[], torch.Tensor]


gather: Callable[..., object] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter: Callable[..., object] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""As torch calls them today, and as it did until 2.12."""


@dataclass
class Layer:
    """`gathers`: x (M / world, K) of each rank is gathered, and multiplied by weight (K, N); else x (M, K) is
    multiplied, and the sum over the ranks scattered. The weight lies as nn.Linear keeps it."""

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
        """The baselines by name. The collectives are NCCL's on GPUs, and gloo's on CPUs."""
        by_chunks = f"{CHUNKS} chunks on two streams"
        found: dict[str, Form] = {UNFUSED: self._scattered, by_chunks: self._scattered_by_chunks}
        if self.gathers:
            found = {UNFUSED: self._gathered, by_chunks: self._gathered_by_chunks}
        return found | ({"torch symmetric memory": self._symmetric} if self.on_gpu else {})

    # ---- gathered

    def _gathered(self) -> torch.Tensor:
        full = self.x.new_empty(self.world * len(self.x), self.x.shape[1])
        gather(full, self.x)
        return full @ self.weight

    def _gathered_by_chunks(self) -> torch.Tensor:
        """While a chunk of every rank's rows is multiplied, the next is gathered. The result is (chunk, rows of all
        ranks, N)."""
        rows, cols = len(self.x) // CHUNKS, self.weight.shape[1]
        out = self.x.new_empty(CHUNKS, self.world * rows, cols)
        gathered = self.x.new_empty(CHUNKS, self.world * rows, self.x.shape[1])
        arrived = self._on_the_other_stream(
            lambda k: gather(gathered[k], self.x[k * rows : (k + 1) * rows])
        )
        for k in range(CHUNKS):
            arrived(k)
            torch.matmul(gathered[k], self.weight, out=out[k])
        return out

    def in_order(self, result: torch.Tensor) -> torch.Tensor:
        """A result with its rows in the order of those of the others."""
        if result.dim() == 2:
            return result
        rows = result.shape[1] // self.world
        return result.view(CHUNKS, self.world, rows, result.shape[2]).transpose(0, 1).flatten(0, 2)

    # ---- scattered

    def _scattered(self) -> torch.Tensor:
        return self._sum_of(self.x @ self.weight)

    def _sum_of(self, partial: torch.Tensor) -> torch.Tensor:
        out = partial.new_empty(len(partial) // self.world, partial.shape[1])
        scatter(out, partial)
        return out

    def _scattered_by_chunks(self) -> torch.Tensor:
        """While the sum of a chunk of every rank's rows travels, the next chunk is multiplied."""
        rows, cols = len(self.x) // self.world // CHUNKS, self.weight.shape[1]
        chunks = self.x.view(self.world, CHUNKS, rows, -1).transpose(0, 1)
        weight = self.weight.expand(self.world, *self.weight.shape)
        partial = self.x.new_empty(CHUNKS, self.world, rows, cols)
        out = self.x.new_empty(CHUNKS * rows, cols)
        for k in range(CHUNKS):
            torch.bmm(chunks[k], weight, out=partial[k])
            self._after(bound(scatter, out[k * rows : (k + 1) * rows], partial[k].flatten(0, 1)))
        self._join()
        return out

    # ---- streams

    def _on_the_other_stream(self, do: Callable[[int], object]) -> Callable[[int], None]:
        """Does all chunks there; what it returns lets this stream wait for one."""
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
        """Does it on the other stream, after what is on this one."""
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
    """torch's symmetric-memory operators, which the import of their module registers."""
    import torch.distributed._symmetric_memory

    return torch.ops.symm_mem
