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
    "multicast_store", "notify", "peer", "wait",
]  # fmt: skip

WORLD = tl.constexpr(3)


@triton.jit
def multicast_store(multicast, at, offsets, block, here):
    """16 bytes at each offset."""
    width: tl.constexpr = 128 // block.dtype.primitive_bitwidth
    exists = (tl.zeros(offsets.shape, tl.int32) == 0) & here
    if len(offsets.shape) == 1:
        vectors = block.reshape([offsets.shape[0], width])
        offsets = offsets[:, None] + tl.arange(0, width)[None, :]
        exists = exists[:, None]
    else:
        vectors = block.reshape([offsets.shape[0], offsets.shape[1], width])
        offsets = offsets[:, :, None] + tl.arange(0, width)[None, None, :]
        exists = exists[:, :, None]
    exists = tl.broadcast_to(exists, vectors.shape)
    for other in range(WORLD):
        if tl.load(multicast + other) >= 0:
            tl.store(peer(multicast, other, at, block.dtype) + offsets, vectors, mask=exists)


@triton.jit
def multicast_notify(multicast, at, cell):
    for other in range(WORLD):
        notify(peer(multicast, other, at, tl.int32) + cell, "sys")
