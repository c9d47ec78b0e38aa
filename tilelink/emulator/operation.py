"""Memory operations: in which mode they touch memory, and what observers get of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tilelink.emulator.memory import Box, Region
from tilelink.emulator.sites import KernelSite


class Mode(NamedTuple):
    """How an operation touches memory. `kind`: "load", "volatile_load", "store", "atomic_add", ...; `semantic` and
    `scope` as in `Operation`, but for volatile loads, which reach all ranks; `domain`: to which other atomics an atomic
    is one, "" to those of programs."""

    kind: str
    semantic: str = ""
    scope: str = ""
    domain: str = ""

    @property
    def atomic(self) -> bool:
        return bool(self.scope)


LOAD, VOLATILE_LOAD, STORE = Mode("load"), Mode("volatile_load", scope="sys"), Mode("store")


@dataclass(frozen=True, slots=True)
class Operation:
    """A memory operation of a program, as observers get it. One that touches several regions gives one for each.

    `launch` counts the launches of a rank from 0. `semantic` is "relaxed", "acquire", "release" or "acq_rel" and
    `scope` "cta", "gpu" or "sys" for atomics, both are "" otherwise. `old` and `new` are the values before and after an
    atomic of one element. `time` is the Lamport time after it: an operation costs 1, as do all polls of a wait
    together; an acquire is later than the release that it reads, a launch than what is before it on its stream.
    `box` holds the elements that it touches, which are `elements` in number: a mask may leave some out."""

    sequence: int
    rank: int
    launch: int
    name: str
    program: int
    kind: str
    region: Region
    box: Box
    semantic: str
    scope: str
    old: int | float | None
    new: int | float | None
    time: int
    site: KernelSite
    elements: int
