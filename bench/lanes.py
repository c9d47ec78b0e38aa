"""Random lanes: a few calls of the library's programs, one after the other on every rank, all drawn from one seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.check import LIMITS
from bench.gpu.place import Place
from bench.operands import LAYOUTS, Operands, optional, takes_lists
from bench.references import REFERENCES
from tilelink.frontend.schedule import CopyEngine, Schedule, SMs
from tilelink.kernels.all_gather_split_matmul import SPLITS, all_gather_split_matmul
from tilelink.programs.fitting import takes
from tilelink.programs.program import Program

WORLDS = (1, 2, 3, 4, 8)
ROWS, SIZES, TILES = (0, 0, 1, 7, 15, 16, 17, 33), (1, 7, 15, 16, 17, 33, 40), (16, 32)
"""Rows of a rank, other dimensions, and tile lengths; most tensors have several of these small tiles, and a rest."""
CALLS, MEMBERS, SLOTS, WORKERS = 3, 3, 3, 3
"""The most calls of a lane, members of a list, slots, and workers of a role with a count."""
ENOUGH = 128
"""With fewer rows times columns than this, numbers are whole, because an RMS would say little."""
HEAP, SIGNALS = 16 << 20, 64 << 10


@dataclass(frozen=True)
class Call:
    """A call of all ranks. `name`: of the schedule; `schedule`: in small tiles; the rest is as in `Operands`."""

    program: Program
    name: str
    schedule: Schedule
    parts: tuple[int, ...]
    sizes: tuple[tuple[str, int | tuple[int, ...]], ...]
    dtype: str
    whole: bool
    asked: tuple[str, ...]
    layout: str
    poisoned: bool
    slot: int | None
    seed: int

    def operands(self, place: torch.device) -> Operands:
        return Operands(
            self.program, self.parts, dict(self.sizes), place, dtype=getattr(torch, self.dtype), whole=self.whole,
            asked=self.asked, layout=self.layout, seed=self.seed,
        )  # fmt: skip

    def __str__(self) -> str:
        sizes = [("M", self.parts), *self.sizes]
        shape = ",".join(f"{d}={'+'.join(map(str, n)) if isinstance(n, tuple) else n}" for d, n in sizes)
        tiles = {r: "x".join(str(n or "whole") for n in s.tile) for r, s in self.schedule.tiled.items()}
        said = [f"{role} {tile}" for role, tile in tiles.items()]
        said += [f"with {', '.join(self.asked)}"] * bool(self.asked) + [f"by {self.layout}"]
        numbers = "whole" if self.whole else "random"
        return f"{self.program.name} {self.name} {self.dtype} {shape} ({', '.join(said)}; {numbers} numbers)"


@dataclass(frozen=True)
class Lane:
    """Calls one after the other. `policy`: who runs next, on CPU ranks."""

    seed: int
    world: int
    slots: int
    policy: str
    calls: tuple[Call, ...]

    def wrong(self, place: Place) -> str:
        """Makes the calls without waiting in between. Returns what is wrong with the first wrong call, or "". Raises
        what the calls raise."""
        by = {} if place.on_gpu else {"seed": self.seed, "policy": self.policy}
        ranks = place.world(self.world, heap_bytes=HEAP, signal_bytes=SIGNALS, slots=self.slots, **by)
        sets = [call.operands(place.place) for call in self.calls]
        made = [(c, o, o.fitted(c.schedule)) for c, o in zip(self.calls, sets, strict=True)]
        outs = ranks.run(
            lambda g: [o.call(c.program, g, poisoned=c.poisoned, schedule=s, slot=c.slot) for c, o, s in made]
        )
        for k, (call, operands) in enumerate(zip(self.calls, sets, strict=True)):
            verdict = operands.judge([of_rank[k] for of_rank in outs])
            if not verdict["ok"]:
                return f"call {k} is wrong, relative RMS {verdict['rel_rms']}: {call}"
        return ""

    def __str__(self) -> str:
        calls = "; then ".join(map(str, self.calls))
        return f"{self.world} ranks, {self.slots} slots, {self.policy}: {calls}"


def lane(seed: int, programs: Sequence[Program] = tuple(REFERENCES)) -> Lane:
    """Returns the lane of a seed."""
    dice = random.Random(seed)
    world, slots = world_of(seed), dice.randint(1, SLOTS)
    calls = tuple(_call(dice, dice.choice(programs), world, slots) for _ in range(dice.randint(1, CALLS)))
    return Lane(seed, world, slots, dice.choice(["random", "pct"]), calls)


def world_of(seed: int) -> int:
    """Returns how many ranks the lane of a seed has."""
    return random.Random(f"world of {seed}").choice(WORLDS)


def _call(dice: random.Random, program: Program, world: int, slots: int) -> Call:
    name = dice.choice(list(program.schedules))
    lists = takes_lists(program)
    n = tuple(dice.choice(SIZES) for _ in range(dice.randint(1, MEMBERS))) if lists else dice.choice(SIZES)
    depths = [k for k in SIZES if program is not all_gather_split_matmul or k % SPLITS == 0]
    sizes, parts = (("N", n), ("K", dice.choice(depths))), _parts(dice, world)
    return Call(
        program, name, _schedule(dice, program.schedules[name]), parts, sizes,
        dtype=dice.choice(list(LIMITS)),
        whole=dice.random() < 0.5 or sum(parts) * min(n if isinstance(n, tuple) else (n,)) < ENOUGH,
        asked=tuple(p for p in optional(program) if dice.random() < 0.5 and takes(program, name, frozenset([p]))),
        layout=dice.choice(LAYOUTS),
        poisoned=dice.random() < 0.5,
        slot=dice.choice([None, None, dice.randrange(slots)]),
        seed=dice.randrange(1 << 16),
    )  # fmt: skip


def _parts(dice: random.Random, world: int) -> tuple[int, ...]:
    """Draws the rows of each rank: the same number on all, different numbers, or one row on one rank only."""
    match dice.choice(["even", "uneven", "uneven", "one row"]):
        case "even":
            return (dice.choice(ROWS),) * world
        case "uneven":
            return tuple(dice.choice(ROWS) for _ in range(world))
    one = dice.randrange(world)
    return tuple(int(rank == one) for rank in range(world))


def _schedule(dice: random.Random, schedule: Schedule) -> Schedule:
    """Returns a schedule in small tiles. Steps are no longer than a tile's rows: the ring's steps go along rows. An
    engine with own="stored" has the longest tiles, since one of its tiles covers those of the role that makes them."""
    changes: dict[str, dict[str, Any]] = {}
    for role, resource in schedule.tiled.items():
        covers = isinstance(resource, CopyEngine) and resource.own == "stored"
        first = max(dice.choice(TILES), max(TILES) if covers else 0)
        sizes = [first, dice.choice(TILES), dice.choice([t for t in TILES if t <= first])]
        sizes[2:2] = (dice.choice(TILES) for _ in resource.tile[3:])
        tile = tuple(n and min(n, size) for n, size in zip(resource.tile, sizes, strict=False))
        count = {"count": dice.randint(1, WORKERS)} if isinstance(resource, SMs) and resource.count else {}
        changes[role] = {"tile": tile, **count}
    return schedule.changed(**changes)
