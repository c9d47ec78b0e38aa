"""The copy engine of a rank: it copies, signals and waits for the host, while programs and other copies go on.

The schedule decides how late it is. It does the work of one stream in order; streams overtake each other. Callers bind
the arguments of a function by `functools.partial` and launch it; the execution adds `memory`, the memory of the run.
"""

from __future__ import annotations

from functools import partial

import torch

from tilelink.emulator import sites
from tilelink.emulator.accesses import Accesses
from tilelink.emulator.memory import Strided
from tilelink.emulator.operation import Mode
from tilelink.emulator.words import add, exchange

sites.files.add(__file__)  # races name the lines below

PIECES = 4
"""The most pieces of a copy, which is cut along its first dimension."""


def copy(source: torch.Tensor, target: torch.Tensor, memory: Accesses) -> None:
    """Copies a tensor to another one of the same dtype and shape; dimensions of 1 may differ."""
    memory.delay()
    sources, targets = Strided.of(source.view(target.shape)), Strided.of(target)
    for here, there in zip(sources.pieces(PIECES), targets.pieces(PIECES), strict=True):
        block = memory.read(here)
        memory.write(there, block)


def signal(words: torch.Tensor, value: int, memory: Accesses) -> None:
    """Writes a number to the first word of a signal. It releases everything before it on its stream, to all ranks."""
    word = words.view(-1)[:1]
    place, mode = Strided.of(word), Mode("atomic_store", "release", "sys")
    memory.atomic(mode, place.pointers(), place.dtype, partial(exchange, word, value))


def wait(words: torch.Tensor, least: int, memory: Accesses) -> None:
    """Waits until the first word of a signal is at least a number. Later work on the stream follows its release."""
    word = words.view(-1)[:1]
    place, mode = Strided.of(word), Mode("atomic_add", "acquire", "sys")
    while memory.atomic(mode, place.pointers(), place.dtype, partial(add, word, 0))[0] < least:
        pass
