"""Integer expressions: symbols for integers that are not negative, and functions that sympy lacks.

`//` and `%` of a tile function mean the same as in Python, also for negative numbers. `arithmetic.py` prints and
evaluates expressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import sympy
from sympy import Expr as Expr
from sympy.logic.boolalg import Boolean as Boolean

from tilelink.frontend.kept import kept

RANK = sympy.Symbol("rank:", integer=True, nonnegative=True)
WORLD = sympy.Symbol("world:", integer=True, positive=True)
PER_NODE = sympy.Symbol("per_node:", integer=True, positive=True)


@kept(1 << 14)
def symbol(key: str) -> sympy.Symbol:
    """The symbol of a key, for an integer that is not negative. Keys tell apart things with the same name. A program's
    own names have neither dots nor colons: `M` is the size of a dimension, `M.lo` is derived from it, `reader:axis` is
    a rank axis, `k:loop` is a loop variable, and `tile:` is a word of TileLink."""
    return _KNOWN.get(key) or sympy.Symbol(key, integer=True, nonnegative=True)


_KNOWN = {s.name: s for s in (RANK, WORLD, PER_NODE)}


def own(word: str) -> sympy.Symbol:
    """The symbol of one of TileLink's own words."""
    return symbol(f"{word}:")


def of_dim(dim: str, what: str) -> sympy.Symbol:
    """A symbol derived from a dimension, such as `M.tiles` or `M.lo`."""
    return symbol(f"{dim}.{what}")


def axis(name: str) -> sympy.Symbol:
    """The value of a rank axis of a tile space."""
    return symbol(f"{name}:axis")


def loop(name: str) -> sympy.Symbol:
    """The variable of a loop."""
    return symbol(f"{name}:loop")


def shown(key: str) -> str:
    """A key as a person reads it. Two keys may read the same."""
    return _KIND.sub("", key).replace(".", "_")


_KIND = re.compile(r":[a-z]*")


class _Integer(sympy.Function):
    """A function whose values are integers."""

    is_integer = True


class _Natural(_Integer):
    """A function whose values are integers and not negative."""

    is_nonnegative = True


class first_of(_Natural):  # noqa: N801 - reads as a function in printed expressions
    """first_of(D, p): where part p of dimension D begins; first_of(D, world) is the size of D."""

    nargs = 2

    @classmethod
    def eval(cls, dim: Expr, part: Expr) -> Expr | None:
        return sympy.S.Zero if part.is_zero else dim if part == WORLD else None


class part_of(_Natural):  # noqa: N801 - as above
    """part_of(D, i, n): which of the n parts of dimension D holds element i."""

    nargs = 3


class begin_of(_Natural):  # noqa: N801 - as above
    """begin_of(T, k): entry k of the running table T; see `tilelink.frontend.tables`."""

    nargs = 2


class segment_of(_Natural):  # noqa: N801 - as above
    """segment_of(T, v, k, n): which of n steps of the running table T, from entry k on, holds v; counted from k."""

    nargs = 4


def parts_of(dim: Any) -> str:
    """The key of the table that says where the parts of a dimension begin."""
    return f"{dim}.parts"


def running(table: Any) -> str:
    """The key of a running table."""
    return f"{table}.running"


class natural(_Natural):  # noqa: N801 - as above
    """natural(e): e, which is known not to be negative, though its form does not show it. `//` needs no correction."""

    nargs = 1

    @classmethod
    def eval(cls, e: Expr) -> Expr | None:
        return e if never_negative(e) else None


