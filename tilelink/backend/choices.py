"""Branches that do the same at different places become one statement, at a place that is chosen:

    if home == rank:
        for k in steps: ... x[rows, k].load() ...         place = x if home == rank else full
    else:                                       becomes   for k in steps: ... place[rows, k].load() ...
        for k in steps: ... full[rows, k].load() ...

With a main loop, or a store of what it makes, in each branch, a step of the loop takes more registers and instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

import sympy

from tilelink.backend import pipelining
from tilelink.backend.addresses import heap_strides
from tilelink.frontend import ir
from tilelink.frontend.expressions import RANK, Boolean
from tilelink.frontend.ir import Range, TileProgram, View
from tilelink.frontend.views import Chosen


def with_choices(program: TileProgram) -> TileProgram:
    """The program with one main loop in place of two that differ only in the tensors of the own rank that they load,
    and with one store in place of two to buffers whose rows lie alike."""

    def changed(role: ir.Role) -> ir.Role:
        def is_main(loop: ir.Statement) -> bool:
            return pipelining.pipelined(loop, role, program)

        def product(s: ir.Statement) -> ir.Body:
            main = isinstance(s, ir.If) and all(map(is_main, ir.every(ir.For, s.orelse)))
            return (_one_body(s, program) if main and isinstance(s, ir.If) else ()) or (s,)

        def change(s: ir.Statement) -> ir.Body:
            match s:
                case ir.For() if is_main(s):
                    return (s.around(ir.rewritten(s.body, product)),)
                case ir.If() if s.orelse and all(map(is_main, s.orelse)):
                    return product(s)
                case ir.If(body=(ir.Store() as first, *rest), orelse=(ir.Store() as other, *others)):
                    if one := _one_store(s.condition, first, other, program):
                        return (*one, *([s.around(tuple(rest), tuple(others))] if rest or others else []))
            return (s,)

        return replace(role, body=ir.rewritten(role.body, change))

    return replace(program, roles=tuple(map(changed, program.roles)))


def _one_body(s: ir.If, program: TileProgram) -> ir.Body:
    """The statements of either branch, if both differ only in views that are loaded alike, and only loads of whole
    blocks read these, not copies or loads of some rows. Else ()."""
    pairs = dict[View, View]()
    otherwise = set[View]()
    for a, b in zip(ir.walk(s.body), ir.walk(s.orelse), strict=False):
        pairs |= {v: u for u, v in zip(a.read, b.read, strict=False) if u != v}
        otherwise |= {load.view for load in b.reads if load.where is not None or load not in b.loads}

    def reading(change: Callable[[View], View]) -> ir.Body:
        return ir.rewritten(s.orelse, lambda inner: (inner.reading(change),))

    alike = all(_loaded(u, program) == _loaded(v, program) != () for v, u in pairs.items())
    if not alike or otherwise & pairs.keys() or reading(lambda v: pairs.get(v, v)) != s.body:
        return ()
    return reading(lambda v: _chosen(s.condition, pairs[v], v) if v in pairs else v)


def _one_store(condition: Boolean, first: ir.Store, other: ir.Store, program: TileProgram) -> ir.Body:
    """One store for two of the same block to buffers whose rows lie alike; else ()."""
    if {first.target.home, RANK} == {*condition.args} and isinstance(condition, sympy.Eq):
        first = first.giving(lambda v: replace(v, home=RANK))  # in this branch the home is the own rank
    alike = _stored(first.target, program) == _stored(other.target, program) != ()
    if not alike or first.value != other.value or first.where is not None or other.where is not None:
        return ()
    return (replace(other, target=_chosen(condition, first.target, other.target)),)


def _loaded(view: View, program: TileProgram) -> tuple[Hashable, ...]:
    """What views have in common if one load can read either; () if none can."""
    own = view.home == RANK and not view.picked_by
    return (program.tensor(view.tensor).dtype, view.ranges) if own else ()


def _stored(view: View, program: TileProgram) -> tuple[Hashable, ...]:
    """What views have in common if one store can write either; () if none can."""
    tensor = program.tensor(view.tensor)
    steps = (n for n, i in zip(heap_strides(tensor), view.index, strict=True) if isinstance(i, Range))
    return (tensor.dtype, view.ranges, *steps) if tensor.kind == "buffer" and view.home == RANK else ()


def _chosen(condition: Boolean, first: View, other: View) -> Chosen:
    return Chosen(other.tensor, other.index, other.home, other.guard, condition=condition, first=first)
