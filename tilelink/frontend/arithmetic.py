"""Integer expressions as text: in Triton's or numpy's arithmetic, or for a person.

Triton's `//` and `%` truncate, so the printer writes the corrected form unless the sign is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import sympy
from sympy.printing.str import StrPrinter

from tilelink.frontend.expressions import Expr, Mod, first_of, never_negative, part_of, parts_of, running, shown
from tilelink.frontend.kept import kept


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
    """Prints integer expressions as source text. `templates`: how functions are written, by their names in sympy.
    `name`, `table`: what symbols and tables are called in the text."""

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
        a, b = map(self._atom, e.args)
        return f"({a} // {b})" if all(map(never_negative, e.args)) else f"(({a} - ({a} % {b} + {b}) % {b}) // {b})"

    def _print_Pow(self, e: Expr, rational: bool = False) -> str:
        """A power of an integer as a product: Triton has no `**`."""
        base, exponent = e.as_base_exp()
        assert exponent.is_Integer and exponent > 0, e
        return f"({' * '.join([self._atom(base)] * int(exponent))})"

    def _print_Mod(self, e: Expr) -> str:
        assert isinstance(e, Mod), e
        a, b = map(self._atom, e.args)
        return f"({a} % {b})" if all(map(never_negative, e.args)) else f"(({a} % {b} + {b}) % {b})"

    def _print_Min(self, e: Expr) -> str:
        return reduce(self.templates[type(e).__name__].format, map(self._print, sorted(e.args, key=str)))

    def _print_Max(self, e: Expr) -> str:
        return self._print_Min(e)

    def _print_first_of(self, e: Expr) -> str:
        table = (parts_of if isinstance(e, first_of | part_of) else running)(e.args[0])
        return self.templates[type(e).__name__].format(self.table(table), *map(self._print, e.args[1:]))

    _print_begin_of = _print_segment_of = _print_part_of = _print_first_of

    def _print_natural(self, e: Expr) -> str:
        return self._atom(e.args[0])

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
    "begin_of": "tl.load({} + {})", "segment_of": "segment_of({}, {}, {}, {})", "part_of": "segment_of({}, {}, 0, {})",
}  # fmt: skip
_NUMPY = _Printer({
    "Min": "np.minimum({}, {})", "Max": "np.maximum({}, {})", "begin_of": "{}[{}]",
    "first_of": "np.take({}, {}, mode='clip')",  # clip: unrolling refuses a part beyond the last
    "segment_of": "segment_of({}, {}, {}, {})", "part_of": "segment_of({}, {}, 0, {})",
}, *["values[{!r}]".format] * 2)  # fmt: skip
_PLAIN = _Printer({
    "Min": "min({}, {})", "Max": "max({}, {})", "first_of": "first_of({}, {})", "begin_of": "begin_of({}, {})",
    "segment_of": "segment_of({}, {}, {}, {})", "part_of": "part_of({}, {}, {})",
}, shown, lambda table: table.rpartition(".")[0])  # fmt: skip


def to_triton(e: Any, name: Callable[[str], str] = shown) -> str:
    """The expression in the arithmetic of a Triton kernel. `name`: what symbols and tables are called there, by key."""
    text, keys = _with_holes(sympy.sympify(e))
    return text.format(*map(name, keys))


def to_text(e: Any) -> str:
    """The expression as text for a person."""
    return _plain(sympy.sympify(e))


@kept(1 << 14)
def _with_holes(e: Any) -> tuple[str, tuple[str, ...]]:
    """The expression as `to_triton` prints it, with holes for names, and the keys of the names in the order of the
    holes. (It is kept because sympy takes milliseconds to print a sum.)"""
    keys: list[str] = []

    def hole(key: str) -> str:
        keys.append(key)
        return f"{{{len(keys) - 1}}}"

    return _bare(str(_Printer(_TRITON, hole, hole).doprint(e))), tuple(keys)


@kept(1 << 14)
def _plain(e: Any) -> str:
    return _bare(str(_PLAIN.doprint(e)))


def evaluate(e: Any, values: Mapping[str, Any]) -> Any:
    """The expression's value, elementwise over numpy arrays in `values` (by keys of symbols and tables)."""
    if isinstance(e, int | np.ndarray):
        return e
    return _compiled(e)(values)


def _segment_of(table: np.ndarray, value: Any, first: Any, count: Any) -> np.ndarray:
    """`targets.shared.segment_of` for arrays."""
    value, first, count = np.broadcast_arrays(value, first, count)
    found = np.zeros(value.shape, np.int64)
    for k, n in {*zip(first.ravel().tolist(), count.ravel().tolist(), strict=True)}:
        here = (first == k) & (count == n)
        found[here] = np.searchsorted(table[k + 1 : k + n], value[here], "right")
    return found


_KNOWN = {"np": np, "segment_of": _segment_of}


@kept(1 << 14)
def _compiled(e: Any) -> Callable[[Mapping[str, Any]], Any]:
    """An expression, compiled to a Python function of values by key."""
    made: Callable[[Mapping[str, Any]], Any] = eval(f"lambda values: {_NUMPY.doprint(sympy.sympify(e))}", _KNOWN)
    return made
