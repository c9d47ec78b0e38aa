"""What a twin is: a program with a mistake that real projects shipped, the same without it, and who finds the mistake.

The mistakes are those that projects with one-sided GPU kernels had to mend (Triton-distributed, flux, DeepEP and the
like); `bug` says in a sentence what was wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch

from tilelink.errors import Site
from tilelink.runtime.cpu import DeadlockError, KernelSite, RaceError
from tilelink.runtime.kernel_world import KernelRank, KernelWorld

Tool = Literal["frontend", "check", "execution", "agreement", "gates", "repetition"]


class Found(NamedTuple):
    """What a tool found: the kind of mistake, and the lines of source that it is about."""

    tool: Tool
    kind: str
    lines: tuple[str, ...] = ()


Side = Callable[[int], list[Found]]
"""Looks at one of the two programs with every tool there is for it, under a seed."""


@dataclass(frozen=True)
class Twin:
    """`tool` finds `kind` in the faulty program; nothing is found in the mended one. `pair`: the texts of the lines of
    the racing pair, or of the wait that never ends. `every_seed`: the mistake shows in whatever order things happen."""

    name: str
    bug: str
    tool: Tool
    kind: str
    faulty: Side
    mended: Side
    pair: tuple[str, ...] = ()
    every_seed: bool = True


# ---- kernels

MEMORY: dict[str, Callable[[KernelWorld], Any]] = {
    "data": lambda world: world.symmetric("data", (64,), torch.int32).table,
    "sums": lambda world: world.symmetric("sums", (16,)).table,
    "ready": lambda world: world.signals("ready", 8).table,
    "taken": lambda world: world.signals("taken").table,
    "words": lambda world: world.signals("words", world.world).table,
}
"""Symmetric memory, by the name of the parameter that takes it."""


@dataclass(frozen=True)
class Kernel:
    """A kernel that every rank launches `calls` times. Parameters are given by their names: symmetric memory, `out`,
    `runs` (a counter on the device), `rank`, `call`, and what is in `constants`, which may depend on rank and call.
    Ranks that are `absent` do not launch it. `repeats`: all calls have to give the same."""

    kernel: Any
    world: int = 2
    calls: int = 1
    grid: int = 1
    resident: int | None = None
    absent: tuple[int, ...] = ()
    repeats: bool = False
    constants: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, seed: int) -> list[Found]:
        try:
            results = self.run(seed)
        except RaceError as e:
            return [Found("execution", "race", lines_of(race.first.site, race.second.site)) for race in e.races]
        except DeadlockError as e:
            waits = [wait for program in e.stuck for wait in program.waits]
            return [Found("execution", "deadlock", lines_of(*(wait.site for wait in waits)))]
        if self.repeats and any(not torch.equal(out, outs[0]) for outs in results for out in outs):
            return [Found("repetition", "other result")]
        return []

    def run(self, seed: int) -> list[list[torch.Tensor]]:
        """What each call of each rank left in `out`."""
        world = KernelWorld(self.world, seed=seed, resident=self.resident)
        names = list(self.kernel.signature.parameters)
        memory = {name: make(world) for name, make in MEMORY.items() if name in names}

        def on_rank(rank: KernelRank) -> list[torch.Tensor]:
            runs, outs = torch.zeros(1, dtype=torch.int32), []
            for call in range(0 if rank.rank in self.absent else self.calls):
                outs.append(torch.zeros(64, dtype=torch.float32 if "sums" in names else torch.int32))
                values = memory | dict(out=outs[-1], runs=runs, rank=rank.rank, call=call, WORLD=self.world)
                for name, value in self.constants.items():
                    values[name] = value(rank.rank, call) if callable(value) else value
                rank.launch(self.kernel, self.grid, **{name: values[name] for name in names})
            return outs

        return world.run(on_rank)


def lines_of(*sites: Site) -> tuple[str, ...]:
    """The lines of sites, with those that called them."""
    every = [line for site in sites for line in (site, *(site.callers if isinstance(site, KernelSite) else ()))]
    return tuple(dict.fromkeys(f"{line}: {line.text}" for line in every))
