"""Words that processes share, changed by the atomics of Triton's interpreter: those that kernels use.

C++'s, with the memory order that is asked for; in between, numpy's loads and stores are plain. So what is stored before
a release is seen after the acquire that reads it, on x86 and on weaker machines. Like interpreter.py, this depends on
the interpreter's internals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
import triton.runtime.interpreter as stock

_Handle = stock.TensorHandle
_stock_rmw = stock.InterpreterBuilder.create_atomic_rmw
_stock_cas = stock.InterpreterBuilder.create_atomic_cas
_SYSTEM = stock._ir.MEM_SYNC_SCOPE.SYSTEM


class Words:
    """Words of memory (int64) that several processes change, by the atomics that kernels use."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor  # keeps the memory
        self._plain = tensor.numpy()

    def peek(self, word: int) -> int:
        """The value of a word, with no order: what was stored before it need not be here yet."""
        return int(self._plain[word])

    def load(self, word: int) -> int:
        """The value of a word, with acquire order."""
        return self._rmw(stock._ir.ATOMIC_OP.ADD, word, 0, stock._ir.MEM_SEMANTIC.ACQUIRE)

    def store(self, word: int, value: int) -> None:
        """Writes a word, with release order."""
        self._rmw(stock._ir.ATOMIC_OP.XCHG, word, value, stock._ir.MEM_SEMANTIC.RELEASE)

    def compare_and_swap(self, word: int, expected: int, value: int) -> int:
        """Writes a word if it is as expected; what it was before."""
        order = stock._ir.MEM_SEMANTIC.ACQUIRE_RELEASE
        old = _stock_cas(
            stock.interpreter_builder, self._pointer(word), _int64(expected), _int64(value), order, _SYSTEM
        )
        return int(old.data.item())

    def _rmw(self, operation: Any, word: int, value: int, order: Any) -> int:
        everywhere = _Handle(np.array([True]), tl.int1)
        old = _stock_rmw(
            stock.interpreter_builder, operation, self._pointer(word), _int64(value), everywhere, order, _SYSTEM
        )
        return int(old.data.item())

    def _pointer(self, word: int) -> Any:
        return _Handle(np.array([self.tensor[word].data_ptr()], np.uint64), tl.pointer_type(tl.int64))


def exchange(word: torch.Tensor, value: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Writes a word (int32) that several processes change, with release order; what it was before, as one element."""
    return _change(word, value, stock._ir.ATOMIC_OP.XCHG, stock._ir.MEM_SEMANTIC.RELEASE)


def add(word: torch.Tensor, value: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Adds to a word (int32) that several processes change, with acquire order; what it was before, as one element."""
    return _change(word, value, stock._ir.ATOMIC_OP.ADD, stock._ir.MEM_SEMANTIC.ACQUIRE)


def _change(word: torch.Tensor, value: int, operation: Any, order: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    pointer = _Handle(np.array([word.data_ptr()], np.uint64), tl.pointer_type(tl.int32))
    new, everywhere = _Handle(np.array([value], np.int32), tl.int32), _Handle(np.array([True]), tl.int1)
    old = _stock_rmw(stock.interpreter_builder, operation, pointer, new, everywhere, order, _SYSTEM)
    return np.asarray(old.data, np.int32)


def _int64(value: int) -> Any:
    return _Handle(np.array([value], np.int64), tl.int64)
