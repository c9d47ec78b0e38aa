"""The copy engine of a rank: what it does for the host, piece by piece, while programs and other copies go on.

It is as late as the schedule makes it; what is on one stream is done in order, and streams overtake each other. Each
function is launched with what it is to do, by `functools.partial`, and is given the memory of the run.
"""

from __future__ import annotations

from functools import partial

import torch

from tilelink.emulator import sites
from tilelink.emulator.accesses import Accesses
from tilelink.emulator.memory import Place
from tilelink.emulator.operation import Mode
from tilelink.emulator.words import add, exchange

sites.files.add(__file__)  # races name the lines below

PIECES = 4
"""In so many pieces, along its first dimension, a copy is done."""


def copy(source: torch.Tensor, target: torch.Tensor, memory: Accesses) -> None:
    """Copies memory to memory of the same dtype and shape, but for dimensions of 1."""
    memory.delay()
    sources, targets = Place.of(source.view(target.shape)), Place.of(target)
    for here, there in zip(sources.pieces(PIECES), targets.pieces(PIECES), strict=True):
        block = memory.read(here)
        memory.write(there, block)


def signal(words: torch.Tensor, value: int, memory: Accesses) -> None:
    """Writes a number to the first of a signal's words, after what came before it on its stream, for everybody who
    acquires it."""
    word = words.view(-1)[:1]
    place, mode = Place.of(word), Mode("atomic_store", "release", "sys")
    memory.atomic(mode, place.pointers(), place.dtype, partial(exchange, word, value))


def wait(words: torch.Tensor, least: int, memory: Accesses) -> None:
    """Waits until the first of a signal's words is at least a number: what comes on the stream comes after what
    released it."""
    word = words.view(-1)[:1]
    place, mode = Place.of(word), Mode("atomic_add", "acquire", "sys")
    while memory.atomic(mode, place.pointers(), place.dtype, partial(add, word, 0))[0] < least:
        pass
