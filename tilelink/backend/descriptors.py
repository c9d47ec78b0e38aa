"""Which loads go through tensor descriptors, which the host makes and a chip's copy engine for tiles (TMA) reads.

A descriptor knows a tensor's end and nothing else: blocks that end earlier, such as at the end of a rank's part, are
loaded through pointers, and so is whatever lies with a peer. Only loads of loops that are pipelined are worth one; any
other would take shared memory for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.backend.facts import DESCRIBED_BYTES, Facts, fills
from tilelink.backend.pipelining import pipelined, statements_of
from tilelink.frontend.expressions import RANK, first_of, symbol
from tilelink.frontend.ir import For, Range, TileProgram, View, walk
from tilelink.frontend.values import ITEM_SIZE


def blocks(program: TileProgram, facts: Facts) -> Iterator[tuple[str, tuple[int, int]]]:
    """(tensor, block) of every descriptor that the roles may ask for."""
    found: dict[tuple[str, tuple[int, int]], None] = {}
    for role in program.in_kernel:
        for loop in (s for s in walk(role.body) if pipelined(s, role, program)):
            assert isinstance(loop, For)
            for s in statements_of(loop.body):
                for view in (load.view for load in s.loads):
                    if block := block_of(view, program, facts):
                        found[view.tensor, block] = None
    yield from found


def block_of(view: View, program: TileProgram, facts: Facts) -> tuple[int, int] | None:
    """The block of a view that a descriptor of its tensor can load, None where none can."""
    if view.tensor not in facts.described or view.home != RANK:
        return None
    tensor = program.tensor(view.tensor)
    extents = [i.extent for i in view.index if isinstance(i, Range) and i.extent is not None]
    if len(extents) != 2 or extents[1] * ITEM_SIZE[tensor.dtype] < DESCRIBED_BYTES:
        return None
    for k, i in enumerate(view.index):
        assert isinstance(i, Range)
        size = symbol(i.dim)
        end = first_of(size, RANK + 1) if k == tensor.sharded else size
        if not fills(i, facts) and i.limit != end:
            return None
    return extents[0], extents[1]
