"""Facts about sizes that the source of a kernel depends on: everything else is an argument of the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilelink.frontend.ir import ALL_RANKS, RANKS_DIM, Copy, Range, Store, Tensor, TileProgram, walk
from tilelink.frontend.kept import hashed_once, kept
from tilelink.frontend.schedule import SMs
from tilelink.frontend.sizes import Sizes, extents
from tilelink.frontend.values import ITEM_SIZE

COPY_CHUNK = 128
COPY_BLOCK = 2**15
"""Elements that are copied at a time, at most, if a copy goes along several dimensions that have no tile size."""
DESCRIBED_BYTES = 16
"""Addresses and strides that a descriptor takes are multiples of this; it moves so much at least."""


@hashed_once
@dataclass(frozen=True)
class Facts:
    """`equal`: dimensions that are cut into parts of one length, whose beginnings are a product and need no table.
    `exact`: (dimension, block) where blocks leave no rest, in the dimension or in each of its parts: no masks.
    `described`: tensors whose rows are contiguous and begin at multiples of 16 bytes, as descriptors want it. Only this
    may differ from rank to rank; source for targets without descriptors does not depend on it. `timed`: workers record
    when tiles and waits begin and end."""

    equal: frozenset[str]
    exact: frozenset[tuple[str, int]]
    described: frozenset[str] = frozenset()
    timed: bool = False

    @classmethod
    def of(
        cls, program: TileProgram, sizes: Sizes, rows: frozenset[str] | None = None, *, timed: bool = False
    ) -> Facts:
        """Facts of a program at these sizes. `rows`: tensors of the caller that can be described, by default those that
        can be if all lie row by row."""
        blocks = _blocks(program)
        return cls(
            equal=frozenset(d for d in program.cut if sizes.equal(d)),
            exact=frozenset((d, n) for d, n in blocks if sizes.exact(d, n)),
            described=frozenset(t.name for t in program.tensors if _described(t, program, sizes, rows)),
            timed=timed,
        )

    def __str__(self) -> str:
        equal = ", ".join(sorted(self.equal)) or "none"
        exact = ", ".join(f"{d} by {n}" for d, n in sorted(self.exact)) or "none"
        return f"parts of one length: {equal}; no rest: {exact}{'; times are recorded' if self.timed else ''}"


def fills(r: Range, facts: Facts) -> bool:
    """Whether a block is always full, so that no mask is needed."""
    if r.extent == 1:
        return True
    if r.extent is None or r.bounded or (r.dim, r.extent) not in facts.exact:
        return False
    return r.inside is None or r.inside % r.extent == 0


def copied_chunks(ranges: Sequence[Range]) -> list[tuple[Range, int]]:
    """The ranges that a copy has no tile size for, in order, each with how much of it is copied at a time."""
    chunks: list[tuple[Range, int]] = []
    block = prod(r.extent or 1 for r in ranges)
    for r in (r for r in reversed(ranges) if r.extent is None):
        n = COPY_CHUNK if not chunks or block * COPY_CHUNK <= COPY_BLOCK else 1
        chunks.append((r, n))
        block *= n
    return chunks[::-1]


def vector_of(tensor: Tensor) -> int | None:
    """Elements of a tensor in 16 bytes, which a multicast stores at once; None where they are too wide."""
    size = ITEM_SIZE[tensor.dtype]
    return 16 // size if size <= 4 else None


@kept()
def _blocks(program: TileProgram) -> frozenset[tuple[str, int]]:
    """(dimension, elements) of all that kernels load, store or copy at a time."""
    chunks = {(d, COPY_CHUNK) for d in _copied_in_chunks(program)}
    return frozenset(chunks | _in_vectors(program)).union(*map(extents, program.in_kernel))


def _in_vectors(program: TileProgram) -> set[tuple[str, int]]:
    """(dimension, elements) of the rows that roles multicast."""
    roles = [r for r in program.in_kernel if isinstance(r.resource, SMs) and r.resource.via == "multicast"]
    stores = [s for r in roles for s in walk(r.body) if isinstance(s, Copy | Store) and s.target.home == ALL_RANKS]
    found = {program.tensor(s.target.tensor) for s in stores}
    return {(t.dims[-1], n) for t in found if (n := vector_of(t)) is not None and t.dims[-1] != RANKS_DIM}


def _described(tensor: Tensor, program: TileProgram, sizes: Sizes, rows: frozenset[str] | None) -> bool:
    if len(tensor.dims) != 2 or RANKS_DIM in tensor.dims or tensor.buffers:
        return False
    if any(min(sizes.lengths(d)) == 0 for d in tensor.dims):
        return False
    if rows is not None and tensor not in program.on_heap:
        return tensor.name in rows
    return max(sizes.lengths(tensor.dims[1])) * ITEM_SIZE[tensor.dtype] % DESCRIBED_BYTES == 0


def _copied_in_chunks(program: TileProgram) -> set[str]:
    """Dimensions along which something is published, or copied without a tile size."""
    published = {d for name in program.published for d in program.tensor(name).dims}
    copies = [s for role in program.in_kernel for s in walk(role.body) if isinstance(s, Copy)]
    whole = {r.dim for s in copies for r in s.source.ranges if r.extent is None}
    return (published | whole) - {RANKS_DIM}
