"""Another library's kernel beside ours, such as a collective. Each block on each rank holds an SM until all blocks of
all ranks have come. (Blocks of NCCL wait only for blocks of their own channel; other libraries have barriers of whole
grids.)"""

from __future__ import annotations

from functools import partial

import torch

from tilelink.emulator import engine
from tilelink.emulator.accesses import Accesses
from tilelink.emulator.execution import Execution
from tilelink.emulator.memory import Region

NAME = "another kernel"


class Beside:
    """`blocks` of another kernel on each of `world` ranks."""

    def __init__(self, world: int, blocks: int) -> None:
        self.world, self.blocks = world, blocks
        self.words = torch.zeros(world, world, blocks, dtype=torch.int32)  # [rank, peer, block]: 1 once it has come

    def launch(self, execution: Execution, rank: int) -> None:
        """Launches the blocks of a rank, each on its own stream, so that they wait for nothing but SMs."""
        regions = [Region(f"words of {NAME}", r, self.words[r], "signal") for r in range(self.world)]
        for block in range(self.blocks):
            work = partial(self._block, rank, block)
            execution.launch(work, 1, {}, regions, rank, (NAME, block), NAME)

    def _block(self, rank: int, block: int, memory: Accesses) -> None:
        for peer in range(self.world):
            engine.signal(self.words[peer, rank, block], 1, memory)
        for word in self.words[rank].flatten():
            engine.wait(word, 1, memory)
