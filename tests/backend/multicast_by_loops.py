"""Portable primitives, and a multicast that is none: loops over three ranks, so that the interpreter runs what targets
with multicast get. `multicast` is the table of heaps, in which the entries of other nodes are negative."""

import triton
import triton.language as tl

from tilelink.backend.targets.portable import (
    RUN,
    SLOT_LEFT,
    credit,
    drain,
    enter,
    entered,
    last_out,
    leave,
    notify,
    peer,
    wait,
)

__all__ = [
    "RUN", "SLOT_LEFT", "credit", "drain", "enter", "entered", "last_out", "leave", "multicast_notify",
    "multicast_store", "multicast_sum", "notify", "peer", "wait",
]  # fmt: skip

WORLD = tl.constexpr(3)


@triton.jit
def _elements(offsets, here, width: tl.constexpr):
    """The elements of 16 bytes at each offset, along a dimension of their own, and which of them exist."""
    exists = (tl.zeros(offsets.shape, tl.int32) == 0) & here
    if len(offsets.shape) == 1:
        offsets = offsets[:, None] + tl.arange(0, width)[None, :]
        exists = tl.broadcast_to(exists[:, None], offsets.shape)
    else:
        offsets = offsets[:, :, None] + tl.arange(0, width)[None, None, :]
        exists = tl.broadcast_to(exists[:, :, None], offsets.shape)
    return offsets, exists


@triton.jit
def multicast_store(multicast, at, offsets, block, here):
    """16 bytes at each offset."""
    width: tl.constexpr = 128 // block.dtype.primitive_bitwidth
    offsets, exists = _elements(offsets, here, width)
    for other in range(WORLD):
        if tl.load(multicast + other) >= 0:
            tl.store(peer(multicast, other, at, block.dtype) + offsets, block.reshape(offsets.shape), mask=exists)


@triton.jit
def multicast_sum(multicast, at, offsets, here, dtype: tl.constexpr):
    """16 bytes at each offset, added up in float32."""
    width: tl.constexpr = 128 // dtype.primitive_bitwidth
    offsets, exists = _elements(offsets, here, width)
    total = tl.zeros(offsets.shape, tl.float32)
    for other in range(WORLD):
        if tl.load(multicast + other) >= 0:
            total += tl.load(peer(multicast, other, at, dtype) + offsets, mask=exists, other=0)
    shape: tl.constexpr = offsets.shape
    rows: tl.constexpr = shape[0] if len(shape) == 3 else 1
    total = total.to(dtype).reshape([rows, total.numel // rows])
    if len(shape) == 2:
        total = total.reshape([total.numel])
    return total


@triton.jit
def multicast_notify(multicast, at, cell):
    for other in range(WORLD):
        notify(peer(multicast, other, at, tl.int32) + cell, "sys")
