"""Where in the regions of a launch an access falls: tiles of pointers as accesses to one region each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import prod

import numpy as np

from tilelink.emulator.memory import Access, Array, Region, affine_offsets


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
        if addresses.size == 1:
            if mask is not None and not mask.all():
                return []
            address = int(addresses.reshape(-1)[0])
            counts = addresses.shape
            strides = (itemsize,) * len(counts)
            return self._affine(address, address + itemsize, address, counts, strides, None, addresses, itemsize)
        found = _affine_form(addresses, itemsize)
        lanes: tuple[slice, ...] | None = None
        if mask is not None and not mask.all():
            if not mask.any():
                return []
            mask = np.broadcast_to(mask, addresses.shape)
            lanes = _rectangle(mask) if found is not None else None
            if lanes is None:
                (chosen,) = np.nonzero(mask.reshape(-1))
                return self._scattered(addresses, chosen, itemsize)
        if found is None:
            return self._scattered(addresses, np.arange(addresses.size), itemsize)
        start, counts, strides = found
        if lanes is not None:
            start += sum(lane.start * stride for lane, stride in zip(lanes, strides, strict=True))
            counts = tuple(lane.stop - lane.start for lane in lanes)
        low = high = start
        for count, stride in zip(counts, strides, strict=True):
            if stride > 0:
                high += (count - 1) * stride
            else:
                low += (count - 1) * stride
        return self._affine(low, high + itemsize, start, counts, strides, lanes, addresses, itemsize)

    def _affine(
        self,
        low: int,
        high: int,
        start: int,
        counts: tuple[int, ...],
        strides: tuple[int, ...],
        lanes: tuple[slice, ...] | None,
        tile: Array,
        itemsize: int,
    ) -> list[Access]:
        for region in self._spanning(low, high):
            access = Access(region, itemsize, low, high, start, counts, strides, lanes)
            if region.holds(access):
                return [access]
        chosen = np.arange(tile.size).reshape(tile.shape)
        return self._scattered(tile, (chosen if lanes is None else chosen[lanes]).reshape(-1), itemsize)

    def _scattered(self, tile: Array, lanes: Array, itemsize: int) -> list[Access]:
        addresses, accesses = tile.reshape(-1)[lanes], []
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
    start = int(addresses[(0,) * addresses.ndim])
    strides = []
    for dimension, count in enumerate(addresses.shape):
        if count == 1:
            strides.append(itemsize)
        else:
            strides.append(int(addresses[(0,) * dimension + (1,) + (0,) * (addresses.ndim - dimension - 1)]) - start)
    form = start, addresses.shape, tuple(strides)
    return form if bool((addresses - start == affine_offsets(*form[1:])).all()) else None


def _rectangle(mask: Array) -> tuple[slice, ...] | None:
    """The part of a tile that a mask selects, if that is a rectangle."""
    lanes = []
    for dimension in range(mask.ndim):
        others = tuple(d for d in range(mask.ndim) if d != dimension)
        (chosen,) = np.nonzero(mask.any(axis=others))
        lanes.append(slice(int(chosen[0]), int(chosen[-1]) + 1))
    return tuple(lanes) if prod(lane.stop - lane.start for lane in lanes) == np.count_nonzero(mask) else None
