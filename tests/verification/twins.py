"""What a twin is: a program with a mistake that real projects shipped, the same without it, and who finds the mistake.

The mistakes are those that projects with one-sided GPU kernels had to mend (Triton-distributed, flux, DeepEP and the
like); `bug` says in a sentence what was wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from tests.verification.calls import Calls
from tilelink.errors import Site
from tilelink.runtime.cpu import DeadlockError, KernelSite, RaceError
from tilelink.runtime.kernel_world import KernelWorld

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


@dataclass(frozen=True)
class Kernel:
    """Calls of a kernel in a world. `repeats`: all calls have to give the same."""

    calls: Calls
    world: int = 2
    resident: int | None = None
    repeats: bool = False

    def __call__(self, seed: int) -> list[Found]:
        try:
            results = self.calls(KernelWorld(self.world, seed=seed, resident=self.resident))
        except RaceError as e:
            return [Found("execution", "race", lines_of(race.first.site, race.second.site)) for race in e.races]
        except DeadlockError as e:
            waits = [wait for program in e.stuck for wait in program.waits]
            return [Found("execution", "deadlock", lines_of(*(wait.site for wait in waits)))]
        if self.repeats and any(not torch.equal(out, outs[0]) for outs in results for out in outs):
            return [Found("repetition", "other result")]
        return []


def lines_of(*sites: Site) -> tuple[str, ...]:
    """The lines of sites, with those that called them."""
    every = [line for site in sites for line in (site, *(site.callers if isinstance(site, KernelSite) else ()))]
    return tuple(dict.fromkeys(f"{line}: {line.text}" for line in every))
