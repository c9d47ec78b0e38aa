"""A rank that waits, as the PTX of a bounded wait sees it: heaps, control words and a clock. A stand-in executes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from types import ModuleType
from typing import Any

import pytest

from tests.backend.ptx_machine import ExitError, Machine
from tilelink.backend.targets import polling, portable
from tilelink.backend.targets.portable import POISON, PROGRESS
from tilelink.runtime.lane import Report

WORLD, ME, RUN_NOW = 3, 1, 5
HEAP = [0x10000, 0x20000, 0x30000]
TABLE, FLAG = 0x500, 0x600
SIGNAL = HEAP[ME] + 0x1000
EVERY = 64
"""Polls until a wait looks around."""


class World:
    """Heaps of three ranks, and a clock that goes on by 1000 a look. `at`: what changes, by the number of the poll;
    `ptx`: the module with the PTX."""

    def __init__(self, word: int = SIGNAL, ptx: ModuleType = polling, **control: int) -> None:
        self.ptx = ptx
        self.memory = {h + 8 * k: 0 for h in HEAP for k in range(PROGRESS.value + WORLD)}
        self.memory |= {TABLE + 8 * r: h for r, h in enumerate(HEAP)} | {FLAG: 0, SIGNAL: 0}
        fields = {"RUN": RUN_NOW, "ENTER_NS": 10**6, "STUCK_NS": 5000, "HEAPS": TABLE, "HOST": FLAG, "RANKS": WORLD}
        for name, value in (fields | {"RANK": ME} | control).items():
            self.memory[HEAP[ME] + 8 * getattr(portable, name).value] = value
        for rank in range(WORLD):
            self.enter(rank)
        self.word, self.polls, self.clock = word, 0, 50_000
        self.at: dict[int, Callable[[], None]] = {}

    def enter(self, rank: int, run: int = RUN_NOW) -> None:
        self.memory[HEAP[ME] + 8 * (PROGRESS.value + rank)] = 2 * run + 1

    @property
    def poison(self) -> list[int]:
        return [self.memory[h + 8 * POISON.value] for h in HEAP]

    @property
    def report(self) -> Report:
        return Report.of(ME, [self.memory[HEAP[ME] + 8 * k] for k in range(PROGRESS.value)])

    def look(self) -> int:
        self.clock += 1000
        return self.clock

    def wait(
        self,
        expected: int,
        *,
        bits: int = 32,
        lanes: str = "one",
        thread: int = 0,
        ends: bool = False,
        others: int = 0,
        pair: bool = False,
        returns: bool = False,
    ) -> Machine:
        place: Mapping[str, Any] = {"%tid.x": thread, "%laneid": thread % 32, "%ctaid.x": 7}
        special = {**place, "%globaltimer": self.look}
        machine = Machine(self.memory, special, self.loaded)
        machine.others = others
        made = self.ptx.polling.fn
        text = made(bits, "sys", lanes, True, ends=False) if returns else made(bits, "sys", lanes, True, pair)
        if ends:
            with pytest.raises(ExitError):
                machine.run(text, self.word, expected, HEAP[ME])
        else:
            machine.run(text, self.word, expected, HEAP[ME])
        return machine

    def loaded(self, address: int) -> None:
        if address == self.word:
            self.polls += 1
            if self.polls in self.at:
                self.at[self.polls]()


def behaviour(ptx: ModuleType) -> Iterator[str]:
    """Yields what waits do: their memory operations, results and reports, in each case that matters to them."""
    forms = [
        {"bits": 32}, {"bits": 64}, {"bits": 64, "pair": True}, {"lanes": "all"}, {"lanes": "all", "thread": 3},
        {"thread": 3}, {"thread": 32}, {"thread": 32, "returns": True}, {"thread": 3, "returns": True}, {"others": 1},
    ]  # fmt: skip
    for case, form in product(CASES, forms):
        world = World(ptx=ptx, **CASES[case][0])
        world.memory |= {SIGNAL + 8: 0}
        CASES[case][1](world)
        try:
            machine = world.wait(4, **form)  # type: ignore[arg-type]
            ended = f"{machine.registers['$0']} {machine.log}"
        except (ExitError, TimeoutError, KeyError) as e:
            ended = f"{type(e).__name__}"
        words = [world.memory[HEAP[ME] + 8 * k] for k in range(PROGRESS.value)]
        yield f"{case} {form}: {world.polls} {world.poison} {words} {ended}"


def _comes(world: World, polls: int) -> None:
    world.at[polls] = lambda: world.memory.update({SIGNAL: 4})


def _poisoned(world: World) -> None:
    world.memory[HEAP[ME] + 8 * POISON.value] = 3


CASES: dict[str, tuple[dict[str, int], Callable[[World], Any]]] = {
    **{f"it comes with poll {n}": ({"STUCK_NS": 0}, lambda w, n=n: _comes(w, n)) for n in (1, EVERY, EVERY + 1, 200)},
    "it never comes": ({}, lambda w: None),
    "a rank never enters": ({"ENTER_NS": 20_000}, lambda w: w.enter(2, RUN_NOW - 1)),
    "a rank enters late": ({}, lambda w: (w.enter(0, RUN_NOW - 1), w.at.update({600: lambda: w.enter(0)}))),
    "the lane is poisoned": ({}, _poisoned),
}
"""Control words that differ, and what else is changed."""
