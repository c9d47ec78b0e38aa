"""Regions of memory, and accesses to one of them. Addresses and strides of accesses count bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from tilelink.frontend.kept import kept

Kind = Literal["data", "signal", "control"]
Box = tuple[tuple[int, int], ...]
"""Per dimension of a region the half-open range lo:hi of indices."""
Array = NDArray[Any]


class Region:
    """A tensor, or a part of a symmetric heap, that a launch may touch: what it is called and whose it is.

    `tensor` is a view of the memory, with its dtype, shape and strides. `kind` tells data from signals (flags
    and counters of one word, whose plain loads count as polls) and from control words (tables of peer
    addresses).
    """

    def __init__(self, name: str, rank: int, tensor: torch.Tensor, kind: Kind = "data") -> None:
        if tensor.device.type != "cpu":
            raise ValueError(f"region {name} is on {tensor.device}, not in the memory of the CPU")
        self.name, self.rank, self.tensor, self.kind = name, rank, tensor, kind
        self.itemsize = tensor.element_size()
        self.shape = tuple(tensor.shape) or (1,)
        self.strides = tuple(tensor.stride()) or (1,)
        elements = tensor.numel() and 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        self.dense = elements == tensor.numel()
        self.base = tensor.data_ptr()
        self.end = self.base + elements * self.itemsize
        self.bytes = _bytes_at(self.base, self.end - self.base)
        # Outermost first: the order in which an offset is taken apart into indices.
        dimensions = [d for d in range(len(self.shape)) if self.shape[d] > 1 and self.strides[d] > 0]
        self._order = sorted(dimensions, key=lambda d: -self.strides[d])

    @classmethod
    def at(
        cls,
        name: str,
        rank: int,
        address: int,
        dtype: torch.dtype,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        kind: Kind = "data",
    ) -> Region:
        """A region at an address that the caller keeps alive. Strides count elements; default: row-major."""
        if strides is None:
            strides = [*accumulate([1, *reversed(shape[1:])], lambda a, b: a * b)][::-1]
        elements = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        flat = torch.frombuffer(_bytes_at(address, elements * dtype.itemsize), dtype=dtype)
        return cls(name, rank, flat.as_strided(tuple(shape), tuple(strides)), kind)

    def is_in_allocation(self, address: int) -> bool:
        """Whether an address lies in the memory that was allocated with that of the region."""
        storage = self.tensor.untyped_storage()
        return 0 <= address - storage.data_ptr() < storage.nbytes()

    def __str__(self) -> str:
        return f"{self.name}@rank{self.rank}"

    def index(self, address: int) -> tuple[int, ...]:
        """The index of the element at an address."""
        return tuple(self._digits((address - self.base) // self.itemsize))

    def _digits(self, offset: int) -> list[int]:
        digits = [0] * len(self.shape)
        for dimension in self._order:
            digits[dimension], offset = divmod(offset, self.strides[dimension])
        return digits

    def box(self, access: Access) -> Box:
        """The smallest box that holds an access; whole rows if it wraps around from a row to the next."""
        if access.addresses is not None:
            return self.box_of(access.addresses)
        low = self._digits((access.low - self.base) // self.itemsize)
        high = self._digits((access.high - 1 - self.base) // self.itemsize)
        if self._is_box(access, low, high):
            return tuple((lo, hi + 1) for lo, hi in zip(low, high, strict=True))
        box = [(0, n) for n in self.shape]
        for dimension in self._order:
            box[dimension] = low[dimension], high[dimension] + 1
            if low[dimension] != high[dimension]:
                break
        return tuple(box)

    def box_of(self, addresses: Array) -> Box:
        """The smallest box that holds the elements at some addresses."""
        return tuple((int(i.min()), int(i.max()) + 1) for i in self._indices(addresses)[0])

    def _is_box(self, access: Access, low: list[int], high: list[int]) -> bool:
        """Whether an affine access reaches no index beyond those of its first and last element."""
        reach = list(low)
        for count, stride in zip(access.counts, access.strides, strict=True):
            step = self._digits(abs(stride) // self.itemsize)
            span = self._digits(abs(stride) * (count - 1) // self.itemsize)
            if any(whole != one * (count - 1) for whole, one in zip(span, step, strict=True)):
                return False
            reach = [r + s for r, s in zip(reach, span, strict=True)]
        wide = self._digits((access.itemsize - 1) // self.itemsize)
        return high == [r + w for r, w in zip(reach, wide, strict=True)]

    def _indices(self, addresses: Array) -> tuple[list[Array], Array]:
        """Per dimension the index of every address, and which addresses are of elements at all."""
        offset = (addresses - self.base) // self.itemsize
        indices = [np.zeros_like(offset) for _ in self.shape]
        inside = np.ones(offset.shape, bool)
        for dimension in self._order:
            indices[dimension], offset = np.divmod(offset, self.strides[dimension])
            inside &= indices[dimension] < self.shape[dimension]
        return indices, inside & (offset == 0)

    def contains(self, addresses: Array, itemsize: int) -> Array:
        """Per address whether it is that of an element of the region, and not outside or in a gap."""
        inside = (addresses >= self.base) & (addresses <= self.end - itemsize)
        return inside if self.dense else inside & self._indices(addresses)[1]

    def holds(self, access: Access) -> bool:
        """Whether every element of an access between base and end is the region's, and not in a gap."""
        return self.dense or bool(self._indices(access.all_addresses())[1].all())


