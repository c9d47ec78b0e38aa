"""Memory operations: their modes, and the records of them that observers get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tilelink.emulator.memory import Box, Region
from tilelink.emulator.sites import KernelSite


class Mode(NamedTuple):
    """How an operation touches memory. `kind`: "load", "volatile_load", "store", "atomic_add", ...; `semantic` and
    `scope` as in `Operation`, except that volatile loads have scope "sys". `domain`: atomics of one domain are atomic
    to each other; "" is the domain of atomics of programs."""

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
    """A memory operation of a program, as observers get it: one record for each region that the operation touches.

    `launch` counts the launches of a rank from 0. `semantic` is "relaxed", "acquire", "release" or "acq_rel" and
    `scope` "cta", "gpu" or "sys" for atomics; both are "" otherwise. `old` and `new` are the values before and after an
    atomic of one element. `time` is the Lamport time after the operation. An operation takes 1, and so do all polls of
    a wait together. An acquire is later than the release that it reads; a launch is later than earlier work on its
    stream. `box` encloses the elements touched; `elements` is their number, because a mask may leave some out."""

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
