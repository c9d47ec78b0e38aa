"""Integer expressions: sympy in, arithmetic of Triton or numpy out.

All symbols are integers and not negative. `//` and `%` of a tile function mean what they mean in Python, also for
negative numbers; Triton's truncate, so the printer emits the corrected form unless the sign is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import sympy
from sympy import Expr as Expr
from sympy.printing.str import StrPrinter

from tilelink.frontend.kept import kept

RANK = sympy.Symbol("rank:", integer=True, nonnegative=True)
WORLD = sympy.Symbol("world:", integer=True, positive=True)
PER_NODE = sympy.Symbol("per_node:", integer=True, positive=True)


def symbol(key: str) -> sympy.Symbol:
    """The integer, not negative, of a key, which tells apart what has one name. A program's own names have neither dots
    nor colons: `M` is the size of a dimension, `M.lo` is made of it, `reader:axis` is a rank axis, `k:loop` the
    variable of a loop, and `tile:` a word of TileLink's."""
    return _KNOWN.get(key) or sympy.Symbol(key, integer=True, nonnegative=True)


_KNOWN = {s.name: s for s in (RANK, WORLD, PER_NODE)}


def own(word: str) -> sympy.Symbol:
    """An integer that TileLink itself has a word for."""
    return symbol(f"{word}:")


def of_dim(dim: str, what: str) -> sympy.Symbol:
    """What is made of a dimension: of M the `tiles`, the `lo` of a tile."""
    return symbol(f"{dim}.{what}")


def axis(name: str) -> sympy.Symbol:
    """The value of a rank axis of a tile space."""
    return symbol(f"{name}:axis")


def loop(name: str) -> sympy.Symbol:
    """The variable of a loop."""
    return symbol(f"{name}:loop")


def shown(key: str) -> str:
    """What a key is called where a person reads it; two keys may be called alike."""
    return _KIND.sub("", key).replace(".", "_")


_KIND = re.compile(r":[a-z]*")


class _Integer(sympy.Function):
    """A function whose values are integers."""

    def _eval_is_integer(self) -> bool:
        return True


class _Natural(_Integer):
    """A function whose values are integers and not negative."""

    def _eval_is_nonnegative(self) -> bool:
        return True


class first_of(_Natural):  # noqa: N801 - reads as a function in printed expressions
    """first_of(D, p): where part p of dimension D begins; first_of(D, world) is the size of D."""

    nargs = 2

    @classmethod
    def eval(cls, dim: Expr, part: Expr) -> Expr | None:
        return sympy.S.Zero if part.is_zero else dim if part == WORLD else None


class begin_of(_Natural):  # noqa: N801 - as above
    """begin_of(D, p): where segment p of a routed dimension D begins; see `tilelink.frontend.routes`."""

    nargs = 2

    @classmethod
    def eval(cls, dim: Expr, segment: Expr) -> Expr | None:
        return sympy.S.Zero if segment.is_zero else None


class segment_of(_Natural):  # noqa: N801 - as above
    """segment_of(D, row, p, n): which of the n segments of D from number p on holds the row, counted from p."""

    nargs = 4


def parts_of(dim: Any) -> str:
    """The key of the table of where the parts of a dimension begin."""
    return f"{dim}.parts"


def segments_of(dim: Any) -> str:
    """The key of the table of where the segments of a routed dimension begin."""
    return f"{dim}.segments"


class natural(_Natural):  # noqa: N801 - as above
    """natural(e): e, which is known not to be negative though it can't be seen, so that `//` needs no correction."""

    nargs = 1

    @classmethod
    def eval(cls, e: Expr) -> Expr | None:
        return e if never_negative(e) else None


class floor(_Integer):  # noqa: N801 - sorted and printed like sympy's own
    """floor(a, b): a // b. Expressions hold no fractions: sympy's assumptions about them are wrong (1.14 takes
    1 / (a + b) >= 1 for true of a, b >= 0 with a + b > 0)."""

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
    """Mod(a, b): a % b, as in Python. sympy's own makes Mod(-n, 2 * n) to -n, and leaves fractions."""

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
        if not b.is_Add and 0 < -left.as_coeff_Add()[0] <= (least(b) or 0):
            left += b  # which is not negative then, if the rest is not
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
    """A term of a sum of which the remainder is taken, or a simpler one with the same remainder."""
    factors = sympy.Mul.make_args(term)
    term = sympy.Mul(*[f.args[0] if isinstance(f, Mod) and _reduced(f.args[1], b)[1] == 1 else f for f in factors])
    if _reduced(term, b)[1] == 1:
        return sympy.S.Zero
    if term.is_Integer and b.is_Integer:
        return term % b
    return term


