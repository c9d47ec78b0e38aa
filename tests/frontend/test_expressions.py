"""Integer expressions mean in kernels and in numpy what they mean in Python, for negative numbers too."""

from __future__ import annotations

import ast
import contextlib
import itertools
import operator
import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.parameters import random_tries, some_of
from tilelink.frontend.arithmetic import evaluate, to_text, to_triton
from tilelink.frontend.expressions import (
    RANK,
    WORLD,
    Expr,
    ceil_div,
    first_of,
    floor_div,
    larger,
    least,
    modulo,
    natural,
    never_negative,
    parts_of,
    smaller,
    symbol,
)

WORDS = {"rank": RANK, "world": WORLD}
NAMES = ["a", "b", "n", *WORDS]
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: floor_div, ast.Mod: modulo,
    ast.Pow: operator.pow,
}  # fmt: skip

COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: sympy.Lt, ast.LtE: sympy.Le, ast.Gt: sympy.Gt, ast.GtE: sympy.Ge, ast.Eq: sympy.Eq, ast.NotEq: sympy.Ne,
}  # fmt: skip


def named(name: str) -> Expr:
    """The symbol that a source text means by a name."""
    return WORDS.get(name) or symbol(name)


def valued(e: Any, values: Mapping[str, Any]) -> Any:
    """The value of an expression, of values by name."""
    return evaluate(e, {named(n).name: v for n, v in values.items()})


class Truncating:
    """An integer of a kernel: `//` and `%` truncate, as in C."""

    def __init__(self, value: int) -> None:
        self.value = int(value)

    def __int__(self) -> int:
        return self.value

    def __neg__(self) -> Truncating:
        return Truncating(-self.value)


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _both_ways(function: Callable[[int, int], int]) -> tuple[Any, Any]:
    def method(self: Truncating, other: Any) -> Truncating:
        return Truncating(function(int(self), int(other)))

    def reflected(self: Truncating, other: Any) -> Truncating:
        return Truncating(function(int(other), int(self)))

    return method, reflected


Truncating.__add__, Truncating.__radd__ = _both_ways(operator.add)
Truncating.__sub__, Truncating.__rsub__ = _both_ways(operator.sub)
Truncating.__mul__, Truncating.__rmul__ = _both_ways(operator.mul)
Truncating.__pow__, Truncating.__rpow__ = _both_ways(operator.pow)
Truncating.__floordiv__, Truncating.__rfloordiv__ = _both_ways(_quotient)
Truncating.__mod__, Truncating.__rmod__ = _both_ways(lambda a, b: a - b * _quotient(a, b))

KERNEL = SimpleNamespace(
    minimum=lambda a, b: Truncating(min(int(a), int(b))), maximum=lambda a, b: Truncating(max(int(a), int(b)))
)


def in_kernel(e: Expr, values: dict[str, int]) -> int:
    """The expression as a kernel computes it."""
    known = {n: Truncating(v) for n, v in values.items()}
    return int(eval(to_triton(e), {"tl": KERNEL}, known))


def elaborated(text: str) -> Expr | None:
    """What becomes of the source of an expression; None for one that is refused (a divisor may be 0 or negative)."""

    def made(node: ast.expr) -> Expr:
        match node:
            case ast.Constant():
                return sympy.Integer(node.value)
            case ast.UnaryOp(op=ast.USub()):
                return -made(node.operand)
            case ast.Name():
                return named(node.id)
            case ast.UnaryOp(op=ast.Not()):
                return sympy.Not(made(node.operand))
            case ast.BoolOp():
                return (sympy.And if isinstance(node.op, ast.And) else sympy.Or)(*map(made, node.values))
            case ast.Compare(ops=[compared]):
                return COMPARISONS[type(compared)](made(node.left), made(node.comparators[0]))
            case ast.Call(func=ast.Name(id=name)):
                return (smaller if name == "min" else larger)(*map(made, node.args))
            case ast.BinOp():
                left, right = made(node.left), made(node.right)
                if isinstance(node.op, ast.FloorDiv | ast.Mod) and (right.is_zero or not never_negative(right)):
                    raise ZeroDivisionError
                return OPERATORS[type(node.op)](left, right)
        raise AssertionError(ast.dump(node))

    try:
        return made(ast.parse(text, mode="eval").body)
    except ZeroDivisionError:
        return None


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    powers = st.tuples(inner, st.integers(0, 3)).map(lambda t: f"({t[0]} ** {t[1]})")
    binary = st.tuples(inner, st.sampled_from(["//", "%", "+", "-", "*"]), inner).map(lambda t: f"({' '.join(t)})")
    folds = st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})")
    return binary | folds | powers


numbers = st.sampled_from([-7, -3, -2, -1, 0, 1, 2, 3, 4, 5, 8, 16]).map(lambda n: f"({n})" if n < 0 else str(n))
sources = st.recursive(st.sampled_from(NAMES) | numbers, _combined, max_leaves=8)
assignments = st.fixed_dictionaries({n: st.integers(n == "world", 9) for n in NAMES})


