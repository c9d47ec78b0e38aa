"""Symmetric heaps, and the gather-matmul that most tests run on them."""

from dataclasses import dataclass, field

import torch

from bench.check import relative_rms
from tests.programs import kernels
from tilelink.emulator import Execution, Region, interpreted


class Heap:
    """One block of bytes per rank, with views of it that have the same place on all ranks."""

    def __init__(self, world: int, size: int) -> None:
        self.world = world
        self.blocks = [torch.zeros(size, dtype=torch.uint8) for _ in range(world)]

    def view(self, name: str, offset: int, shape: tuple[int, ...], dtype: torch.dtype, kind: str = "data"):
        """Regions of all ranks and the table of their addresses, itself with a region."""
        size = dtype.itemsize * torch.Size(shape).numel()
        regions = [
            Region(name, rank, block[offset : offset + size].view(dtype).view(shape), kind)
            for rank, block in enumerate(self.blocks)
        ]
        return regions, table(name, regions)


def table(name: str, regions: list[Region]) -> Region:
    """The addresses of regions, as kernels take them."""
    return Region(f"{name} table", 0, torch.tensor([region.base for region in regions]), "control")


@dataclass
class GatherMatmul:
    """Operands, heap and results of a gather-matmul."""

    world: int = 4
    M: int = 64
    N: int = 32
    K: int = 32
    tile: tuple[int, int, int] = (16, 16, 16)
    dtype: torch.dtype = torch.float32
    fault: str = ""
    results: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        rows = self.M // self.world
        self.a = [torch.randn(rows, self.K, generator=generator).to(self.dtype) for _ in range(self.world)]
        self.b = [torch.randn(self.K, self.N, generator=generator).to(self.dtype) for _ in range(self.world)]
        self.clear()

    def clear(self) -> None:
        """A fresh heap and results."""
        size = self.M * self.K * self.dtype.itemsize
        self.heap = Heap(self.world, size + 4 * self.M)
        self.gathered, self.gathered_table = self.heap.view("gathered", 0, (self.M, self.K), self.dtype)
        self.signals, self.signal_table = self.heap.view(
            "signals", size, (self.M // self.tile[0],), torch.int32, "signal"
        )
        self.results = [torch.zeros(self.M, self.N, dtype=self.dtype) for _ in range(self.world)]

    def launch(self, execution: Execution, rank: int, epoch: int = 1) -> None:
        """To be called by the host of a rank."""
        BM, BN, BK = self.tile
        a, b, c = self.a[rank], self.b[rank], self.results[rank]
        execution.launch(
            interpreted(kernels.gather_matmul),
            self.M // self.world // BM + (self.M // BM) * (self.N // BN),
            dict(
                a_ptr=a,
                b_ptr=b,
                c_ptr=c,
                gathered_ptrs=self.gathered_table.tensor,
                signal_ptrs=self.signal_table.tensor,
                M=self.M,
                N=self.N,
                K=self.K,
                rank=rank,
                epoch=epoch,
                WORLD=self.world,
                BM=BM,
                BN=BN,
                BK=BK,
                FAULT=self.fault,
            ),
            [
                Region("a", rank, a),
                Region("b", rank, b),
                Region("c", rank, c),
                *self.gathered,
                *self.signals,
                self.gathered_table,
                self.signal_table,
            ],
            rank,
        )

    def run(self, execution: Execution) -> None:
        """One launch on every rank."""
        self.clear()
        execution.run(lambda rank: self.launch(execution, rank))

    def error(self) -> float:
        """The largest relative RMS of a rank's result against float64."""
        a = torch.cat(self.a).double()
        return relative_rms(self.results, [a @ b.double() for b in self.b])
