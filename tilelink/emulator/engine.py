"""The copy engine of a rank: what it does for the host, piece by piece, while programs and other copies go on.

It is as late as the schedule makes it; what is on one stream is done in order, and streams overtake each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from tilelink.emulator.accesses import Accesses
from tilelink.emulator.interpreter import sites
from tilelink.emulator.memory import Array
from tilelink.emulator.words import add, exchange

sites.files.add(__file__)  # races name the lines below

PIECES = 4
"""In so many pieces, along its first dimension, a copy is done."""
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Step:
    """What is launched on a stream of an engine, without arguments."""

    name = "copy engine"

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return dict(arguments)


class EngineCopy(_Step):
    """A copy of memory to memory of the same dtype and shape, but for dimensions of 1."""

    def __init__(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.source, self.target = source.view(target.shape), target

    def run(self, memory: Accesses, arguments: Mapping[str, Any]) -> None:
        memory.delay()
        length = -(-self.source.shape[0] // PIECES)
        for source, target in zip(self.source.split(length), self.target.split(length), strict=True):
            memory.pause()
            words = _words(source)
            block = memory.load(_pointers(source), None, None, words.dtype, False, words.copy)
            memory.pause()
            memory.store(_pointers(target), None, block, partial(np.copyto, _words(target), block))


class EngineSignal(_Step):
    """A write of a number to a word, after what came before it on its stream, for everybody who acquires it."""

    def __init__(self, word: torch.Tensor, value: int) -> None:
        self.word, self.value = word.view(1), value

    def run(self, memory: Accesses, arguments: Mapping[str, Any]) -> None:
        pointers, dtype = _pointers(self.word), np.dtype(np.int32)
        memory.atomic("atomic_store", pointers, None, dtype, "release", "sys", partial(exchange, self.word, self.value))


class EngineWait(_Step):
    """A wait until a word is at least a number: what comes on the stream comes after what released it."""

    def __init__(self, word: torch.Tensor, least: int) -> None:
        self.word, self.least = word.view(1), least

    def run(self, memory: Accesses, arguments: Mapping[str, Any]) -> None:
        pointers, dtype, look = _pointers(self.word), np.dtype(np.int32), partial(add, self.word, 0)
        while memory.atomic("atomic_add", pointers, None, dtype, "acquire", "sys", look)[0] < self.least:
            pass


def _words(tensor: torch.Tensor) -> Array:
    """The memory of a tensor as integers."""
    return np.asarray(tensor.view(_WORDS[tensor.element_size()]).numpy())


def _pointers(tensor: torch.Tensor) -> Array:
    """The addresses of the elements of a tensor."""
    size = tensor.element_size()
    addresses = np.full(tensor.shape, tensor.data_ptr(), np.int64)
    for n, (length, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        addresses += (np.arange(length) * stride * size).reshape([-1 if k == n else 1 for k in range(tensor.dim())])
    return addresses.view(np.uint64)