class floor(_Integer):  # noqa: N801 - sorted and printed like sympy's own
    """floor(a, b): a // b. Expressions hold no fractions, because sympy's assumptions about fractions are wrong (sympy
    1.14 takes 1 / (a + b) >= 1 for true of a, b >= 0 with a + b > 0)."""

    nargs = 2

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b.is_zero:
            return None
        above, below = _reduced(a, b)
        if above.is_Integer and below.is_Integer:
            return sympy.Integer(int(above) // int(below))
        exact = [t for t in sympy.Add.make_args(above) if below.is_Integer and t.as_coeff_Mul()[0] % below == 0]
        if exact:
            whole = sympy.Add(*exact)
            return whole / below + cls(above - whole, below)
        if below == 1:
            return above
        return None if (above, below) == (a, b) else sympy.Function.__new__(cls, above, below, evaluate=False)

    def _eval_is_nonnegative(self) -> bool | None:
        return True if all(map(never_negative, self.args)) else None


class Mod(_Integer):
    """Mod(a, b): a % b, as in Python. sympy's own Mod turns Mod(-n, 2 * n) into -n, and leaves fractions."""

    nargs = 2

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b.is_zero:
            return None
        above, below = _reduced(a, b)
        factor, rest = _reduced(b, below)
        if below == 1:
            return sympy.S.Zero
        if above.is_Integer and below.is_Integer:
            return sympy.Integer(int(above) % int(below)) * factor / rest
        if rest == 1 and factor != 1:
            return factor * cls(above, below)
        left = sympy.Add(*[_remainder(t, b) for t in sympy.Add.make_args(a)])
        if not b.is_Add and not never_negative(left) and 0 < -left.as_coeff_Add()[0] <= (least(b) or 0):
            left += b  # now not negative, if its other terms are not
        if left != a:
            return cls(left, b)
        if never_negative(a) and (least(b - a) or 0) > 0:
            return a
        if never_negative(-1 - a) and never_negative(a + b):
            return a + b
        return None

    def _eval_is_nonnegative(self) -> bool | None:
        return True if never_negative(self.args[1]) else None


def _reduced(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """a / b without common factors; the divisor is 1 where b divides a."""
    above, below = sympy.fraction(sympy.together(a / b))
    return above, below


def _remainder(term: Expr, b: Expr) -> Expr:
    """A term of a sum, or a simpler term with the same remainder modulo `b`."""
    factors = sympy.Mul.make_args(term)
    term = sympy.Mul(*[f.args[0] if isinstance(f, Mod) and _reduced(f.args[1], b)[1] == 1 else f for f in factors])
    above, below = _reduced(term, b)
    if below == 1:
        return sympy.S.Zero
    return b * (above % below) / below if above.is_Integer and below.is_Integer else term


class _Extreme(_Integer):
    """The smallest or the largest of its arguments. sympy's own Min and Max take milliseconds to compare two, and see
    no more. `decide`: whether all arguments, or any of them, must be positive for the result to be positive."""

    decide: Callable[[Iterable[bool | None]], bool]

    @classmethod
    def class_key(cls) -> tuple[int, int, str]:
        """The sort key in sums and products: the key of sympy's own Min and Max."""
        return 5, 0, cls.__name__

    @classmethod
    def eval(cls, *values: Expr) -> Expr | None:
        left: list[Expr] = []
        for value in (v for given in values for v in (given.args if isinstance(given, cls) else (given,))):
            if not any(cls._left_out(value, other) for other in left):
                left = [*(other for other in left if not cls._left_out(other, value)), value]
        if len(left) == 1:
            return left[0]
        made = tuple(sympy.ordered(left))
        return None if made == values else sympy.Function.__new__(cls, *made, evaluate=False)

    @classmethod
    def _left_out(cls, value: Expr, other: Expr) -> bool:
        """Whether `value` is never the result, because `other` is."""
        raise NotImplementedError

    def _eval_is_nonnegative(self) -> bool | None:
        return True if self.decide(a.is_nonnegative for a in self.args) else None

    def _eval_is_positive(self) -> bool | None:
        return True if self.decide(a.is_positive for a in self.args) else None


class Min(_Extreme):
    """Min(a, b, ...)"""

    decide = staticmethod(all)

    @classmethod
    def _left_out(cls, value: Expr, other: Expr) -> bool:
        return bool((value - other).is_nonnegative) or (isinstance(value, Max) and other in value.args)


class Max(_Extreme):
    """Max(a, b, ...)"""

    decide = staticmethod(any)

    @classmethod
    def _left_out(cls, value: Expr, other: Expr) -> bool:
        return bool((other - value).is_nonnegative) or (isinstance(value, Min) and other in value.args)


floor_div, modulo, smaller, larger = floor, Mod, Min, Max


def ceil_div(a: Any, b: Any) -> Expr:
    return sympy.sympify(a) if b == 1 else floor(sympy.sympify(a) + b - 1, b)


def without_fractions(e: Any) -> Any:
    """The result of a user's function, in our own functions. With symbols, Python's `//` and `%` make sympy's floor and
    Mod, and the user may take sympy's Min and Max."""
    if not isinstance(e, Expr):
        return e
    made = e.replace(sympy.floor, lambda of: floor_div(*sympy.fraction(sympy.together(of))))
    return made.replace(sympy.Mod, modulo).replace(sympy.Min, smaller).replace(sympy.Max, larger)


@kept(4096)
def with_values(e: Expr, known: frozenset[tuple[Expr, Expr]]) -> Expr:
    """The expression with symbols replaced. It is kept, because sympy simplifies all terms with these symbols again."""
    return e.xreplace(dict(known))


def node_of(rank: Any) -> Expr:
    """The node that a rank is on; a node has PER_NODE ranks."""
    return floor_div(rank, PER_NODE)


def place_of(rank: Any) -> Expr:
    """The place of a rank on its node, from 0 to PER_NODE - 1."""
    return modulo(rank, PER_NODE)


def rank_at(node: Any, place: Any) -> Expr:
    """The rank at a place of a node."""
    for rank in sympy.sympify(place).args[:1]:
        if node == node_of(rank) and place == place_of(rank):
            return rank
    return node * PER_NODE + place


def never_negative(e: Expr) -> bool:
    """Whether an expression is provably not negative (sympy itself gives up at floor)."""
    bound = least(e)
    return bound is not None and bound >= 0


def least(e: Expr) -> int | None:
    """A lower bound of an expression, or None if none is found."""
    bounds = [least(a) for a in e.args]
    known = [b for b in bounds if b is not None]
    match e:
        case sympy.Integer():
            return int(e)
        case sympy.Add():
            return sum(known) if known == bounds else None
        case sympy.Mul() | sympy.Pow():
            return int(e.func(*known)) if known == bounds and min(known) >= 0 else None
        case Min():
            return min(known) if known == bounds else None
        case Max():
            return max(known, default=None)
        case floor():
            return 0 if all(map(never_negative, e.args)) else None
        case Mod():
            return 0 if never_negative(e.args[1]) else None
    return 1 if e.is_positive else 0 if e.is_nonnegative else None


def whole(e: Expr) -> bool:
    """Whether an expression is provably an integer: without fractions and floats."""
    match e:
        case sympy.Number():
            return bool(e.is_Integer)
        case sympy.Pow():
            return bool(e.exp.is_Integer and e.exp >= 0) and whole(e.base)
    return all(map(whole, e.args))
