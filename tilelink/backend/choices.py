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
from typing import Any

import sympy

from tilelink.backend import pipelining
from tilelink.backend.addresses import heap_strides
from tilelink.frontend import ir
from tilelink.frontend.expressions import RANK
from tilelink.frontend.ir import Range, TileProgram, View
from tilelink.frontend.views import Chosen

Lies = Callable[[View], Hashable]
"""What two views have in common if their blocks lie alike; None for a view whose block does not lie as is asked."""


def with_choices(program: TileProgram) -> TileProgram:
    """The program with products and stores outside of such branches: main loops that load the same ranges of tensors
    of the own rank, and stores to buffers in which rows lie alike."""

    def loaded(view: View) -> Hashable:
        own = view.home == RANK and not view.picked_by
        return (program.tensor(view.tensor).dtype, view.ranges) if own else None

    def stored(view: View) -> Hashable:
        tensor = program.tensor(view.tensor)
        steps = (n for n, i in zip(heap_strides(tensor), view.index, strict=True) if isinstance(i, Range))
        return (tensor.dtype, view.ranges, *steps) if tensor.kind == "buffer" and view.home == RANK else None

    def changed(role: ir.Role) -> ir.Role:
        def product(s: ir.Statement) -> ir.Body:
            if not isinstance(s, ir.If):
                return (s,)
            main = all(pipelining.pipelined(loop, role, program) for loop in ir.every(ir.For, s.orelse))
            return (_one_body(s, loaded) if main else ()) or (s,)

        def change(s: ir.Statement) -> ir.Body:
            match s:
                case ir.For() if pipelining.pipelined(s, role, program):
                    return (s.around(ir.rewritten(s.body, product)),)
                case ir.If() if s.orelse and all(pipelining.pipelined(loop, role, program) for loop in s.orelse):
                    return product(s)
                case ir.If(body=(ir.Store() as first, *rest), orelse=(ir.Store() as other, *others)):
                    if one := _one_store(s.condition, first, other, stored):
                        return (*one, *([s.around(tuple(rest), tuple(others))] if rest or others else []))
            return (s,)

        return replace(role, body=ir.rewritten(role.body, change))

    return replace(program, roles=tuple(map(changed, program.roles)))


def _one_body(s: ir.If, lies: Lies) -> ir.Body:
    """The statements of either branch, if both differ only in views that lie alike, and only loads of whole blocks read
    these, not copies or loads of some rows. Else ()."""
    pairs = dict[View, View]()
    otherwise = set[View]()
    for a, b in zip(ir.walk(s.body), ir.walk(s.orelse), strict=False):
        pairs |= {v: u for u, v in zip(a.read, b.read, strict=False) if u != v}
        otherwise |= {load.view for load in b.reads if load.where is not None or load not in b.loads}

    def reading(change: Callable[[View], View]) -> ir.Body:
        return ir.rewritten(s.orelse, lambda inner: (inner.reading(change),))

    alike = all(lies(u) == lies(v) is not None for v, u in pairs.items())
    if not alike or otherwise & pairs.keys() or reading(lambda v: pairs.get(v, v)) != s.body:
        return ()
    return reading(lambda v: _chosen(s.condition, pairs[v], v) if v in pairs else v)


def _one_store(condition: Any, first: ir.Store, other: ir.Store, lies: Lies) -> ir.Body:
    """One store for two of the same block that lie alike; else ()."""
    if {first.target.home, RANK} == {*condition.args} and isinstance(condition, sympy.Eq):
        first = first.giving(lambda v: replace(v, home=RANK))
    alike = lies(first.target) == lies(other.target) is not None
    if not alike or first.value != other.value or first.where is not None or other.where is not None:
        return ()
    return (replace(other, target=_chosen(condition, first.target, other.target)),)


def _chosen(condition: Any, first: View, other: View) -> Chosen:
    return Chosen(other.tensor, other.index, other.home, other.guard, condition=condition, first=first)
