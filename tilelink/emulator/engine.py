"""The copy engine of a rank: what it does for the host, piece by piece, while programs and other copies go on.

It is as late as the schedule makes it; what is on one stream is done in order, and streams overtake each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tilelink.emulator import sites
from tilelink.emulator.accesses import Accesses
from tilelink.emulator.memory import Place
from tilelink.emulator.operation import Mode
from tilelink.emulator.words import add, exchange

sites.files.add(__file__)  # races name the lines below

PIECES = 4
"""In so many pieces, along its first dimension, a copy is done."""


class _Step(ABC):
    """What is launched on a stream of an engine, without arguments."""

    name = "copy engine"

    def bind(self, memory: Accesses, arguments: Mapping[str, Any]) -> Callable[[], None]:
        return partial(self.run, memory)

    @abstractmethod
    def run(self, memory: Accesses) -> None: ...


@dataclass(frozen=True, eq=False)
class EngineCopy(_Step):
    """A copy of memory to memory of the same dtype and shape, but for dimensions of 1."""

    source: torch.Tensor
    target: torch.Tensor

    def run(self, memory: Accesses) -> None:
        memory.delay()
        sources, targets = Place.of(self.source.view(self.target.shape)), Place.of(self.target)
        for source, target in zip(sources.pieces(PIECES), targets.pieces(PIECES), strict=True):
            memory.pause()
            block = memory.load(source.pointers(), source.dtype)
            memory.pause()
            memory.store(target.pointers(), block)


@dataclass(frozen=True, eq=False)
class EngineSignal(_Step):
    """A write of a number to a word, after what came before it on its stream, for everybody who acquires it."""

    word: torch.Tensor
    value: int

    def run(self, memory: Accesses) -> None:
        place, mode = Place.of(self.word.view(1)), Mode("atomic_store", "release", "sys")
        memory.atomic(mode, place.pointers(), place.dtype, partial(exchange, self.word, self.value))


@dataclass(frozen=True, eq=False)
class EngineWait(_Step):
    """A wait until a word is at least a number: what comes on the stream comes after what released it."""

    word: torch.Tensor
    least: int

    def run(self, memory: Accesses) -> None:
        place, mode = Place.of(self.word.view(1)), Mode("atomic_add", "acquire", "sys")
        look = partial(add, self.word, 0)
        while memory.atomic(mode, place.pointers(), place.dtype, look)[0] < self.least:
            pass