class Access:
    """Elements of one region that one operation touches.

    Either affine: element (i, j, ...) of `counts` lies at `start` + i * strides[0] + j * strides[1] + ...,
    and `lanes` are the slices of the tile that it stands for (None: all of it). Or scattered: `addresses` has
    one entry per element, and `lanes` their positions in the flattened tile.
    """

    __slots__ = (
        "_box",
        "addresses",
        "counts",
        "high",
        "itemsize",
        "lanes",
        "low",
        "region",
        "start",
        "strides",
    )

    def __init__(
        self,
        region: Region,
        itemsize: int,
        low: int,
        high: int,
        start: int,
        counts: tuple[int, ...],
        strides: tuple[int, ...],
        lanes: tuple[slice, ...] | Array | None = None,
        addresses: Array | None = None,
    ) -> None:
        self.region, self.itemsize, self.low, self.high = region, itemsize, low, high
        self.start, self.counts, self.strides, self.lanes, self.addresses = (
            start,
            counts,
            strides,
            lanes,
            addresses,
        )
        self._box: Box | None = None

    @property
    def box(self) -> Box:
        """The smallest box of the region that holds the access."""
        if self._box is None:
            self._box = self.region.box(self)
        return self._box

    def view(self, dtype: np.dtype[Any]) -> Array:
        """The memory of an affine access as an array that shares it."""
        region = self.region
        return np.ndarray(self.counts, dtype, region.bytes, self.start - region.base, self.strides)

    def values(self, dtype: np.dtype[Any]) -> Array:
        """What is in memory now, an entry per element."""
        if self.addresses is None:
            return self.view(dtype)
        offsets = (self.addresses - self.region.base)[:, None] + np.arange(self.itemsize)
        return self.region.bytes[offsets].view(dtype).reshape(-1)

    def part_of(self, tile: Array) -> Array:
        """The elements of a tile that the access stands for."""
        if self.addresses is not None:
            return tile.reshape(-1)[self.lanes]
        return tile if self.lanes is None else tile[self.lanes]

    def all_addresses(self) -> Array:
        """The address of every element."""
        if self.addresses is not None:
            return self.addresses
        return (self.start + affine_offsets(self.counts, self.strides)).reshape(-1)


def strided(address: int, dtype: np.dtype[Any], count: int, stride: int) -> Array:
    """The memory of elements that lie `stride` elements apart."""
    size = max((count - 1) * stride + 1, 0) * dtype.itemsize
    return np.ndarray((count,), dtype, _bytes_at(address, size), 0, (stride * dtype.itemsize,))


def _bytes_at(address: int, size: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


@kept(64)
def affine_offsets(counts: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """The offset of every element of an affine tile from its first."""
    offsets = np.zeros(counts, np.int64)
    for dimension, (count, stride) in enumerate(zip(counts, strides, strict=True)):
        shape = [1] * len(counts)
        shape[dimension] = count
        offsets += (np.arange(count) * stride).reshape(shape)
    return offsets
