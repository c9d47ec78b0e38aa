"""Integers of tile functions at the sizes of a run: kernels compute them in 32 bits, where Python's have no end.

Bounds of an expression follow from the bounds of its terms (interval arithmetic). They may be wider than the values
that really occur, so a refused expression might be harmless; an accepted one is the same in a kernel as in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import sympy

from tilelink.errors import IntegerError
from tilelink.frontend.arithmetic import evaluate, to_text
from tilelink.frontend.expressions import (
    RANK,
    Max,
    Min,
    Mod,
    first_of,
    floor,
    natural,
    of_dim,
    part_of,
    symbol,
)
from tilelink.frontend.ir import For, If, Place, Role, TileProgram

if TYPE_CHECKING:
    from tilelink.frontend.sizes import Sizes

MAX_COUNT = 2**30
"""The most elements along a dimension, and the most tiles of a role on a rank. Kernels count both in 32 bits, to the
end of the last block."""
LARGEST = 2**31 - 1


class Bounds(NamedTuple):
    """The least and the largest value that an expression may have."""

    least: int
    largest: int


def check_integers(program: TileProgram, sizes: Sizes) -> None:
    """Raises IntegerError if an integer of a role, or a step on the way to it, may leave 32 bits at these sizes, and
    for a divisor that may be 0 or negative."""
    for role in program.roles:
        known = _known(role, sizes)
        for place, e in role.computed:
            inside = _inside(place, known)
            if inside is None:
                continue
            try:
                _Interval(inside).of(e)
            except _Wrong as wrong:
                at = ", ".join(f"{d}={n}" for d, n in sizes.dims)
                raise IntegerError(
                    f"{role.name}: {wrong} (at {at}, world={sizes.world})", place.statement.site
                ) from None


def _known(role: Role, sizes: Sizes) -> dict[str, Bounds]:
    """The bounds of the symbols of a role, by key, without its loops."""
    values = {name: value for name, value in sizes.values.items() if isinstance(value, int)}
    found = {name: Bounds(value, value) for name, value in values.items()}
    found[RANK.name] = Bounds(0, sizes.world - 1)
    for name, expression in role.walk.sizes:
        value = int(evaluate(expression, values))
        found[name] = Bounds(value, value)
    for name, expression in role.walk.axes:
        found[name] = Bounds(0, max(0, int(evaluate(expression, values)) - 1))
    inside = {of_dim(d, "lo").name: max(0, n - 1) for d, n in sizes.dims}
    for name, _ in role.walk.coordinates:
        found.setdefault(name, Bounds(0, inside.get(name, MAX_COUNT)))
    return found


def _inside(place: Place, known: Mapping[str, Bounds]) -> dict[str, Bounds] | None:
    """The bounds of symbols where a statement stands, inside its loops and branches; None if it is never reached."""
    found = dict(known)
    for s, number in place.outer:
        if isinstance(s, For):
            interval = _Interval(found)
            first, end = interval.of(s.start), interval.of(s.stop)
            found[symbol(s.name).name] = Bounds(first.least, max(first.least, end.largest - 1))
        elif isinstance(s, If):
            holds = sympy.Not(s.condition) if number else s.condition
            for condition in sympy.And.make_args(holds):
                _narrow(found, condition)
    return None if any(b.least > b.largest for b in found.values()) else found


def _narrow(found: dict[str, Bounds], condition: sympy.Basic) -> None:
    """Narrows the bounds of a symbol that a condition compares with a number."""
    if not isinstance(condition, sympy.core.relational.Relational):
        return
    condition = condition.reversed if condition.lhs.is_Integer else condition
    if not (isinstance(condition.lhs, sympy.Symbol) and condition.rhs.is_Integer):
        return
    name, n = condition.lhs.name, int(condition.rhs)
    least, largest = found.get(name, Bounds(0, MAX_COUNT))
    match condition:
        case sympy.StrictGreaterThan():
            least = max(least, n + 1)
        case sympy.GreaterThan():
            least = max(least, n)
        case sympy.StrictLessThan():
            largest = min(largest, n - 1)
        case sympy.LessThan():
            largest = min(largest, n)
        case sympy.Equality():
            least, largest = max(least, n), min(largest, n)
        case sympy.Unequality():
            least, largest = least + (n == least), largest - (n == largest)
    found[name] = Bounds(least, largest)


class _Wrong(Exception):
    """What is wrong with an expression."""


class _Interval:
    """Bounds of expressions, by those of symbols. Raises _Wrong."""

    def __init__(self, known: Mapping[str, Bounds]) -> None:
        self.known = known

    def of(self, e: sympy.Basic) -> Bounds:
        """The bounds of an expression."""
        terms = [self.of(a) for a in e.args]
        match e:
            case sympy.Integer():
                return Bounds(int(e), int(e))
            case sympy.Symbol():
                return self.known.get(e.name, Bounds(0, MAX_COUNT))
            case sympy.Add():
                steps = Bounds(sum(min(0, t.least) for t in terms), sum(max(0, t.largest) for t in terms))
                return self._fitting(e, Bounds(sum(t.least for t in terms), sum(t.largest for t in terms)), steps)
            case sympy.Mul():
                return self._product(e, terms)
            case sympy.Pow():
                return self._product(e, terms[:1] * int(e.exp))
            case floor():
                above, below = terms[0], self._positive(terms[1], e.args[1])
                ends = [a // b for a in above for b in below]
                steps = Bounds(above.least - below.largest if above.least < 0 else 0, above.largest)
                return self._fitting(e, Bounds(min(ends), max(ends)), steps)
            case Mod():
                above, below = terms[0], self._positive(terms[1], e.args[1])
                signed = above.least < 0
                largest = below.largest - 1 if signed else min(above.largest, below.largest - 1)
                return self._fitting(e, Bounds(0, largest), Bounds(0, 2 * below.largest if signed else 0))
            case Min():
                return Bounds(min(t.least for t in terms), min(t.largest for t in terms))
            case Max():
                return Bounds(max(t.least for t in terms), max(t.largest for t in terms))
            case natural():
                return Bounds(max(0, terms[0].least), max(0, terms[0].largest))
            case first_of():
                return Bounds(0, terms[0].largest)
            case part_of():
                return Bounds(0, max(0, terms[2].largest - 1))
        return Bounds(0, MAX_COUNT)  # an entry of a running table, or a condition

    def _product(self, e: sympy.Basic, factors: list[Bounds]) -> Bounds:
        ends = [1]
        for factor in factors:
            ends = [a * b for a in (min(ends), max(ends)) for b in factor]
        most = prod(max(1, abs(f.least), abs(f.largest)) for f in factors)
        return self._fitting(e, Bounds(min(ends), max(ends)), Bounds(-most if min(ends) < 0 else 0, most))

    def _positive(self, divisor: Bounds, e: sympy.Basic) -> Bounds:
        if divisor.least < 1:
            may = "0 or negative" if divisor.least < 0 else "0"
            raise _Wrong(f"the divisor {to_text(e)} may be {may}; max(1, ...) makes it positive")
        return divisor

    def _fitting(self, e: sympy.Basic, found: Bounds, steps: Bounds) -> Bounds:
        """The bounds that were found. `steps`: of what a kernel computes on the way, in any order of the terms."""
        least, largest = min(found.least, steps.least), max(found.largest, steps.largest)
        if least < -LARGEST - 1 or largest > LARGEST:
            extreme = f"large as {largest}" if largest > LARGEST else f"small as {least}"
            raise _Wrong(
                f"{to_text(e)} may be as {extreme}, and kernels compute integers in 32 bits, up to {LARGEST}: use "
                "smaller terms, for example by // or % before a product"
            )
        return found
