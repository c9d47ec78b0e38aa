"""Whether an integer lies in a range, at all sizes and in all worlds: an argument by upper bounds of its terms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

import sympy

from tilelink.frontend.body import For
from tilelink.frontend.expressions import (
    PER_NODE,
    RANK,
    WORLD,
    Expr,
    Min,
    Mod,
    floor,
    floor_div,
    least,
    natural,
    never_negative,
    symbol,
)
from tilelink.frontend.ir import Walk

NODES = sympy.Symbol("nodes:", integer=True, positive=True)
"""The number of nodes. All have PER_NODE ranks."""
Ends = Mapping[Expr, frozenset[Expr]]
"""Symbols, each with integers that it is always less than."""


def ends_of(walk: Walk, loops: Iterable[For]) -> Ends:
    """The ends of what varies in a tile of a role: the executing rank, the rank axes, and the variables of `loops`. A
    variable of several loops has the ends that these loops share."""
    ends = {RANK: frozenset([WORLD])} | {symbol(name): frozenset([count]) for name, count in walk.axes}
    for s in loops:
        variable, stops = symbol(s.name), frozenset(s.stop.args if isinstance(s.stop, Min) else [s.stop])
        ends[variable] = ends.get(variable, stops) & stops
    return ends


def below(e: Expr, size: Expr, ends: Ends) -> bool:
    """Whether an integer is provably in [0, size)."""
    of_nodes = {WORLD: NODES * PER_NODE}
    ends = {s: frozenset(end.xreplace(of_nodes) for end in given) for s, given in ends.items()}
    e, size = sympy.expand(e.xreplace(of_nodes)), size.xreplace(of_nodes)
    low = never_negative(e) or any(_positive(1 - bound) for bound in _upper(-e, ends))
    return low and any(_positive(size - bound) for bound in _upper(e, ends))


def _upper(e: Expr, ends: Ends) -> set[Expr]:
    """Upper bounds of an expression; none if none is found."""
    if e in ends:
        return {bound for end in ends[e] for bound in _upper(end - 1, ends)}
    if e.is_Atom:
        return {e}
    factor, rest = e.as_coeff_Mul()
    if factor < 0:
        bound = least(rest)
        return {e} if bound is None else {e, factor * bound}
    of_args = [_upper(a, ends) for a in e.args]
    match e:
        case sympy.Add():
            return {sympy.Add(*bounds) for bounds in product(*of_args)}
        case sympy.Mul() if all(map(never_negative, e.args)):
            return {sympy.Mul(*bounds) for bounds in product(*of_args)}
        case Min() | natural():
            return set().union(*of_args)
        case Mod(args=(value, by)) if _positive(by):
            return _upper(by - 1, ends) | (of_args[0] if never_negative(value) else set())
        case floor(args=(value, by)) if _positive(by):  # a < n * b gives a // b < n
            found = {q - 1 if (q := floor_div(bound + 1, by)) * by == bound + 1 else q for bound in of_args[0]}
            return found | (of_args[0] if never_negative(value) else set())
    return {e}


def _positive(e: Expr) -> bool:
    """Whether an expression is provably positive. Each positive symbol is taken as 1 and a rest."""
    more = {s: 1 + symbol(f"{s.name}.more") for s in e.free_symbols if s.is_positive}
    return never_negative(sympy.expand(e.xreplace(more)) - 1)
