"""Another library's kernel beside ours, such as a collective: blocks of every rank that wait for all blocks of all
ranks, each of which holds an SM until they have come. (Blocks of NCCL wait for those of their own channel alone; other
libraries have barriers of whole grids.)"""

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
        self.words = torch.zeros(world, world, blocks, dtype=torch.int32)  # of a rank, by who has come

    def launch(self, execution: Execution, rank: int) -> None:
        """Launches the blocks of a rank, each on a stream of its own: nothing but SMs is in their way."""
        regions = [Region(f"words of {NAME}", r, self.words[r], "signal") for r in range(self.world)]
        for block in range(self.blocks):
            work = partial(self._block, rank, block)
            execution.launch(work, 1, {}, regions, rank, (NAME, block), NAME)

    def _block(self, rank: int, block: int, memory: Accesses) -> None:
        for peer in range(self.world):
            engine.signal(self.words[peer, rank, block], 1, memory)
        for word in self.words[rank].flatten():
            engine.wait(word, 1, memory)
