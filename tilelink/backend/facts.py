"""Facts about sizes that the source of a kernel depends on. Everything else about sizes is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tilelink.frontend.ir import ALL_RANKS, RANKS_DIM, Copy, Range, Role, Tensor, TileProgram, every
from tilelink.frontend.kept import hashed_once, kept
from tilelink.frontend.sizes import Sizes, extents
from tilelink.frontend.values import ITEM_SIZE

COPY_CHUNK = 128
COPY_BLOCK = 2**15
"""The most elements that are copied at a time: 64 KB of bfloat16, which registers hold."""
COPY_LINES, LONGEST_CHUNK = 2**14, 1024
"""A copy of whole lines moves at most `COPY_LINES` elements at a time, at most `LONGEST_CHUNK` of each line: 32 KB of
bfloat16 are on their way at once, which leaves registers for addresses."""
BULK_LINE, BULK_BYTES = 128, 2**14
"""A bulk copy moves at least `BULK_LINE` bytes of a line at a time, because the TMA swizzles lines of this width in
shared memory. A block of few lines moves `BULK_BYTES` at a time."""
Lying = frozenset[tuple[str, int]]
"""Names of matrices and stacks of matrices, each with the dimension along which its elements are contiguous."""
DESCRIBED_BYTES = 16
"""Descriptors take addresses and strides that are multiples of this, and move at least this many bytes of a line."""
DESCRIBED_DIMS = (2, 3)
"""The number of dimensions that a descriptor takes: a matrix has 2; 3 are a matrix for each expert."""


@hashed_once
@dataclass(frozen=True)
class Facts:
    """Facts about sizes. `equal`: dimensions cut into parts of one length, whose beginnings are a product and need no
    table. `exact`: (dimension, block) where blocks leave no rest in the dimension, or in each of its parts, and need no
    mask. `described`: tensors that descriptors can describe, each with the dimension along which its elements are
    contiguous: 1 for a matrix by rows, 0 by columns, such as a weight of nn.Linear. `aligned`: for targets whose
    compiler can't choose between two pointers (AMD), and which choose between addresses as integers: the tensors at
    multiples of 16 bytes; None for other targets. Only `described`, and `aligned` with it, may differ between ranks;
    the source for other targets depends on neither. `peers`: ranks whose heaps have descriptors; 0
    if no role has `via="tma"`. `per_node`: ranks of a node, None if one node has all. `timed`: workers record when
    tiles and waits begin and end."""

    equal: frozenset[str]
    exact: frozenset[tuple[str, int]]
    described: frozenset[tuple[str, int]] = frozenset()
    aligned: frozenset[str] | None = None
    peers: int = 0
    per_node: int | None = None
    timed: bool = False

    def on(self, described: bool, *, bulk: bool, by_numbers: bool = False) -> Facts:
        """The facts where hosts make descriptors (`described`), or do not; `bulk`: also of the heaps of peers.
        `by_numbers`: where kernels choose between addresses as numbers."""
        kept = self.described if described else frozenset[tuple[str, int]]()
        aligned = frozenset(name for name, _ in self.described) if by_numbers else None
        return replace(self, described=kept, aligned=aligned, peers=self.peers if described and bulk else 0)

    @classmethod
    def of(cls, program: TileProgram, sizes: Sizes, lying: Lying | None = None, *, timed: bool = False) -> Facts:
        """The facts of a program at these sizes. `lying`: the caller's matrices that can be described. By default these
        are the matrices that can be described if all lie as they are declared."""
        blocks = _blocks(program)
        return cls(
            equal=frozenset(d for d in program.cut if sizes.equal(d)),
            exact=frozenset((d, n) for d, n in blocks if sizes.exact(d, n)),
            described=frozenset(d for t in program.tensors for d in _described(t, program, sizes, lying)),
            peers=sizes.world if any(by_tma(role) for role in program.in_kernel) else 0,
            per_node=sizes.per_node if sizes.per_node < sizes.world else None,
            timed=timed,
        )

    def __str__(self) -> str:
        equal = ", ".join(sorted(self.equal)) or "none"
        exact = ", ".join(f"{d} by {n}" for d, n in sorted(self.exact)) or "none"
        nodes = f"; nodes of {self.per_node}" if self.per_node else ""
        return f"parts of one length: {equal}; no rest: {exact}{nodes}{'; times are recorded' if self.timed else ''}"


def fills(r: Range, facts: Facts) -> bool:
    """Whether all elements of a block always exist, so that it needs no mask."""
    if r.extent == 1:
        return True
    if r.extent is None or r.bounded or (r.dim, r.extent) not in facts.exact:
        return False
    return r.inside is None or r.inside % r.extent == 0


def copied_chunks(ranges: Sequence[Range]) -> list[tuple[Range, int]]:
    """The ranges of a copy that have no tile size, or too large a one, in order, each with how much of it is copied at
    a time."""
    chunks: list[tuple[Range, int]] = []
    block = prod(r.extent or 1 for r in ranges)
    longest = ranges[-1].extent if ranges else None
    if longest and all(r.extent for r in ranges) and block > COPY_BLOCK:
        n = max(COPY_CHUNK, COPY_BLOCK * longest // block)
        return [(ranges[-1], n)] if n < longest else []
    if [r.extent is None for r in ranges] == [False, True]:
        return [(ranges[-1], max(COPY_CHUNK, min(LONGEST_CHUNK, COPY_LINES // block)))]
    for r in (r for r in reversed(ranges) if r.extent is None):
        n = COPY_CHUNK if not chunks or block * COPY_CHUNK <= COPY_BLOCK else 1
        chunks.append((r, n))
        block *= n
    return chunks[::-1]


def by_tma(role: Role) -> bool:
    """Whether the schedule asks for bulk copies."""
    return role.resource.via == "tma"


def bulk_chunk(tensor: Tensor, lines: Range, line: Range) -> int:
    """The elements of each line of a block that are copied in bulk at a time."""
    size = ITEM_SIZE[tensor.dtype]
    chunk = max(BULK_LINE, BULK_BYTES // (lines.extent or 1)) // size
    return min(chunk, line.extent or chunk)


def vector_of(tensor: Tensor) -> int | None:
    """The elements in 16 bytes of a tensor, which a multicast stores at once; None for elements that it can't pack into
    words: those wider than 4 bytes, and bool, whose blocks have one bit an element."""
    size = ITEM_SIZE[tensor.dtype]
    return 16 // size if size <= 4 and tensor.dtype != "bool" else None


@kept()
def _blocks(program: TileProgram) -> frozenset[tuple[str, int]]:
    """(dimension, elements) of every block that kernels load, store or copy at a time."""
    return frozenset(_copied_in_chunks(program) | _in_vectors(program)).union(*map(extents, program.in_kernel))


def _in_vectors(program: TileProgram) -> set[tuple[str, int]]:
    """(dimension, elements) of the rows that roles multicast, or load as a sum over all ranks."""
    roles = [r for r in program.in_kernel if r.resource.via == "multicast"]
    views = [v for r in roles for v in r.touched if v.home == ALL_RANKS]
    found = {program.tensor(v.tensor) for v in views}
    return {(t.dims[-1], n) for t in found if (n := vector_of(t)) is not None and t.dims[-1] != RANKS_DIM}


def _described(tensor: Tensor, program: TileProgram, sizes: Sizes, lying: Lying | None) -> Lying:
    """The tensor, with the dimension along which its elements are contiguous, if a descriptor can describe it."""
    contiguous = tensor.dims[tensor.contiguous]
    if len(tensor.dims) not in DESCRIBED_DIMS or contiguous == RANKS_DIM or tensor.buffers:
        return frozenset()
    if any(min(sizes.lengths(d)) == 0 for d in tensor.dims if d != RANKS_DIM):
        return frozenset()
    if lying is not None and tensor not in program.on_heap:
        return frozenset(found for found in lying if found[0] == tensor.name)
    line = max(sizes.lengths(contiguous)) * ITEM_SIZE[tensor.dtype]
    return frozenset([(tensor.name, tensor.contiguous)] if line % DESCRIBED_BYTES == 0 else [])


def _copied_in_chunks(program: TileProgram) -> set[tuple[str, int]]:
    """(dimension, elements) of each chunk that is published, or is copied without a tile size."""
    published = {(d, COPY_CHUNK) for name in program.published for d in program.tensor(name).dims}
    copies = [s for role in program.in_kernel for s in every(Copy, role.body)]
    whole = {(r.dim, n) for s in copies for r, n in copied_chunks(s.source.ranges)}
    by_line = [s.target for role in program.in_kernel if by_tma(role) for s in every(Copy, role.body)]
    lines = {
        (v.ranges[1].dim, bulk_chunk(program.tensor(v.tensor), *v.ranges)) for v in by_line if len(v.ranges) == 2
    }  # fmt: skip
    return {(d, n) for d, n in published | whole | lines if d != RANKS_DIM}
