"""Bulk copies, for roles with `via="tma"`: the chip's copy engine for tiles (TMA) loads blocks into shared memory, and
stores them from there.

A copy is a pipelined loop over pieces of lines. Triton makes a ring in shared memory of it, in which as many blocks are
on their way as the schedule has stages. A notification first waits until the stores of the engine are complete: the
thread that began them waits for their end (PTX ISA, cp.async.bulk.wait_group).

Hosts make descriptors, so a kernel takes one for the heap of each rank, and chooses. Copies that no descriptor
describes go through registers, as all copies do on chips without this engine: lines that are not multiples of 16 bytes,
rows that integers pick, tiles without a number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from tilelink.backend import pipelining
from tilelink.backend.copies import with_range
from tilelink.backend.facts import Facts, bulk_chunk, by_tma
from tilelink.backend.pipelining import DescribedBlock
from tilelink.backend.targets import Target
from tilelink.frontend import ir
from tilelink.frontend.cells import recipient
from tilelink.frontend.expressions import RANK, Expr, of_dim, smaller, symbol
from tilelink.frontend.ir import ALL_RANKS, Range, Role, TileProgram, View, Write
from tilelink.frontend.kept import kept
from tilelink.frontend.schedule import SMs
from tilelink.frontend.values import ITEM_SIZE

MOST_LINES = 256
"""The most lines of a block that one instruction of the engine moves."""
WIDEST = 4
"""The widest element that Triton describes, in bytes."""
MOST_BYTES = 2**16
"""The largest block that the engine stores from registers, in bytes: others need shared memory, too."""


@dataclass(frozen=True)
class Piece:
    """A view, and the block of it that a descriptor moves, in the rank's own tensor or in a peer's."""

    view: View
    block: DescribedBlock


@dataclass(frozen=True)
class Lines:
    """The pieces of lines that a copy goes through: `at` goes from `start` to `stop` in steps."""

    at: Expr
    start: Expr
    stop: Expr
    step: int


@dataclass(frozen=True)
class Bulk:
    """A write that the engine does. `source` and `lines` belong to a copy, and are None for a store from registers."""

    target: Piece
    source: Piece | None = None
    lines: Lines | None = None

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return (self.target,) if self.source is None else (self.source, self.target)


def in_bulk(s: Write, role: Role, program: TileProgram, facts: Facts) -> Bulk | None:
    """How the engine does a write; None if it does not."""
    if not facts.peers or not by_tma(role) or s.where is not None:
        return None
    if isinstance(s, ir.Copy):
        return _copy(s.source, s.target, program, facts)
    stored = _piece(s.target, program, facts)
    return None if stored is None or bulk_bytes(Bulk(stored), program) > MOST_BYTES else Bulk(stored)


def _copy(source: View, target: View, program: TileProgram, facts: Facts) -> Bulk | None:
    if len(source.ranges) != 2 or len(target.ranges) != 2:
        return None
    (rows, line), to = source.ranges, target.ranges[1]
    if rows.extent is None or rows.extent > MOST_LINES or line.dim != to.dim:
        return None
    at, step = of_dim(line.dim, "at"), bulk_chunk(program.tensor(target.tensor), rows, line)
    along = replace(line, start=at, stop=smaller(at + step, line.limit), extent=step, whole=False)
    read, stored = (_piece(with_range(v, v.ranges[1], along), program, facts) for v in (source, target))
    if read is None or stored is None or read.block.matrix != stored.block.matrix:
        return None
    return Bulk(stored, read, Lines(at, line.start, line.stop, step))


def _piece(view: View, program: TileProgram, facts: Facts) -> Piece | None:
    dtype = program.tensor(view.tensor).dtype
    if ITEM_SIZE[dtype] > WIDEST or dtype == "bool" or len(view.places) > 1:
        return None
    block = pipelining.block_of(view, program, facts, of_peers=True)
    return None if block is None or block.turned or block.matrix[0] > MOST_LINES else Piece(view, block)


@kept()
def bulk_writes(role: Role, program: TileProgram, facts: Facts) -> tuple[tuple[Write, Bulk], ...]:
    """The writes of a role that the engine does, each with how it does them."""
    found = ((s, in_bulk(s, role, program, facts)) for s in ir.every(Write, role.body))
    return tuple((s, bulk) for s, bulk in found if bulk is not None)


def stored_by_threads(program: TileProgram) -> TileProgram:
    """The program for the portable form, in which threads store products. (Stores by the engine would add 12
    instructions to a step of the main loop, and threads would wait for the engine to read a tile. Compiled only.)"""
    return replace(program, roles=tuple(by_threads(r) if r.multiplies else r for r in program.roles))


def by_threads(role: Role) -> Role:
    """The role without any use of the engine."""
    return replace(role, resource=replace(role.resource, via="load-store")) if by_tma(role) else role  # type: ignore[arg-type]


def descriptors(program: TileProgram, facts: Facts) -> Iterator[tuple[DescribedBlock, bool]]:
    """Yields every descriptor that the roles may ask for, and whether there is one for each rank."""
    found = {(block, False): None for block in pipelining.blocks(program, facts)}
    for role in program.in_kernel:
        for piece in (p for _, bulk in bulk_writes(role, program, facts) for p in bulk.pieces):
            found[replace(piece.block, turned=False, ends=None), piece.view.home != RANK] = None
    yield from found


@dataclass(frozen=True)
class Unsettled:
    """Where stores of the engine may be under way that no notification has waited for: at these waits of a role, and
    `behind` its last tile."""

    waits: frozenset[str]
    behind: bool


def unsettled(role: Role, program: TileProgram, facts: Facts) -> Unsettled:
    """Where a kernel has to wait until the engine's stores for a role are complete. A wait orders everything that a
    worker does itself. But the engine orders two stores of the same bytes only if the first is complete. And a rank may
    leave a run only when all its stores to heaps are complete."""
    by_engine = {s for s, _ in bulk_writes(role, program, facts)}
    again, waits = _stored_again(role), set[str]()

    def through(body: ir.Body, begun: frozenset[str]) -> frozenset[str]:
        """The tensors that the engine may still be storing to behind a body. `begun`: the tensors before the body."""
        for s in body:
            match s:
                case ir.Write():
                    begun |= {s.target.tensor} if s in by_engine else set()
                case ir.Notify(late=False) if all(_is_given(v, program) for v in s.views):
                    begun = frozenset()
                case ir.Wait() if begun & again:
                    waits.add(s.name)
                    begun = frozenset()
                case ir.For():
                    begun |= through(s.body, through(s.body, begun))
                case ir.If() | ir.DataIf():
                    begun = through(s.body, begun) | through(s.orelse, begun)
        return begun

    behind = through(role.body, through(role.body, frozenset()))
    return Unsettled(frozenset(waits), any(t.name in behind for t in program.on_heap))


def _stored_again(role: Role) -> frozenset[str]:
    """The tensors whose bytes a worker may store twice: by two statements, in a loop, or in two tiles."""
    found, again = set[str](), set[str]()
    for place in ir.places(role.body):
        if isinstance(s := place.statement, ir.Write):
            once = not place.loops and s.target.tensor not in found and _of_one_tile(s.target, role)
            again |= set() if once else {s.target.tensor}
            found.add(s.target.tensor)
    return frozenset(again)


def _of_one_tile(view: View, role: Role) -> bool:
    """Whether a view is of one tile only: its place depends on all ranges and rank axes of a tile."""
    numbers = [n for i in view.index for n in ((i.start, i.part) if isinstance(i, Range) else (i,))]
    named = {n for e in (*numbers, view.home) if isinstance(e, Expr) for n in e.free_symbols}
    needed = {n for r in role.walk.ranges for n in r.start.free_symbols} | {symbol(n) for n, _ in role.walk.axes}
    return needed <= named


def _is_given(view: View, program: TileProgram) -> bool:
    """Whether a notification of a view always reaches a rank, whichever ranks wait."""
    if view.home == ALL_RANKS:
        return True
    assert isinstance(view.home, Expr)
    return recipient(program.signals_of(view.tensor), view, view.home)[0] is not None


def fenced(role: Role, program: TileProgram, facts: Facts) -> frozenset[str]:
    """The waits of a role that guard memory which the engine reads, or stores over."""
    if bulk_writes(role, program, facts):
        return frozenset(s.name for s in ir.every(ir.Wait, role.body))
    return read_by_tma(role, program, facts)


def read_by_tma(role: Role, program: TileProgram, facts: Facts) -> frozenset[str]:
    """The waits of a role that guard loads by descriptors."""
    loads = (load for loop in pipelining.main_loops(role, program) for load in pipelining.loads_of(loop))
    described = (v for v in (load.view for load in loads) if pipelining.block_of(v, program, facts) is not None)
    return frozenset(v.guard for v in (*described, *_copied(role, program, facts)) if v.guard)


def reads_peers(role: Role, program: TileProgram, facts: Facts) -> bool:
    """Whether the engine reads tensors that peers have published."""
    return any(v.remote and v.tensor in program.published for v in _copied(role, program, facts))


def _copied(role: Role, program: TileProgram, facts: Facts) -> Iterator[View]:
    """The views that the engine copies from."""
    return (bulk.source.view for _, bulk in bulk_writes(role, program, facts) if bulk.source)


def stages(bulk: Bulk, role: Role, program: TileProgram, target: Target) -> int:
    """Blocks of the ring of a copy: as many as the schedule says and shared memory holds."""
    assert isinstance(role.resource, SMs)
    return max(1, min(role.resource.stages, (target.shared_bytes or 0) // bulk_bytes(bulk, program)))


def bulk_bytes(bulk: Bulk, program: TileProgram) -> int:
    """Bytes of a block."""
    return prod(bulk.target.block.shape) * ITEM_SIZE[program.tensor(bulk.target.view.tensor).dtype]
