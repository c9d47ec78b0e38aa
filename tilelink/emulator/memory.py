"""Regions of memory, and where in them tiles of pointers fall. Addresses and strides of accesses count bytes."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
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
        self.dense = elements == tensor.numel()
        self.base = tensor.data_ptr()
        self.end = self.base + elements * self.itemsize
        self.bytes = bytes_at(self.base, self.end - self.base)
        # Outermost first: the order in which an offset is taken apart into indices.
        dimensions = [d for d in range(len(self.shape)) if self.shape[d] > 1 and self.strides[d] > 0]
        self._order = sorted(dimensions, key=lambda d: -self.strides[d])

    def __str__(self) -> str:
        return f"{self.name}@rank{self.rank}"

    def is_in_allocation(self, address: int) -> bool:
        """Whether an address lies in the memory that was allocated with that of the region."""
        storage = self.tensor.untyped_storage()
        return 0 <= address - storage.data_ptr() < storage.nbytes()

    def index(self, address: int) -> tuple[int, ...]:
        """The index of the element at an address."""
        return tuple(self._digits((address - self.base) // self.itemsize))

    def contains(self, addresses: Array, itemsize: int) -> Array:
        """Per address whether it is that of an element of the region, and not outside or in a gap."""
        inside = (addresses >= self.base) & (addresses <= self.end - itemsize)
        return inside if self.dense else inside & self._are_elements(addresses)

    def holds(self, access: Access) -> bool:
        """Whether every element of an access between base and end is the region's, and not in a gap."""
        return self.dense or bool(self._are_elements(access.all_addresses()).all())

    def box(self, access: Access) -> Box:
        """The smallest box that holds an access."""
        if access.addresses is None:
            low = self._digits((access.low - self.base) // self.itemsize)
            high = self._digits((access.high - 1 - self.base) // self.itemsize)
            if self._is_box(access, low, high):
                return tuple((lo, hi + 1) for lo, hi in zip(low, high, strict=True))
        return self.box_of(access.all_addresses(), access.itemsize)

    def box_of(self, addresses: Array, itemsize: int = 1) -> Box:
        """The smallest box that holds what is at some addresses."""
        low = self._digits((addresses - self.base) // self.itemsize)
        high = self._digits((addresses + (itemsize - 1) - self.base) // self.itemsize)
        return tuple((int(lo.min()), int(hi.max()) + 1) for lo, hi in zip(low, high, strict=True))

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

    def _are_elements(self, addresses: Array) -> Array:
        offsets = (addresses - self.base) // self.itemsize
        indices = self._digits(offsets)
        inside: Array = offsets == sum(i * s for i, s in zip(indices, self.strides, strict=True))
        for i, n in zip(indices, self.shape, strict=True):
            inside &= i < n
        return inside

    def _digits(self, offset: Any) -> list[Any]:
        """The index of the element at an offset, or per dimension those of elements at an array of offsets."""
        digits = [offset * 0] * len(self.shape)
        for dimension in self._order:
            digits[dimension], offset = divmod(offset, self.strides[dimension])
        return digits


@dataclass(eq=False)
class Access:
    """Elements of one region that one operation touches.

    Either affine: element (i, j, ...) of `counts` lies at `start` + i * strides[0] + j * strides[1] + ..., and `lanes`
    are the slices of the tile that it stands for (None: all of it). Or scattered: `addresses` has one entry per
    element, and `lanes` their positions in the flattened tile."""

    region: Region
    itemsize: int
    low: int
    high: int
    start: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    lanes: tuple[slice, ...] | Array | None = None
    addresses: Array | None = None

    @cached_property
    def box(self) -> Box:
        """The smallest box of the region that holds the access."""
        return self.region.box(self)

    def view(self, dtype: np.dtype[Any]) -> Array:
        """The memory of an affine access as an array that shares it."""
        region = self.region
        return np.ndarray(self.counts, dtype, region.bytes, self.start - region.base, self.strides)

    def values(self, dtype: np.dtype[Any]) -> Array:
        """What is in memory now, an entry per element; of an affine access it is the memory itself."""
        return self.view(dtype) if self.addresses is None else self._anywhere(dtype)[self.addresses - self.region.base]

    def write(self, values: Array) -> None:
        """Stores a value per element."""
        if self.addresses is None:
            self.view(values.dtype)[...] = values
        else:
            self._anywhere(values.dtype)[self.addresses - self.region.base] = values

    def _anywhere(self, dtype: np.dtype[Any]) -> Array:
        """The elements that begin at every byte of the region."""
        memory = self.region.bytes
        return np.ndarray((len(memory) - dtype.itemsize + 1,), dtype, memory, 0, (1,))

    def part_of(self, tile: Array) -> Array:
        """The elements of a tile that the access stands for."""
        if self.addresses is not None:
            return tile.reshape(-1)[self.lanes]
        return tile if self.lanes is None else tile[self.lanes]

    def read_into(self, tile: Array) -> None:
        """Reads these elements of a tile, which lies in one piece, from memory."""
        flat = tile if self.addresses is None else tile.reshape(-1)
        flat[... if self.lanes is None else self.lanes] = self.values(tile.dtype)

    def all_addresses(self) -> Array:
        """The address of every element."""
        if self.addresses is not None:
            return self.addresses
        return (self.start + affine_offsets(self.counts, self.strides)).reshape(-1)


@dataclass(frozen=True)
class Place:
    """Elements in memory: where the first is, how many there are along each dimension, and how many bytes apart."""

    address: int
    dtype: np.dtype[Any]
    counts: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Place:
        """The elements of a tensor, as integers."""
        size = tensor.element_size()
        strides = tuple(stride * size for stride in tensor.stride())
        return cls(tensor.data_ptr(), np.dtype(f"i{size}"), tuple(tensor.shape), strides)

    def pieces(self, number: int) -> Iterator[Place]:
        """Up to so many parts of it along the first dimension, in order."""
        count, *others = self.counts
        length = max(-(-count // number), 1)
        for first in range(0, count, length):
            counts = min(length, count - first), *others
            yield Place(self.address + first * self.strides[0], self.dtype, counts, self.strides)

    def pointers(self) -> Array:
        """The address of every element."""
        return (self.address + affine_offsets(self.counts, self.strides)).view(np.uint64)


class Outside(Exception):
    """An address that is in no region."""

    def __init__(self, address: int) -> None:
        super().__init__(hex(address))
        self.address = address


class RegionMap:
    """The regions that one launch may touch."""

    def __init__(self, regions: Sequence[Region]) -> None:
        # Of regions that share a base the smallest comes last: the search goes backwards.
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
        """The region that is nearest to an address."""
        return min(self.regions, key=lambda r: max(r.base - address, address - r.end + 1, 0), default=None)

    def locate(self, pointers: Array, mask: Array | None, itemsize: int) -> list[Access]:
        """Where a tile of pointers falls: an access per region, none if nothing is selected; or `Outside`."""
        addresses = pointers.view(np.int64)
        if mask is not None and mask.all():
            mask = None
        if mask is not None:
            if not mask.any():
                return []
            mask = np.broadcast_to(mask, addresses.shape)
        access = self._affine(addresses, mask, itemsize)
        if access is not None:
            return [access]
        chosen = np.arange(addresses.size) if mask is None else np.nonzero(mask.reshape(-1))[0]
        return self._scattered(addresses.reshape(-1)[chosen], chosen, itemsize)

    def _affine(self, addresses: Array, mask: Array | None, itemsize: int) -> Access | None:
        """The one affine access that a tile is, None if it is not."""
        form, lanes = _affine_form(addresses, itemsize), None
        if form is None:
            return None
        start, counts, strides = form
        if mask is not None:
            lanes = _rectangle(mask)
            if lanes is None:
                return None
            start += sum(lane.start * stride for lane, stride in zip(lanes, strides, strict=True))
            counts = tuple(lane.stop - lane.start for lane in lanes)
        low = high = start
        for count, stride in zip(counts, strides, strict=True):
            if stride > 0:
                high += (count - 1) * stride
            else:
                low += (count - 1) * stride
        high += itemsize
        for region in self._spanning(low, high):
            access = Access(region, itemsize, low, high, start, counts, strides, lanes)
            if region.holds(access):
                return access
        return None

    def _scattered(self, addresses: Array, lanes: Array, itemsize: int) -> list[Access]:
        accesses = []
        while addresses.size:
            first = int(addresses[0])
            for region in self._spanning(first, first + itemsize):
                inside = region.contains(addresses, itemsize)
                if inside[0]:
                    break
            else:
                raise Outside(first)
            own, own_lanes = addresses[inside], lanes[inside]
            low, high = int(own.min()), int(own.max()) + itemsize
            accesses.append(Access(region, itemsize, low, high, low, own.shape, (itemsize,), own_lanes, own))
            addresses, lanes = addresses[~inside], lanes[~inside]
        return accesses


def _affine_form(addresses: Array, itemsize: int) -> tuple[int, tuple[int, ...], tuple[int, ...]] | None:
    """First address, counts and strides, if the addresses are an affine function of their index."""
    first = (0,) * addresses.ndim
    start = int(addresses[first])
    strides = []
    for dimension, count in enumerate(addresses.shape):
        second = (*first[:dimension], 1, *first[dimension + 1 :])
        strides.append(itemsize if count == 1 else int(addresses[second]) - start)
    form = start, addresses.shape, tuple(strides)
    if addresses.size == 1 or (addresses - start == affine_offsets(*form[1:])).all():
        return form
    return None


def _rectangle(mask: Array) -> tuple[slice, ...] | None:
    """The part of a tile that a mask selects, if that is a rectangle."""
    lanes = []
    for dimension in range(mask.ndim):
        others = tuple(d for d in range(mask.ndim) if d != dimension)
        (chosen,) = np.nonzero(mask.any(axis=others))
        lanes.append(slice(int(chosen[0]), int(chosen[-1]) + 1))
    return tuple(lanes) if prod(lane.stop - lane.start for lane in lanes) == np.count_nonzero(mask) else None


def bytes_at(address: int, size: int) -> Array:
    """Memory that the caller keeps alive."""
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