def floor_div(a: Any, b: Any) -> Expr:
    return floor(sympy.sympify(a), sympy.sympify(b))


def modulo(a: Any, b: Any) -> Expr:
    return Mod(sympy.sympify(a), sympy.sympify(b))


def ceil_div(a: Any, b: Any) -> Expr:
    a, b = sympy.sympify(a), sympy.sympify(b)
    return a if b == 1 else floor(a + b - 1, b)


def without_fractions(e: Any) -> Any:
    """What a user's function made of symbols with Python's `//` and `%`, which are sympy's, in ours."""
    if not isinstance(e, Expr):
        return e
    made = e.replace(sympy.floor, lambda of: floor_div(*sympy.fraction(sympy.together(of))))
    return made.replace(sympy.Mod, modulo)


@kept(4096)
def smaller(a: Any, b: Any) -> Expr:
    """The smaller of two. Kept: sympy factors their difference to tell which it may be."""
    return sympy.Min(a, b)


@kept(4096)
def larger(a: Any, b: Any) -> Expr:
    """The larger of two."""
    return sympy.Max(a, b)


@kept(4096)
def with_values(e: Expr, known: frozenset[tuple[Expr, Expr]]) -> Expr:
    """An expression with symbols replaced. Kept: what has them in it is compared anew."""
    return e.xreplace(dict(known))


def node_of(rank: Any) -> Expr:
    """The node that a rank is on; a node has PER_NODE ranks."""
    return floor_div(rank, PER_NODE)


def place_of(rank: Any) -> Expr:
    """Which of the ranks of its node a rank is."""
    return modulo(rank, PER_NODE)


def rank_at(node: Any, place: Any) -> Expr:
    """The rank at a place of a node."""
    for rank in sympy.sympify(place).args[:1]:
        if node == node_of(rank) and place == place_of(rank):
            return rank
    return node * PER_NODE + place


def never_negative(e: Expr) -> bool:
    """Whether an expression can be seen not to be negative (sympy itself gives up at floor)."""
    bound = least(e)
    return bound is not None and bound >= 0


def least(e: Expr) -> int | None:
    """A number that an expression is never below, where one can be seen."""
    bounds = [least(a) for a in e.args]
    known = [b for b in bounds if b is not None]
    match e:
        case sympy.Integer():
            return int(e)
        case sympy.Add():
            return sum(known) if known == bounds else None
        case sympy.Mul() | sympy.Pow():
            return int(e.func(*known)) if known == bounds and min(known) >= 0 else None
        case sympy.Min():
            return min(known) if known == bounds else None
        case sympy.Max():
            return max(known, default=None)
        case floor():
            return 0 if all(map(never_negative, e.args)) else None
        case Mod():
            return 0 if never_negative(e.args[1]) else None
    return 1 if e.is_positive else 0 if e.is_nonnegative else None


def whole(e: Expr) -> bool:
    """Whether an expression can be seen to be an integer: without fractions and floats."""
    match e:
        case sympy.Number():
            return bool(e.is_Integer)
        case sympy.Pow():
            return bool(e.exp.is_Integer and e.exp >= 0) and whole(e.base)
    return all(map(whole, e.args))


def _enclosed(text: str) -> bool:
    """Whether one pair of parentheses holds the whole text."""
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and k < len(text) - 1:
            return False
    return text.startswith("(")


def _bare(text: str) -> str:
    return text[1:-1] if _enclosed(text) else text


