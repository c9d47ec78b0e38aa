"""Expressions of tile functions, except calls."""

from __future__ import annotations

import ast
import builtins
import operator
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import sympy
import triton.language as tl

from tilelink.errors import HomeError, NotUnderstoodError, UndefinedNameError, ViewError, listed, similar
from tilelink.frontend import ir
from tilelink.frontend.arithmetic import to_text
from tilelink.frontend.elaboration.views import Views
from tilelink.frontend.expressions import Boolean, Expr, floor_div, modulo, never_negative, symbol
from tilelink.frontend.values import TRITON_DTYPES, Block, Static, TileValue
from tilelink.language import AxisWord, TensorWord

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: floor_div,
    ast.Mod: modulo,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    ast.Lt: (sympy.Lt, operator.lt), ast.LtE: (sympy.Le, operator.le), ast.Gt: (sympy.Gt, operator.gt),
    ast.GtE: (sympy.Ge, operator.ge), ast.Eq: (sympy.Eq, operator.eq), ast.NotEq: (sympy.Ne, operator.ne),
}  # fmt: skip
"""Comparisons of integers that differ from tile to tile, and of Python's values."""
_OF_BLOCKS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift,
              ast.RShift)  # fmt: skip
_NOT_OF_BLOCKS: dict[type[ast.AST], tuple[str, str]] = {
    ast.And: ("`and`", "&, with each comparison in parentheses: (a > 0) & (b > 0)"),
    ast.Or: ("`or`", "|, with each comparison in parentheses: (a > 0) | (b > 0)"),
    ast.Not: ("`not`", "~, with the comparison in parentheses: ~(a > 0)"),
    ast.UAdd: ("a sign `+`", "the block alone"),
    ast.Pow: ("`**`", "a product, a * a, or tl.exp2(b * tl.log2(a))"),
    ast.MatMult: ("`@`", "tl.dot(a, b)"),
}
"""Operators that blocks do not have (Triton and the interpreter disagree on them), and what to write for blocks."""


