"""Decides which loops are pipelined, in how many stages, and which of their loads go through tensor descriptors.

Loads of a pipelined loop are carried ahead of their iterations. A loop over the steps of a dot is pipelined, unless it
waits or notifies: Triton's pipeliner would read ahead of its waits.

The host makes descriptors, and a chip's copy engine for tiles (TMA) reads them. A descriptor knows a tensor's end.
Blocks of a matrix whose lines end earlier, such as at the end of an expert's rows, need a descriptor with two more
dimensions, which tells the hardware where they end (`ROOM`). Memory of a peer is loaded through pointers. Only loads of
pipelined loops use descriptors: other loads would take shared memory and gain nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import sympy

from tilelink.backend.facts import DESCRIBED_BYTES, Facts, fills
from tilelink.backend.targets import Target
from tilelink.errors import TileSizeError
from tilelink.frontend import ir
from tilelink.frontend.expressions import PER_NODE, RANK, WORLD, Expr, Mod, first_of, symbol
from tilelink.frontend.ir import For, Load, Range, Role, Statement, Tensor, TileProgram, View, walk
from tilelink.frontend.values import ITEM_SIZE
from tilelink.frontend.views import Chosen

ROOM = 2**30
"""Lines that a descriptor of blocks that end early has room for, more than any tensor has. A block of lines from
`first` on that end at `end` is loaded at (ROOM, end, ROOM - end + first). Lines from ROOM on do not exist, so zeros
come. Both further dimensions step over lines. The stride of the first is 2**64 / ROOM less one line, so both lead back
to `first` in arithmetic of 64 bits. Triton's tools/ragged_tma.py does the same for rows of experts."""
WORD, FAR = 4, 2
"""Bytes of a register; and how many times an SM's registers a sum may take (it compiles slowly, and spills)."""


def pipelined(s: Statement, role: Role, program: TileProgram) -> bool:
    """Whether a statement is a loop that is pipelined."""
    return isinstance(s, For) and has_dot(s) and not any(synchronises(i, role, program) for i in walk(s.body))


def main_loops(role: Role, program: TileProgram) -> Iterator[For]:
    """The loops of a role that are pipelined."""
    return (loop for loop in ir.every(For, role.body) if pipelined(loop, role, program))


def has_dot(loop: For) -> bool:
    """Whether a loop steps over a dot. (Triton pipelines every such loop, unless it is told not to.)"""
    return any(isinstance(s, ir.Compute) and s.code.dots for s in statements_of(loop.body))


def shares_sum(loop: For) -> bool:
    """Whether several dots of a loop add to one sum: a dot reads the result of another."""
    dots = [s for s in statements_of(loop.body) if isinstance(s, ir.Compute) and s.code.dots]
    for k, s in enumerate(dots):
        read = {h.name for h in s.code.holes if isinstance(h, ir.Variable)}
        others = {name for j, other in enumerate(dots) if j != k for name in other.targets}
        if read & others or (len(s.code.dots) > 1 and read & {*s.targets}):
            return True
    return False


def synchronises(s: Statement, role: Role, program: TileProgram) -> bool:
    """Whether a statement waits or notifies."""
    return isinstance(s, ir.Wait | ir.Notify) or any(enters(v, role, program) for v in s.touched)


def enters(view: View, role: Role, program: TileProgram) -> bool:
    """Whether a read waits for the entry of the view's owner where it stands: if the owner changes inside a tile, or if
    the read is in a branch or a loop, and only there its home is a rank (`rank + 1` is none on the last)."""
    if view.tensor not in program.published or not isinstance(view.home, Expr):
        return False
    fixed = {symbol(n) for n, _ in role.walk.coordinates} | {RANK, WORLD, PER_NODE}
    if not view.home.free_symbols <= fixed:
        return True
    ranks = {RANK, *(symbol(n) for n, _ in role.walk.axes), *(home for _, home in role.walk.homes)}
    wrapped = isinstance(view.home, Mod) and view.home.args[1] == WORLD
    inside = (place.statement for place in ir.places(role.body) if place.outer)
    return not (view.home in ranks or wrapped) and any(view in s.touched for s in inside)