class _Printer(StrPrinter):
    """Prints integer expressions as source text. `templates`: of functions, by their names in sympy; `name`: what
    symbols are called there; `table`: what tables are."""

    def __init__(
        self, templates: Mapping[str, str], name: Callable[[str], str] = str, table: Callable[[str], str] = str
    ) -> None:
        super().__init__()
        self.templates, self.name, self.table = templates, name, table

    def _atom(self, e: Expr) -> str:
        text = str(self._print(e))
        return text if e.is_Atom or _enclosed(text) else f"({text})"

    def parenthesize(self, item: Expr, level: int, strict: bool = False) -> str:
        text = str(self._print(item))
        return text if _enclosed(text) else str(super().parenthesize(item, level, strict))

    def _print_Symbol(self, e: sympy.Symbol) -> str:
        return self.name(e.name)

    def _print_floor(self, e: Expr) -> str:
        above, below = e.args
        a, b = self._atom(above), self._atom(below)
        if never_negative(above) and never_negative(below):
            return f"({a} // {b})"
        return f"(({a} - ({a} % {b} + {b}) % {b}) // {b})"

    def _print_Pow(self, e: Expr, rational: bool = False) -> str:
        """A power of an integer as a product: Triton has no `**`."""
        base, exponent = e.as_base_exp()
        assert exponent.is_Integer and exponent > 0, e
        return f"({' * '.join([self._atom(base)] * int(exponent))})"

    def _print_Mod(self, e: Expr) -> str:
        assert isinstance(e, Mod), e
        a, b = self._atom(e.args[0]), self._atom(e.args[1])
        return f"({a} % {b})" if all(map(never_negative, e.args)) else f"(({a} % {b} + {b}) % {b})"

    def _print_Min(self, e: Expr) -> str:
        first, *rest = sorted(e.args, key=str)
        text = str(self._print(first))
        for a in rest:
            text = self.templates[type(e).__name__].format(text, self._print(a))
        return text

    def _print_Max(self, e: Expr) -> str:
        return self._print_Min(e)

    def _print_first_of(self, e: Expr) -> str:
        table = (parts_of if isinstance(e, first_of) else segments_of)(e.args[0])
        return self.templates[type(e).__name__].format(self.table(table), *map(self._print, e.args[1:]))

    _print_begin_of = _print_segment_of = _print_first_of

    def _print_natural(self, e: Expr) -> str:
        text = self._atom(e.args[0])
        return text if _enclosed(text) or e.args[0].is_Atom else f"({text})"

    def _print_Relational(self, e: Expr) -> str:
        return f"({self._print(e.lhs)} {e.rel_op} {self._print(e.rhs)})"

    def _print_And(self, e: Expr) -> str:
        return f"({(' & ' if isinstance(e, sympy.And) else ' | ').join(map(self._print, sorted(e.args, key=str)))})"

    def _print_Or(self, e: Expr) -> str:
        return self._print_And(e)

    def _print_Not(self, e: Expr) -> str:
        return f"({self._print(e.args[0])} == 0)"


_TRITON = {
    "Min": "tl.minimum({}, {})", "Max": "tl.maximum({}, {})", "first_of": "tl.load({} + {})",
    "begin_of": "tl.load({} + {})", "segment_of": "segment_of({}, {}, {}, {})",
}  # fmt: skip
_NUMPY = _Printer({
    "Min": "np.minimum({}, {})", "Max": "np.maximum({}, {})", "first_of": "{}[{}]", "begin_of": "{}[{}]",
    "segment_of": "(np.searchsorted({0}, {1}, 'right') - 1 - ({2}))",
}, *["values[{!r}]".format] * 2)  # fmt: skip
_PLAIN = _Printer({
    "Min": "min({}, {})", "Max": "max({}, {})", "first_of": "first_of({}, {})", "begin_of": "begin_of({}, {})",
    "segment_of": "segment_of({}, {}, {}, {})",
}, shown, lambda table: table.rpartition(".")[0])  # fmt: skip


def to_triton(e: Any, name: Callable[[str], str] = shown) -> str:
    """The expression in the arithmetic of a Triton kernel. `name`: what symbols and tables are called, by key."""
    return _bare(str(_Printer(_TRITON, name, name).doprint(sympy.sympify(e))))


def to_text(e: Any) -> str:
    """The expression for a person."""
    return _bare(str(_PLAIN.doprint(sympy.sympify(e))))


def evaluate(e: Any, values: Mapping[str, Any]) -> Any:
    """The expression's value, elementwise over numpy arrays in `values` (by keys of symbols and tables)."""
    if isinstance(e, int | np.ndarray):
        return e
    return _compiled(e)(values)


@kept(1 << 14)
def _compiled(e: Any) -> Callable[[Mapping[str, Any]], Any]:
    """An expression as a function of Python."""
    made: Callable[[Mapping[str, Any]], Any] = eval(f"lambda values: {_NUMPY.doprint(sympy.sympify(e))}", {"np": np})
    return made