INSTEAD: dict[type[ast.expr], str] = dict.fromkeys(
    (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    ": write a loop, `for n in` tk.steps(...), tk.ranks(), tk.each(...) or range(...)",
) | {
    ast.Lambda: ": write a function with @triton.jit",
    ast.NamedExpr: ": assign in a line before",
    ast.Starred: ": write the entries one by one",
    ast.JoinedStr: ": write the text as a constant; tl.device_print takes a text and then values",
    **dict.fromkeys((ast.Dict, ast.Set), ": write a tuple"),
    **dict.fromkeys((ast.Yield, ast.YieldFrom), ": results are stored, out[t].store(...)"),
}
"""Advice for expressions that are not understood."""


INSTEAD_OF_FUNCTIONS = {
    name: f"; write {instead}"
    for name, instead in {
        "relu": "tl.maximum(x, 0)", "silu": "x * tl.sigmoid(x)", "gelu": "0.5 * x * (1 + tl.erf(x * 0.7071))",
        "tanh": "2 * tl.sigmoid(2 * x) - 1", "mean": "tl.sum(x, axis) / n", "square": "x * x", "pow": "x * x",
        "matmul": "tl.dot(a, b)", "mm": "tl.dot(a, b)", "float": "x.to(tl.float32)", "half": "x.to(tl.float16)",
        "bfloat16": "x.to(tl.bfloat16)", "int": "x.to(tl.int32)", "amax": "tl.max(x, axis)", "amin": "tl.min(x, axis)",
        "transpose": "tl.trans(x)", "t": "tl.trans(x)", "item": "tl.sum(x)", "copy": "x alone; blocks never change",
        "clone": "x alone; blocks never change",
    }.items()
}  # fmt: skip
"""What to write for functions of torch and numpy that Triton does not have."""


class Expressions(Views):
    """Reads expressions. Whatever is known before the run becomes a value; whatever Triton computes stays source."""

    def value(self, node: ast.expr, label: str = "") -> Any:
        """The value of an expression. `label`: the name of the guard, for a wait that stands right of `label = `."""
        if isinstance(node, ast.Call):
            return self.call(node, label)
        handler = getattr(self, f"of_{type(node).__name__}", None)
        if handler is None:
            cure = INSTEAD.get(type(node), "")
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)} is not understood in a tile function{cure}")
        return handler(node)

    def of_Constant(self, node: ast.Constant) -> Any:
        return self.static(node.value)

    def of_Name(self, node: ast.Name) -> Any:
        if node.id in self.env:
            return self.env[node.id]
        if node.id in self.names:
            return self.static(self.function.read(node.id))
        if hasattr(builtins, node.id):
            return Static(getattr(builtins, node.id))
        if node.id in self.ended:
            self.fail(UndefinedNameError, node, f"{node.id} is not defined here: what a loop or a branch defines ends "
                      "with it, so define it before")
        known = ", ".join(sorted(n for n in self.env if n != self.function.parameters[0]))
        meant = similar(node.id, {**self.env, **self.names})
        self.fail(UndefinedNameError, node, f"{node.id} is not defined here; {self.function.name} knows {known}{meant}")

    def is_outside(self, node: ast.expr) -> bool:
        """Whether it is a name from outside of the function, or an attribute of one."""
        if isinstance(node, ast.Attribute):
            return self.is_outside(node.value)
        return isinstance(node, ast.Name) and node.id not in self.env and node.id in self.names

    def of_Tuple(self, node: ast.Tuple | ast.List) -> Any:
        return tuple(self.value(e) for e in node.elts)

    of_List = of_Tuple  # noqa: N815  # named after what it visits

    def of_Attribute(self, node: ast.Attribute) -> Any:
        owner = self.value(node.value)
        name = node.attr
        if isinstance(owner, TileValue):
            return self.tile_attribute(node, owner)
        if isinstance(owner, TensorWord):
            dim = owner.dim(name)
            found: list[Any] = [owner.axis(dim)] if dim else []
            found += [getattr(owner, name)] if name in ("rows", "cols") else []
            if name == "dtype":
                found.append(Static(getattr(tl, TRITON_DTYPES[self.dtypes[owner.name]])))
            if found:
                return self.one_meaning(node, found)
            known = ("rows", "cols", *owner.dims, "dtype")
            self.fail(ViewError, node, f"{owner.name} has no {name}; {owner.name} has "
                      f"{', '.join(f'.{n}' for n in known)}; memory is touched through views of it, {owner.name}[...]"
                      f"{similar(name, known)}")
        if isinstance(owner, ir.View):
            if name == "home":
                if not isinstance(owner.home, Expr):
                    self.fail(HomeError, node, f"{owner} has more than one home")
                return owner.home
            if name in ("load", "store", "at"):
                return Static((owner, name))
            meant = similar(name, ("load", "store", "at", "home"))
            self.fail(ViewError, node, f"a view has .load(), .store(), .at() and .home, not .{name}; the tile has "
                      f"ranges (t.rows, t.M), and so have tensors (x.M){meant}")
        if isinstance(owner, ir.Range) and name in ("start", "stop"):
            return getattr(owner, name)
        if isinstance(owner, Block):
            if name == "shape" and owner.shape is not None:
                return tuple(sympy.Integer(n) for n in owner.shape)
            if name == "dtype" and owner.dtype is not None:
                return Static(getattr(tl, TRITON_DTYPES[owner.dtype]))
            if not hasattr(tl.tensor, name):
                meant = INSTEAD_OF_FUNCTIONS.get(name) or similar(name, dir(tl.tensor))
                self.fail(UndefinedNameError, node, f"a block has no {name}{meant}")
            shape = owner.shape[::-1] if name == "T" and owner.shape else owner.shape
            return replace(owner, node=ast.Attribute(owner.node, name, ast.Load()), shape=shape)
        if isinstance(owner, AxisWord) and name == "size":
            return symbol(owner.dim)
        if isinstance(owner, Static):
            self.not_left_out(node, owner)
            try:
                outside = self.is_outside(node)
                return self.static(self.function.read(ast.unparse(node)) if outside else getattr(owner.value, name))
            except AttributeError:
                triton = INSTEAD_OF_FUNCTIONS if owner.value in (tl, tl.math) else {}
                meant = triton.get(name) or similar(name, dir(owner.value))
                self.fail(UndefinedNameError, node, f"{ast.unparse(node.value)} has no {name}{meant}")
        self.fail(NotUnderstoodError, node, f"{ast.unparse(node.value)} has no {name}")

    def of_BinOp(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(left, Block) or isinstance(right, Block):
            if not isinstance(node.op, _OF_BLOCKS):
                self.no_operator_of_blocks(node, node.op)
            left, right = self.of_equal_dimensions(left, right)
            made = ast.BinOp(self.node(node.left, left), node.op, self.node(node.right, right))
            return self.elementwise(node, made, left, right)
        if isinstance(left, Expr) and isinstance(right, Expr) and type(node.op) in _ARITHMETIC:
            if isinstance(node.op, ast.FloorDiv | ast.Mod) and (right.is_zero or not never_negative(right)):
                self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: the divisor {to_text(right)} is 0 or may be "
                          "negative; max(1, ...) makes it positive")
            return _ARITHMETIC[type(node.op)](left, right)
        if isinstance(node.op, ast.Pow) and isinstance(left, Expr) and isinstance(right, sympy.Integer) and right >= 0:
            return left**right
        integers = isinstance(left, Expr) and isinstance(right, Expr)
        if isinstance(node.op, ast.Div) and integers and not (left.is_Integer and right.is_Integer):
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: `/` of integers is not understood; write `//`. "
                      "For a fraction, divide a block: block / n")
        if isinstance(left, Static | Expr) and isinstance(right, Static | Expr):
            applied = ast.unparse(ast.BinOp(ast.Name("a"), node.op, ast.Name("b")))
            return self.python(node, lambda a, b: eval(applied, {"a": a, "b": b}), left, right)
        self.no_number(node, (node.left, left), (node.right, right))

    def of_UnaryOp(self, node: ast.UnaryOp) -> Any:
        v = self.value(node.operand)
        if isinstance(v, Block):
            if isinstance(node.op, ast.Not | ast.UAdd):
                self.no_operator_of_blocks(node, node.op)
            self.not_float8(node, v, dtype=v.dtype)
            return replace(v, node=ast.UnaryOp(node.op, v.node))
        if isinstance(node.op, ast.USub | ast.UAdd) and isinstance(v, Expr):
            return -v if isinstance(node.op, ast.USub) else v
        if isinstance(node.op, ast.Not) and isinstance(v, Expr | Boolean):
            return _decided(sympy.Not(truth(v)))
        if isinstance(v, Static | Expr):
            applied = ast.unparse(ast.UnaryOp(node.op, ast.Name("a")))
            return self.python(node, lambda a: eval(applied, {"a": a}), v)
        self.no_number(node, (node.operand, v))

    def of_BoolOp(self, node: ast.BoolOp) -> Any:
        values = [self.value(v) for v in node.values]
        if any(isinstance(v, Block) for v in values):
            self.no_operator_of_blocks(node, node.op)
        if all(isinstance(v, Static) for v in values):
            fold = all if isinstance(node.op, ast.And) else any
            return Static(fold(v.value for v in values))
        asked = list(map(truth, values))
        if strange := [o for o in zip(node.values, asked, strict=True) if not isinstance(o[1], Boolean)]:
            self.no_number(node, *strange)
        return _decided((sympy.And if isinstance(node.op, ast.And) else sympy.Or)(*asked))

    def of_Compare(self, node: ast.Compare) -> Any:
        terms = [self.value(node.left), *(self.value(c) for c in node.comparators)]
        nodes = [node.left, *node.comparators]
        known = all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)
        if any(isinstance(t, Block) for t in terms) and not known:
            if len(node.ops) > 1:
                self.no_operator_of_blocks(node, ast.And(), "a chain of comparisons, which is an `and`")
            if type(node.ops[0]) not in _COMPARISONS:
                self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: blocks are compared by < <= > >= == !=")
            terms = list(self.of_equal_dimensions(*terms))
            made = ast.Compare(self.node(nodes[0], terms[0]), node.ops,
                               [self.node(n, t) for n, t in zip(nodes[1:], terms[1:], strict=True)])
            return replace(self.elementwise(node, made, *terms), dtype="bool", mixed=False)
        result: Any = sympy.true
        for k, (a, op, b) in enumerate(zip(terms, node.ops, terms[1:], strict=False)):
            if isinstance(op, ast.Is | ast.IsNot):
                if not (isinstance(a, Static) and isinstance(b, Static)) and Static(None) not in (a, b):
                    said = f"{ast.unparse(node)}: `is` asks for None and for dtypes; compare numbers by == or !="
                    self.fail(NotUnderstoodError, node, said)
                a, b = (v.value if isinstance(v, Static) else v for v in (a, b))
                result = sympy.And(result, sympy.sympify((a is b) == isinstance(op, ast.Is)))
            elif isinstance(op, ast.In | ast.NotIn):
                self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: `in` is not understood; compare with each "
                          "value by == or !=, and join the comparisons by `or` or `and`")
            elif isinstance(a, Expr) and isinstance(b, Expr):
                result = sympy.And(result, _COMPARISONS[type(op)][0](a, b))
            elif isinstance(a, Static | sympy.Integer) and isinstance(b, Static | sympy.Integer):
                holds = self.python(node, lambda a, b, op=op: bool(_COMPARISONS[type(op)][1](a, b)), a, b)
                result = sympy.And(result, sympy.sympify(holds.value))
            else:
                said = f"{self.text(a)} and {self.text(b)} can't be compared"
                self.no_number(node, (nodes[k], a), (nodes[k + 1], b), said=said)
        return _decided(result)

    def no_number(self, node: ast.expr, *operands: tuple[ast.expr, Any], said: str = "") -> NoReturn:
        """Raises the error for an operation whose operands, each with its source, are not all numbers or blocks."""
        instead = next(filter(None, (self.instead(*o) for o in operands)), "")
        kind = ViewError if any(isinstance(v, ir.View | TensorWord) for _, v in operands) else NotUnderstoodError
        self.fail(kind, node, f"{said or f'{ast.unparse(node)} is not understood'}{instead}")

    def no_operator_of_blocks(self, node: ast.expr, op: ast.AST, what: str = "") -> NoReturn:
        """Raises NotUnderstoodError for an operator that blocks do not have. The error says what to write."""
        word, instead = _NOT_OF_BLOCKS[type(op)]
        self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: blocks do not take {what or word}; write {instead}")

    def of_IfExp(self, node: ast.IfExp) -> Any:
        test = truth(self.value(node.test))
        if test in (sympy.true, sympy.false):
            return self.value(node.body if test == sympy.true else node.orelse)
        self.fail(NotUnderstoodError, node, "a conditional expression needs a condition that is the same for all "
                  "tiles; for ranks and coordinates put the whole statement below an if statement, or compute the "
                  "integer with + - * // % min max; for data take tl.where")

    def of_Subscript(self, node: ast.Subscript) -> Any:
        owner = self.value(node.value)
        entries = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if isinstance(owner, TensorWord):
            return self.view(node, owner, entries)
        if isinstance(owner, ir.View):
            return self.narrow(node, owner, entries)
        if isinstance(owner, Block):
            if any(ast.unparse(e) not in (":", "None") for e in entries):
                self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: indices of a block are : and None")
            made = ast.Subscript(owner.node, node.slice, ast.Load())
            return replace(owner, node=made, shape=_indexed(owner.shape, entries))
        if isinstance(owner, tuple):
            index = self.value(node.slice)
            if isinstance(index, sympy.Integer) and -len(owner) <= int(index) < len(owner):
                return owner[int(index)]
        if isinstance(owner, Static):
            self.not_left_out(node, owner)
            return self.python(node, operator.getitem, owner, self.value(node.slice))
        said = f"{ast.unparse(node)}: tensors, views, blocks and tuples have entries"
        self.no_number(node, (node.value, owner), said=said)

    def not_left_out(self, node: ast.Attribute | ast.Subscript, owner: Static) -> None:
        """Raises NotUnderstoodError for a part of None, such as of a tensor that the call leaves out."""
        if owner.value is None:
            name = ast.unparse(node.value)
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: {name} is None, as a tensor is that is left "
                      f"out; put this below `if {name} is not None:`")

    def tile_attribute(self, node: ast.Attribute, tile: TileValue) -> Any:
        ranges = [*tile.ranges, *([tile.sent] if tile.sent else [])]
        found: list[Any] = [r for r in ranges if r.dim == self.own.get(node.attr, node.attr)]
        found += [tile.axes[node.attr]] if node.attr in tile.axes else []
        match node.attr:
            case "rows":
                found.append(tile.ranges[0])
            case "cols":
                found.append(tile.ranges[-1])
            case "shape":
                found.append(tuple(self.extent(node, r) for r in tile.ranges))
        if found:
            return self.one_meaning(node, found)
        if self.order.parts is None and node.attr.rpartition("_")[2] == "home":
            self.fail(HomeError, node, f"no tile has a {node.attr} where order={self.order}: it may have rows of "
                      "several ranks; give the role an order of ranks, such as tk.own_rank_first")
        dims = [r.dim for r in ranges]
        if node.attr == "home":
            self.fail(HomeError, node, f"this tile has no home: no tensor of the program is cut over the ranks along "
                      f"{' or '.join(dims)}; declare one tk.Sharded(...), or make a buffer, tk.sharded(...)")
        known = ["rows", "cols", "shape", *dims, *tile.axes]
        self.fail(UndefinedNameError, node, f"this tile has no {node.attr}; it has {listed(known, node.attr)}")

    def one_meaning(self, node: ast.Attribute, found: list[Any]) -> Any:
        """The meaning of an attribute. Raises NotUnderstoodError if a dimension or rank axis has the name of a word."""
        if any(f != found[0] for f in found):
            meanings = " or ".join(map(self.text, found))
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)} could be {meanings}: give the dimension or rank "
                      f"axis {node.attr} another name")
        return found[0]

    def python(self, node: ast.expr, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of ordinary Python on values that are known now."""
        for a in arguments:
            if not isinstance(a, Static | sympy.Integer):
                self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: {self.text(a)} differs from tile to tile, "
                          "rank to rank or call to call; such integers take + - * // %, ** with a constant exponent "
                          "that is not negative, comparisons, min and max")
        try:
            plain = [a.value if isinstance(a, Static) else int(a) for a in arguments]
            return self.static(function(*plain))
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as e:
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: {e}")

    def integer(self, node: ast.expr) -> Expr:
        v = self.value(node)
        if not isinstance(v, Expr):
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)} has to be an integer known before the run")
        return v

    @abstractmethod
    def call(self, node: ast.Call, label: str) -> Any:
        """The value of a call."""


def truth(value: Any) -> Any:
    """An integer, or a value of Python, as a condition; any other value, unchanged."""
    if isinstance(value, Static):
        return sympy.sympify(bool(value.value))
    return sympy.Ne(value, 0) if isinstance(value, Expr) else value


def _decided(condition: Any) -> Any:
    """A condition, or the value of Python if it is the same for all tiles."""
    return Static(condition == sympy.true) if condition in (sympy.true, sympy.false) else condition


def _indexed(shape: tuple[int, ...] | None, entries: list[ast.expr]) -> tuple[int, ...] | None:
    """The shape of block[:, None] and the like."""
    if shape is None:
        return None
    sizes, made = list(shape), []
    for e in entries:
        if isinstance(e, ast.Constant):
            made.append(1)
        elif isinstance(e, ast.Slice) and sizes:
            made.append(sizes.pop(0))
        else:
            return None
    return (*made, *sizes)
