"""Words that processes share, changed by the atomics of Triton's interpreter, as kernels change them.

These are atomics of C++ with the given memory order; numpy's loads and stores between them are plain. An acquire that
reads a release therefore sees everything stored before it, on x86 and on weaker machines. Like interpreter.py, this
depends on the interpreter's internals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
import triton.runtime.interpreter as stock

from tilelink.emulator.memory import Array

_Handle, _Order = stock.TensorHandle, stock._ir.MEM_SEMANTIC
_stock_rmw = stock.InterpreterBuilder.create_atomic_rmw
_stock_cas = stock.InterpreterBuilder.create_atomic_cas
_SYSTEM = stock._ir.MEM_SYNC_SCOPE.SYSTEM
_DTYPES = {torch.int32: (np.int32, tl.int32), torch.int64: (np.int64, tl.int64)}


class Words:
    """Words of memory (int64) that several processes change, by the atomics that kernels use."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor  # keeps the memory

    def load(self, word: int) -> int:
        """The value of a word, with acquire order."""
        return int(add(self.tensor[word], 0).item())

    def store(self, word: int, value: int) -> None:
        """Writes a word, with release order."""
        exchange(self.tensor[word], value)

    def compare_and_swap(self, word: int, expected: int, value: int) -> int:
        """Writes a word if it has the expected value; returns its old value."""
        pointer, old, new = _operands(self.tensor[word], expected, value)
        found = _stock_cas(stock.interpreter_builder, pointer, old, new, _Order.ACQUIRE_RELEASE, _SYSTEM)
        return int(found.data.item())


def exchange(word: torch.Tensor, value: int) -> Array:
    """Writes a word (int32 or int64) that processes share, with release order; returns its old value as an array."""
    return _change(word, value, stock._ir.ATOMIC_OP.XCHG, _Order.RELEASE)


def add(word: torch.Tensor, value: int) -> Array:
    """Adds to a word (int32 or int64) that processes share, with acquire order; returns its old value as an array."""
    return _change(word, value, stock._ir.ATOMIC_OP.ADD, _Order.ACQUIRE)


def _change(word: torch.Tensor, value: int, operation: Any, order: Any) -> Array:
    pointer, new = _operands(word, value)
    everywhere = _Handle(np.array([True]), tl.int1)
    old = _stock_rmw(stock.interpreter_builder, operation, pointer, new, everywhere, order, _SYSTEM)
    return np.asarray(old.data)


def _operands(word: torch.Tensor, *values: int) -> list[Any]:
    """A pointer to a word, and values of its dtype."""
    dtype, element = _DTYPES[word.dtype]
    pointer = _Handle(np.array([word.data_ptr()], np.uint64), tl.pointer_type(element))
    return [pointer, *(_Handle(np.array([value], dtype), element) for value in values)]
