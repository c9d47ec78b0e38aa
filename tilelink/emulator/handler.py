"""What the interpreter needs of whoever has the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from tilelink.emulator.memory import Array


class MemoryHandler(Protocol):
    """Who carries out the accesses of interpreted kernels.

    Pointers come as arrays of uint64 addresses; `mask` is None where all are accessed. `gather`, `scatter`
    and `apply` carry the access out the stock way, whatever the addresses. `dtype` is numpy's; bfloat16 is
    uint16.
    """

    def load(
        self,
        pointers: Array,
        mask: Array | None,
        other: Array | None,
        dtype: np.dtype[Any],
        volatile: bool,
        gather: Callable[[], Array],
    ) -> Array:
        """Returns what is in memory, and `other` (zero if None) where the mask is false."""

    def store(self, pointers: Array, mask: Array | None, values: Array, scatter: Callable[[], object]) -> None:
        """Stores values."""

    def atomic(
        self,
        kind: str,
        pointers: Array,
        mask: Array | None,
        dtype: np.dtype[Any],
        semantic: str,
        scope: str,
        apply: Callable[[], Array],
    ) -> Array:
        """Does one of "atomic_add", "atomic_cas", "atomic_load", ..., and returns the old values."""