@random_tries(50, 600, sources, st.lists(assignments, min_size=5, max_size=5))
def test_same_as_python(source: str, values: list[dict[str, int]]) -> None:
    e = elaborated(source)
    assume(e is not None)
    for known in values:
        try:
            want = eval(source, {}, dict(known))
        except ZeroDivisionError:
            continue
        assert int(valued(e, known)) == want, (source, str(e), known)
        assert in_kernel(e, known) == want, (source, to_triton(e), known)


SMALL = [
    dict(zip(NAMES, values, strict=True))
    for values in itertools.product(range(3), range(3), (0, 1, 4), range(2), range(1, 4))
]


def _drawn(r: random.Random, depth: int) -> str:
    """The source of an integer."""
    if depth == 0 or r.random() < 0.2:
        return r.choice([*NAMES, *NAMES, "0", "1", "2", "3", "8", "(-1)"])
    a, b = _drawn(r, depth - 1), _drawn(r, depth - 1)
    if r.random() < 0.25:
        return f"{r.choice(['min', 'max'])}({a}, {b})"
    divisor = r.choice(["2", "3", "8", "world", "(a + world)", "(b + 1)", "(2 * n + 2)", f"max(1, {b})"])
    return r.choice([f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} // {divisor})", f"({a} % {divisor})"])


def _condition(r: random.Random, depth: int) -> str:
    """The source of a condition."""
    if depth == 0 or r.random() < 0.4:
        return f"({_drawn(r, 2)} {r.choice(['<', '<=', '>', '>=', '==', '!='])} {_drawn(r, r.randint(0, 2))})"
    if r.random() < 0.2:
        return f"(not {_condition(r, depth - 1)})"
    return f"({_condition(r, depth - 1)} {r.choice(['and', 'or'])} {_condition(r, depth - 1)})"


def enumerated(seeds: range) -> None:
    """Random integers and conditions, also with one symbol replaced, for all small values of their symbols."""
    every = {n: np.array([v[n] for v in SMALL]) for n in NAMES}
    for seed in seeds:
        r = random.Random(seed)
        source = _condition(r, 2) if seed % 2 else _drawn(r, 3)
        replaced, by = r.choice(NAMES[:3]), r.choice(["b", "n", "world - 1", "2 * a", "0", "1"])
        e, other = elaborated(source), elaborated(by)
        assert e is not None and other is not None
        changed = e.xreplace({symbol(replaced): other})
        want = [eval(source, {}, dict(v)) for v in SMALL]
        want_changed = [eval(source, {}, v | {replaced: eval(by, {}, dict(v))}) for v in SMALL]
        for made, right in ((e, want), (changed, want_changed)):
            got = np.broadcast_to(valued(made, every), len(SMALL))
            wrong = [v for v, g, w in zip(SMALL, got.tolist(), right, strict=True) if g != w]
            assert not wrong, (seed, source, replaced, by, to_text(made), wrong[0])
        for k in r.sample(range(len(SMALL)), 3):
            if seed % 2 == 0:
                assert in_kernel(e, SMALL[k]) == want[k], (seed, source, to_triton(e), SMALL[k])
            text = to_text(e).replace("&", " and ").replace("|", " or ")
            assert eval(text, {}, dict(SMALL[k])) == want[k], (seed, source, text, SMALL[k])


@some_of(600, first=30)
def test_all_small_values(seeds: range) -> None:
    enumerated(seeds)


@pytest.mark.verify
def test_all_small_values_of_many() -> None:
    enumerated(range(1000, 31000))


@pytest.mark.parametrize(
    "source", ["1 // (a + world) >= 1", "2 // (a + b + world) > 1", "min(1, 1 // (a + world)) < 1"]
)
def test_a_quotient_of_a_sum(source: str) -> None:
    """sympy takes 1 / (a + world) >= 1 for true."""
    e = elaborated(source)
    for v in SMALL:
        assert bool(valued(e, v)) == eval(source, {}, dict(v)), (source, to_text(e), v)


@settings(max_examples=100, deadline=None)
@given(sources, st.lists(assignments, min_size=2, max_size=6))
def test_whole_arrays_at_once(source: str, values: list[dict[str, int]]) -> None:
    """What unrolling does: one evaluation for all tiles."""
    e = elaborated(source)
    assume(e is not None and all(abs(n) < 1 << 63 for n in e.atoms(sympy.Integer)))
    arrays = {n: np.array([v[n] for v in values]) for n in NAMES}
    with np.errstate(divide="ignore"):
        one_by_one = [int(valued(e, {n: np.int64(v) for n, v in known.items()})) for known in values]
        together = np.broadcast_to(valued(e, arrays), len(values))
    assert together.tolist() == one_by_one


@settings(max_examples=200, deadline=None)
@given(sources, assignments)
def test_never_negative_is_true(source: str, values: dict[str, int]) -> None:
    e = elaborated(source)
    assume(e is not None and never_negative(e))
    with contextlib.suppress(ZeroDivisionError):
        assert eval(source, {}, dict(values)) >= 0


@pytest.mark.parametrize(
    ("source", "printed"),
    [
        ("a % 8", "a % 8"),
        ("(rank + 1) % world", "(rank + 1) % world"),
        ("(rank - 1) % world", "(rank + world - 1) % world"),
        ("(rank - a) % world", "((-a + rank) % world + world) % world"),
        ("a // 8 * 8", "8*(a // 8)"),
        ("(a - 1) // 8", "((a - 1) - ((a - 1) % 8 + 8) % 8) // 8"),
        ("min(a + 128, n)", "tl.minimum(a + 128, n)"),
        ("max(a, b, n)", "tl.maximum(tl.maximum(a, b), n)"),
    ],
)
def test_as_it_stands_in_a_kernel(source: str, printed: str) -> None:
    """Plain where the sign is known, corrected where it is not."""
    node = source.replace("max(a, b, n)", "max(max(a, b), n)")
    e = elaborated(node)
    assert e is not None and to_triton(e) == printed


@pytest.mark.parametrize(("a", "b", "want"), [(0, 8, 0), (1, 8, 1), (8, 8, 1), (9, 8, 2), (7, 1, 7)])
def test_ceil_div(a: int, b: int, want: int) -> None:
    assert int(evaluate(ceil_div(symbol("a"), b), {"a": a})) == want
    assert ceil_div(a, b) == want


@pytest.mark.parametrize(
    ("source", "bound"),
    [
        ("a", 0),
        ("world", 1),
        ("rank + world - 1", 0),
        ("a - 1", -1),
        ("1 - a", None),
        ("3 * world * (a + 2)", 6),
        ("min(a, 5 - b)", None),
        ("max(a - b, 2)", 2),
        ("a // 2 % 3", 0),
        ("(a - 5) // 2", None),
    ],
)
def test_least(source: str, bound: int | None) -> None:
    e = elaborated(source)
    assert e is not None and least(e) == bound


def test_least_of_a_remainder() -> None:
    """That of a negative divisor is negative; a tile function has none, but a user's order may."""
    assert least(modulo(symbol("a"), symbol("b") - 5)) is None
    assert least(modulo(symbol("a") - 5, symbol("b") + 1)) == 0


def test_modulo_of_a_multiple_of_the_divisor() -> None:
    """sympy itself says -n."""
    n = symbol("n")
    assert modulo(-n, 2 * n) == n
    assert modulo(-symbol("a"), 2 * n).xreplace({symbol("a"): n}) == n
    assert modulo(7, 4) == 3 and modulo(-7, 4) == 1


@pytest.mark.parametrize(
    "source", ["(world - 1) % (2 * world)", "(3 * world - 1) % (2 * world)", "(a - 3 * world) % (2 * world)"]
)
def test_modulo_of_a_share_of_the_divisor(source: str) -> None:
    """A term that is a rational multiple of the divisor: it once went up by the divisor for ever."""
    e = elaborated(source)
    assert e is not None
    for v in SMALL:
        with contextlib.suppress(ZeroDivisionError):
            assert eval(source, {}, dict(v)) == valued(e, v), (source, to_text(e), v)
    assert modulo(modulo(symbol("n"), WORLD), 2 * WORLD).xreplace({symbol("n"): WORLD - 1}) == WORLD - 1


def test_beginnings_of_parts() -> None:
    m = symbol("M")
    assert first_of(m, 0) == 0
    assert first_of(m, WORLD) == m
    assert to_text(first_of(m, RANK + 1) - first_of(m, RANK)) == "-first_of(M, rank) + first_of(M, rank + 1)"
    assert to_triton(first_of(m, RANK + 1)) == "tl.load(M_parts + rank + 1)"
    starts = {parts_of(m): np.array([0, 5, 5, 9]), RANK.name: np.array([0, 1, 2])}
    assert evaluate(first_of(m, RANK + 1) - first_of(m, RANK), starts).tolist() == [5, 0, 4]


@pytest.mark.parametrize(
    "condition",
    [
        sympy.And(RANK < WORLD - 1, sympy.Ne(RANK, 0)),
        sympy.Or(sympy.Eq(RANK, 0), symbol("a") > 3),
        sympy.Not(sympy.And(sympy.Eq(RANK, 0), symbol("a") > 3)),
    ],
    ids=to_text,
)
def test_conditions(condition: sympy.Basic) -> None:
    """In a kernel, in numpy and in sympy."""
    for rank, a in ((0, 0), (0, 5), (2, 3), (3, 9)):
        values = {"rank": rank, "world": 4, "a": a}
        want = bool(condition.subs({named(n): v for n, v in values.items()}))
        assert bool(valued(condition, values)) == want
        assert bool(eval(to_triton(condition), {}, values)) == want


def test_natural_needs_no_correction() -> None:
    """It is what it holds: in arithmetic of a kernel, of numpy, and where what it holds becomes known."""
    a, b = symbol("a"), symbol("b")
    e = 3 * natural(a - b) + natural(b)
    assert to_triton(floor_div(natural(a - b), 64)) == "(a - b) // 64"
    assert evaluate(e, {"a": 7, "b": 5}) == 11
    assert e.xreplace({a: b + 2}) == b + 6
    assert natural(a - b).xreplace({a: b}) == 0