def stages(loop: For, role: Role, program: TileProgram, target: Target, wanted: int) -> int:
    """As many stages as are wanted and shared memory holds; 1 if the loop is not pipelined, or if several dots add to
    one sum and the target's compiler reads that too early (`one_dot_a_sum`)."""
    if not pipelined(loop, role, program) or (target.one_dot_a_sum and shares_sum(loop)):
        return 1
    views = (load.view for load in loads_of(loop))
    stage = sum(prod(n or 1 for n in v.shape) * ITEM_SIZE[program.tensor(v.tensor).dtype] for v in views)
    memory = target.shared_bytes
    if memory is None or not stage:
        return wanted
    return max(1, min(wanted, memory // stage + target.stages_in_registers))


def check_fits(program: TileProgram, target: Target) -> None:
    """Raises TileSizeError for tiles that never compile well, some not within minutes: if the operands of a step of a
    dot do not fit into shared memory, or if a sum takes more than `FAR` times an SM's registers."""
    for role in program.in_kernel:
        loads = [load.view for s in walk(role.body) for load in s.loads]
        item = min((ITEM_SIZE[program.tensor(v.tensor).dtype] for v in loads), default=1)
        for m, n, k in {dots for s in walk(role.body) for code in s.codes for dots in code.dots}:
            read, ahead = (m + n) * k * item, 1 + target.stages_in_registers
            needs = [
                (f"sums of {m} x {n}", "registers", m * n * WORD, WORD * (target.registers or 0), FAR),
                (f"operands of {m} x {k} and {k} x {n}", "shared memory", read, target.shared_bytes, ahead),
            ]
            for what, where, needed, there, times in needs:
                if there and needed > times * there:
                    raise TileSizeError(
                        f"{role.name}: {what} take {needed} bytes of {where}, and {target.name} has {there} for a "
                        f"worker; the tile is {role.resource.tile}: make it smaller",
                        role.site,
                    ).because_of("the schedule", program.schedule_site)


def statements_of(body: ir.Body) -> Iterator[Statement]:
    """The statements of a loop, without statements of loops inside it."""
    return (place.statement for place in ir.places(body) if not place.loops)


def loads_of(loop: For) -> Iterator[Load]:
    """The blocks that a step of a loop reads, without blocks of loops inside it."""
    return (load for s in statements_of(loop.body) for load in s.loads)


# ---- descriptors -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DescribedBlock:
    """A block of a tensor that a descriptor moves. `shape`: its shape in the order of memory, the contiguous dimension
    last. `matrix`: its lines and columns; all other dimensions are 1. `turned`: the contiguous range is the first of
    the view's two, so the block has to be transposed. `ends`: the range of its lines, if they may end before the tensor
    does."""

    tensor: str
    contiguous: str
    shape: tuple[int, ...]
    matrix: tuple[int, ...]
    turned: bool
    ends: Range | None = None


def blocks(program: TileProgram, facts: Facts) -> Iterator[DescribedBlock]:
    """Every descriptor that the main loops of roles may ask for."""
    loops = (loop for role in program.in_kernel for loop in main_loops(role, program))
    views = (load.view for loop in loops for load in loads_of(loop) if load.where is None)
    places = (place for view in views if block_of(view, program, facts) for place in view.places)
    found = (block_of(place, program, facts) for place in places)
    return iter(dict.fromkeys(replace(block, turned=False, ends=None) for block in found if block is not None))


def block_of(view: View, program: TileProgram, facts: Facts, *, of_peers: bool = False) -> DescribedBlock | None:
    """The block of a view that a descriptor of its tensor can load or store; None if no descriptor can. `of_peers`: the
    view may have any one rank as its home; without it, only the own rank. A view in one of two places has a block if
    those of both lie alike in shared memory."""
    if isinstance(view, Chosen):
        first, other = (block_of(v, program, facts) for v in view.places)
        if first is None or other is None:
            return None
        return other if replace(first, tensor="", ends=None) == replace(other, tensor="", ends=None) else None
    contiguous = dict(facts.described).get(view.tensor)
    here = isinstance(view.home, Expr) if of_peers else view.home == RANK
    if contiguous is None or not here or view.picked_by:
        return None
    tensor = program.tensor(view.tensor)
    ranges = {k: i for k, i in enumerate(view.index) if isinstance(i, Range)}
    extents = {k: i.extent for k, i in ranges.items() if i.extent is not None}
    if len(ranges) != 2 or len(extents) != 2:
        return None
    if extents.get(contiguous, 0) * ITEM_SIZE[tensor.dtype] < DESCRIBED_BYTES:
        return None
    early = [k for k, i in ranges.items() if not fills(i, facts) and i.limit != _end(tensor, k, i, view.home)]
    lies = [*(k for k in range(len(tensor.dims)) if k != contiguous), contiguous]
    if early and (early != lies[:-1] or ranges[early[0]].limit.has(sympy.oo)):
        return None
    shape = tuple(extents.get(k, 1) for k in lies)
    return DescribedBlock(
        tensor.name, tensor.dims[contiguous], (1, 1, *shape) if early else shape,
        tuple(extents[k] for k in lies if k in extents), contiguous == min(ranges), ranges[early[0]] if early else None,
    )  # fmt: skip


def _end(tensor: Tensor, k: int, r: Range, rank: Expr | str | None) -> Expr:
    """Where a tensor ends on a rank along one of its dimensions."""
    size = symbol(r.dim)
    return first_of(size, rank + 1) if k == tensor.sharded and isinstance(rank, Expr) else size
