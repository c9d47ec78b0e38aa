"""Regions of memory, and where in them tiles of pointers fall. Addresses and strides of accesses count bytes."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

Kind = Literal["data", "signal", "control"]
Box = tuple[tuple[int, int], ...]
"""The half-open range lo:hi of indices along each dimension of a region."""
Array = NDArray[Any]


class Region:
    """A tensor, or a part of a symmetric heap, that a launch may touch, with its name and rank.

    `tensor` is a view of the memory, with its dtype, shape and strides. `kind` tells data from signals (flags and
    counters of one word, whose plain loads count as polls) and from control words (tables of peer addresses)."""

    def __init__(self, name: str, rank: int, tensor: torch.Tensor, kind: Kind = "data") -> None:
        if tensor.device.type != "cpu":
            raise ValueError(f"region {name} is on {tensor.device}, not in the memory of the CPU")
        self.name, self.rank, self.tensor, self.kind = name, rank, tensor, kind
        self.itemsize = tensor.element_size()
        self.shape = tuple(tensor.shape) or (1,)
        self.strides = tuple(tensor.stride()) or (1,)
        elements = tensor.numel() and 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        if overlap((n, s) for n, s in zip(self.shape, self.strides, strict=True) if s):  # an element has many indices
            self.shape, self.strides = (elements,), (1,)
        self.dense = elements == prod(self.shape)
        self.base = tensor.data_ptr()
        self.end = self.base + elements * self.itemsize
        self.bytes = bytes_at(self.base, self.end - self.base)
        # Outermost first: the order in which `_digits` takes an offset apart into indices.
        dimensions = [d for d in range(len(self.shape)) if self.shape[d] > 1 and self.strides[d] > 0]
        self._order = sorted(dimensions, key=lambda d: -self.strides[d])

    def __str__(self) -> str:
        return f"{self.name}@rank{self.rank}"

    def is_in_allocation(self, address: int) -> bool:
        """Whether an address lies in the allocation that holds the region."""
        storage = self.tensor.untyped_storage()
        return 0 <= address - storage.data_ptr() < storage.nbytes()

    def index(self, address: int) -> tuple[int, ...]:
        """The index of the element at an address."""
        return tuple(self._digits((address - self.base) // self.itemsize))

    def contains(self, addresses: Array, itemsize: int) -> Array:
        """For each address, whether an element of the region is there: false outside the region and in its gaps."""
        inside = (addresses >= self.base) & (addresses <= self.end - itemsize)
        return inside if self.dense else inside & self._are_elements(addresses)

    def box_of(self, addresses: Array, itemsize: int = 1) -> Box:
        """The smallest box that holds the elements at some addresses."""
        if addresses.size == 1:  # arrays of one element take much longer than numbers
            first = int(addresses[0]) - self.base
            ends = (self._digits(byte // self.itemsize) for byte in (first, first + itemsize - 1))
            return tuple((lo, hi + 1) for lo, hi in zip(*ends, strict=True))
        low = self._digits((addresses - self.base) // self.itemsize)
        high = self._digits((addresses + (itemsize - 1) - self.base) // self.itemsize)
        return tuple((int(lo.min()), int(hi.max()) + 1) for lo, hi in zip(low, high, strict=True))

    def _are_elements(self, addresses: Array) -> Array:
        offsets = (addresses - self.base) // self.itemsize
        indices = self._digits(offsets)
        inside: Array = offsets == sum(i * s for i, s in zip(indices, self.strides, strict=True))
        for i, n in zip(indices, self.shape, strict=True):
            inside &= i < n
        return inside

    def _digits(self, offset: Any) -> list[Any]:
        """The index of the element at an offset, an entry a dimension; entries are arrays if `offset` is an array."""
        digits = [offset * 0] * len(self.shape)
        for dimension in self._order:
            digits[dimension], offset = divmod(offset, self.strides[dimension])
        return digits


@dataclass(frozen=True, eq=False)
class Access:
    """The elements of one region that an operation touches: their `addresses`, and their positions in the flattened
    tile (`lanes`)."""

    region: Region
    itemsize: int
    addresses: Array
    lanes: Array

    @property
    def box(self) -> Box:
        """The smallest box of the region that holds the access."""
        return self.region.box_of(self.addresses, self.itemsize)

    def values(self, dtype: np.dtype[Any]) -> Array:
        """The values in memory now, one per element."""
        elements, numbers = self._in_memory(dtype)
        return elements[numbers]

    def write(self, values: Array) -> None:
        """Stores a value per element."""
        elements, numbers = self._in_memory(values.dtype)
        elements[numbers] = values

    def _in_memory(self, dtype: np.dtype[Any]) -> tuple[Array, Array]:
        """The region as an array of a dtype, and the positions of the accessed elements in it. Elements of the array
        overlap only if some access is not aligned, because numpy takes three times as long for overlapping elements."""
        memory, offsets = self.region.bytes, self.addresses - self.region.base
        apart = common_step(offsets, dtype.itemsize)
        elements = np.ndarray(((len(memory) - dtype.itemsize) // apart + 1,), dtype, memory, 0, (apart,))
        return elements, offsets // apart

    @property
    def reach(self) -> tuple[int, int]:
        """The half-open range of addresses from the first to the last element."""
        return int(self.addresses.min()), int(self.addresses.max()) + self.itemsize


@dataclass(frozen=True)
class Strided:
    """Elements in memory: the address of the first, and their number and stride in bytes along each dimension."""

    address: int
    dtype: np.dtype[Any]
    counts: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Strided:
        """The place of a tensor's elements, taken as integers of their size."""
        size = tensor.element_size()
        strides = tuple(stride * size for stride in tensor.stride())
        return cls(tensor.data_ptr(), np.dtype(f"i{size}"), tuple(tensor.shape), strides)

    def pieces(self, number: int) -> Iterator[Strided]:
        """Yields up to `number` parts of the place, cut along the first dimension, in order."""
        count, *others = self.counts
        length = max(-(-count // number), 1)
        for first in range(0, count, length):
            counts = min(length, count - first), *others
            yield Strided(self.address + first * self.strides[0], self.dtype, counts, self.strides)

    def pointers(self) -> Array:
        """The address of every element."""
        indices = np.indices(self.counts, sparse=True)
        offsets = sum((i * s for i, s in zip(indices, self.strides, strict=True)), np.zeros(self.counts, np.int64))
        return (self.address + offsets).view(np.uint64)


def overlap(dimensions: Iterable[tuple[int, int]]) -> bool:
    """Whether several elements may share memory: whether the stride of a dimension lies within the span of the finer
    ones. `dimensions`: lengths and strides."""
    spanned = 0
    for stride, n in sorted((stride, n) for n, stride in dimensions):
        if n > 1:
            if stride <= spanned:
                return True
            spanned += (n - 1) * stride
    return False


_ONE_LANE, _ONE_INSIDE = np.arange(1), np.ones(1, bool)


class Outside(Exception):
    """An address that is in no region."""

    def __init__(self, address: int) -> None:
        super().__init__(hex(address))
        self.address = address


class RegionMap:
    """The regions that one launch may touch."""

    def __init__(self, regions: Sequence[Region]) -> None:
        # The smallest of several regions with one base comes last, because the search goes backwards.
        self.regions = sorted((r for r in regions if r.end > r.base), key=lambda r: (r.base, -r.end))
        self._bases = [region.base for region in self.regions]
        self._reach = list(accumulate((region.end for region in self.regions), max))

    def _spanning(self, low: int, high: int) -> Iterator[Region]:
        """The regions that span bytes [low, high), the one with the nearest base first."""
        position = bisect_right(self._bases, low) - 1
        while position >= 0 and self._reach[position] >= high:
            if self.regions[position].end >= high:
                yield self.regions[position]
            position -= 1

    def nearest(self, address: int) -> Region | None:
        """The region that is nearest to an address, None if there are no regions."""
        return min(self.regions, key=lambda r: max(r.base - address, address - r.end + 1, 0), default=None)

    def locate(self, pointers: Array, mask: Array | None, itemsize: int) -> list[Access]:
        """The accesses of a tile of pointers: one per region, none if the mask selects nothing. Raises `Outside`."""
        addresses = pointers.view(np.int64).reshape(-1)
        if addresses.size == 1 and mask is None:
            return [Access(self._around(addresses, itemsize)[0], itemsize, addresses, _ONE_LANE)]
        if mask is None or mask.all():
            lanes = np.arange(addresses.size)
        else:
            lanes = np.flatnonzero(np.broadcast_to(mask, pointers.shape))
            addresses = addresses[lanes]
        accesses: list[Access] = []
        while addresses.size:
            region, inside = self._around(addresses, itemsize)
            if inside.all():
                return [*accesses, Access(region, itemsize, addresses, lanes)]
            accesses.append(Access(region, itemsize, addresses[inside], lanes[inside]))
            addresses, lanes = addresses[~inside], lanes[~inside]
        return accesses

    def _around(self, addresses: Array, itemsize: int) -> tuple[Region, Array]:
        """The region of the first element, and which elements it holds; the one with the most, if several match."""
        first, one = int(addresses[0]), addresses.size == 1
        found: tuple[Region, Array] | None = None
        most = 0
        for region in self._spanning(first, first + itemsize):
            inside = _ONE_INSIDE if one and region.dense else region.contains(addresses, itemsize)
            if inside[0] and (many := int(np.count_nonzero(inside))) > most:
                found, most = (region, inside), many
                if most == addresses.size:
                    break
        if found is None:
            raise Outside(first)
        return found


def common_step(offsets: Array, size: int) -> int:
    """The largest power of two that divides all offsets and a size."""
    bits = int(offsets[0] if offsets.size == 1 else np.bitwise_or.reduce(offsets)) | size
    return bits & -bits


def bytes_at(address: int, size: int) -> Array:
    """The bytes of memory at an address, as an array; the caller keeps the memory alive."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
