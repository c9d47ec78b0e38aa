"""Which loops are pipelined, that is, whose loads are carried ahead of their iterations, and in how many stages.

A loop over the steps of a dot is, unless it waits or notifies: Triton's pipeliner would read ahead of its waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilelink.backend.targets import Target
from tilelink.errors import TileSizeError
from tilelink.frontend.expressions import PER_NODE, RANK, WORLD, Expr, symbol
from tilelink.frontend.ir import (
    Compute,
    DataIf,
    For,
    If,
    Notify,
    Role,
    Statement,
    TileProgram,
    Variable,
    View,
    Wait,
    walk,
)
from tilelink.frontend.values import ITEM_SIZE

WORD, FAR = 4, 2
"""Bytes of a register; sums of so many times the registers of an SM can be compiled, if slowly, and spill."""


def pipelined(s: Statement, role: Role, program: TileProgram) -> bool:
    """Whether a statement is a loop that is pipelined."""
    return isinstance(s, For) and has_dot(s) and not any(synchronises(i, role, program) for i in walk(s.body))


def has_dot(loop: For) -> bool:
    """Whether a loop steps over a dot. (Triton pipelines such a loop, if it is not told not to.)"""
    return any(isinstance(s, Compute) and s.code.dots for s in statements_of(loop.body))


def shares_sum(loop: For) -> bool:
    """Whether several dots of a loop add to one sum: one reads what another has made."""
    dots = [s for s in statements_of(loop.body) if isinstance(s, Compute) and s.code.dots]
    for k, s in enumerate(dots):
        read = {h.name for h in s.code.holes if isinstance(h, Variable)}
        others = {name for j, other in enumerate(dots) if j != k for name in other.targets}
        if read & others or (len(s.code.dots) > 1 and read & {*s.targets}):
            return True
    return False


def synchronises(s: Statement, role: Role, program: TileProgram) -> bool:
    """Whether a statement waits or notifies."""
    return isinstance(s, Wait | Notify) or any(enters(v, role, program) for v in s.touched)


def enters(view: View, role: Role, program: TileProgram) -> bool:
    """Whether a read of the view waits for its owner's entry where it stands: its owner changes inside a tile."""
    if view.tensor not in program.published or not isinstance(view.home, Expr):
        return False
    fixed = {symbol(n) for n, _ in role.walk.coordinates} | {RANK, WORLD, PER_NODE}
    return not view.home.free_symbols <= fixed


def stages(loop: For, role: Role, program: TileProgram, target: Target, wanted: int) -> int:
    """As many stages as are wanted, and the target has shared memory for; 1 where the loop is not pipelined, or where
    the target's compiler reads a sum before the last of several dots into it is done."""
    if not pipelined(loop, role, program) or (target.one_dot_a_sum and shares_sum(loop)):
        return 1
    views = [load.view for s in statements_of(loop.body) for load in s.loads]
    stage = sum(prod(n or 1 for n in v.shape) * ITEM_SIZE[program.tensor(v.tensor).dtype] for v in views)
    memory = target.shared_bytes
    if memory is None or not stage:
        return wanted
    return max(1, min(wanted, memory // stage + target.stages_in_registers))


def check_fits(program: TileProgram, target: Target) -> None:
    """Raises TileSizeError for tiles that are never compiled well, some not within minutes: a step of a dot whose
    operands do not fit into shared memory, or a sum that takes more than `FAR` times an SM's registers."""
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


def statements_of(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """The statements of a loop, without those of loops inside it."""
    for s in body:
        yield s
        if isinstance(s, If | DataIf):
            yield from statements_of((*s.body, *s.orelse))
