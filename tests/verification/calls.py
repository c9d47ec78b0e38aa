"""Calls of kernels whose parameters say by their names what they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tilelink.emulator.kernel_world import KernelRank, KernelWorld, Symmetric
from tilelink.errors import TileLinkError

MEMORY: dict[str, Callable[[KernelWorld], Symmetric]] = {
    "data": lambda world: world.symmetric("data", (64,), torch.int32),
    "source": lambda world: world.symmetric("source", (16,), torch.int32),
    "reduced": lambda world: world.symmetric("reduced", (16,), torch.int32),
    "sums": lambda world: world.symmetric("sums", (16,)),
    "ready": lambda world: world.signals("ready", 8),
    "taken": lambda world: world.signals("taken"),
    "words": lambda world: world.signals("words", world.world),
    "remote": lambda world: world.symmetric("remote", (4,), torch.int32),
    "remote_long": lambda world: world.symmetric("remote", (4,), torch.int64),
    "buffer": lambda world: world.symmetric("buffer", (4,), torch.int32),
    "flag": lambda world: world.signals("flag"),
}
"""Symmetric memory, by the name of the parameter that takes it."""
OWN = {"remote", "remote_long", "buffer", "flag"}
"""Parameters that take the address of a rank's own, which names that of all; others take the table of addresses."""
ALL = "_of_all"
"""At the end of a parameter's name: the table of addresses, of those, too."""


class OtherResultError(TileLinkError):
    """A call does not give what the one before gave."""


@dataclass(frozen=True)
class Calls:
    """A kernel that every rank launches `calls` times. Its parameters are symmetric memory, `out` (anew for each call),
    `runs` (a counter on the device), `rank`, `call`, `WORLD`, and what is in `constants`, which may depend on rank and
    call. Ranks that are `absent` do not launch it. `repeats`: all calls have to give the same."""

    kernel: Any
    calls: int = 1
    grid: int = 1
    absent: tuple[int, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    repeats: bool = False

    def __call__(self, world: KernelWorld) -> None:
        """Runs all ranks. Raises OtherResultError, and what the world finds."""
        names = list(self.kernel.signature.parameters)
        used = {name.removesuffix(ALL) for name in names}
        memory = {name: make(world) for name, make in MEMORY.items() if name in used}

        def on_rank(rank: KernelRank) -> list[torch.Tensor]:
            runs, outs = torch.zeros(1, dtype=torch.int32), []
            for call in range(0 if rank.rank in self.absent else self.calls):
                outs.append(torch.zeros(64, dtype=torch.float32 if "sums" in names else torch.int32))
                own = {name: m[rank.rank] if name in OWN else m.table for name, m in memory.items()}
                tables = {name + ALL: m.table for name, m in memory.items()}
                values = own | tables | dict(out=outs[-1], runs=runs, rank=rank.rank, call=call, WORLD=world.world)
                for name, value in self.constants.items():
                    values[name] = value(rank.rank, call) if callable(value) else value
                rank.launch(self.kernel, self.grid, **{name: values[name] for name in names})
            return outs

        results = world.run(on_rank)
        if self.repeats and any(not torch.equal(out, outs[0]) for outs in results for out in outs):
            raise OtherResultError("two calls with the same arguments gave other results")
