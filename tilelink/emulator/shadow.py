"""Shadow memory: small numbers for every element of real memory, whatever regions lie over it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import gcd

import numpy as np

from tilelink.emulator.memory import Access, Array, Region, common_step

CHUNK = 1 << 16
"""The number of cells that are copied at once. Chunks of zeros are skipped, so untouched cells stay unallocated."""


class Shadow:
    """Cells for the bytes [base, end), one for each `grain` bytes, in layers of numbers that are zero at first."""

    def __init__(self, base: int, end: int, grain: int, keep: Sequence[object]) -> None:
        self.base, self.end, self.grain = base, end, grain
        # While the shadow lives, its memory must not be freed and handed out again for something else.
        self.keep = list(keep)
        self.layers: dict[str, Array] = {}

    def has(self, layer: str) -> bool:
        """Whether anything was ever written to a layer."""
        return layer in self.layers

    def layer(self, name: str) -> Array:
        """The cells of a layer."""
        cells = self.layers.get(name)
        if cells is None:
            cells = self.layers[name] = np.zeros(-(-(self.end - self.base) // self.grain), np.int32)
        return cells

    def refine(self, grain: int) -> None:
        """Makes cells stand for `grain` bytes, a divisor of the present grain."""
        finer = Shadow(self.base, self.end, grain, ())
        finer.absorb(self)
        self.grain, self.layers = grain, finer.layers

    def absorb(self, other: Shadow) -> None:
        """Takes over the cells of a shadow that lies within this one and is as coarse or coarser."""
        factor = other.grain // self.grain
        start = (other.base - self.base) // self.grain
        for name, source in other.layers.items():
            target = self.layer(name)[start : start + len(source) * factor]
            for low in range(0, len(source), CHUNK):
                chunk = source[low : low + CHUNK]
                if chunk.any():
                    part = target[low * factor : (low + len(chunk)) * factor]
                    part[:] = np.repeat(chunk, factor)[: len(part)]


class Cells:
    """The cells of one access; `numbers` are their positions in the shadow."""

    def __init__(self, shadow: Shadow, access: Access, numbers: Array) -> None:
        self.shadow, self.access, self.numbers = shadow, access, numbers

    def get(self, layer: str) -> Array:
        """The numbers in the cells."""
        return self.shadow.layer(layer)[self.numbers]

    def fill(self, layer: str, value: int) -> None:
        """Writes one number to all cells."""
        self.shadow.layer(layer)[self.numbers] = value

    def distinct(self, layer: str) -> list[int]:
        """The different numbers in the cells."""
        return _distinct(self.get(layer)) if self.shadow.has(layer) else [0]

    def update(self, layer: str, function: Callable[[int], int]) -> None:
        """Replaces every number by a function of it, which is called once for each different number."""
        before = self.get(layer)
        values = _distinct(before)
        after = np.array([function(value) for value in values], np.int32)
        self.shadow.layer(layer)[self.numbers] = after[np.searchsorted(values, before)] if len(values) > 1 else after[0]

    def addresses(self, layer: str, value: int) -> Array:
        """The addresses of the cells that hold a number."""
        return self.shadow.base + self.shadow.grain * self.numbers[self.get(layer) == value]


class ShadowMemory:
    """The shadows of all memory that a run touches."""

    def __init__(self) -> None:
        self._shadows: list[Shadow] = []
        self._bases: list[int] = []

    def add(self, region: Region) -> None:
        """Makes one shadow cover the storage of a region; overlapping shadows are merged into it."""
        storage = region.tensor.untyped_storage()
        base, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        shadow = self._covering(base)
        if end == base or (shadow is not None and shadow.end >= end):
            return
        grain, overlapping = region.itemsize, []
        for other in self._shadows:
            if other.base < end and base < other.end:
                overlapping.append(other)
                base, end = min(base, other.base), max(end, other.end)
        for other in overlapping:
            grain = gcd(grain, other.grain, other.base - base)
        merged = Shadow(base, end, grain, [storage])
        for other in overlapping:
            merged.absorb(other)
            merged.keep += other.keep
        rest = [other for other in self._shadows if other not in overlapping]
        self._shadows = sorted([*rest, merged], key=lambda shadow: shadow.base)
        self._bases = [shadow.base for shadow in self._shadows]

    def cells(self, access: Access) -> Cells:
        """The cells of an access. If their grain is too coarse for it, the shadow is refined."""
        shadow = self._covering(access.region.base)
        assert shadow is not None, "a region that was not added"
        offsets = access.addresses - shadow.base
        grain = common_step(offsets, access.itemsize)
        if grain < shadow.grain:
            shadow.refine(grain)
        numbers, width = offsets // shadow.grain, access.itemsize // shadow.grain
        return Cells(shadow, access, numbers if width == 1 else (numbers[:, None] + np.arange(width)).reshape(-1))

    def _covering(self, address: int) -> Shadow | None:
        position = bisect_right(self._bases, address) - 1
        if position >= 0 and address < self._shadows[position].end:
            return self._shadows[position]
        return None


def _distinct(values: Array) -> list[int]:
    if len(values) == 1 or (values == values[0]).all():
        return [int(values[0])]
    return [int(value) for value in np.unique(values)]
