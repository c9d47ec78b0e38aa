"""From the source of a tile function to statements of a tile program: every name resolved, every view typed.

The one reader of tile functions: unrolling and lowering both start from what comes out, so they can't drift apart.
Expressions fall into two kinds. What TileLink knows before the run (tiles, views, ranges, integers, ranks) becomes
values of `values.py` and sympy; what Triton computes stays source text, with holes for loads and integers.
"""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import sympy
import triton
import triton.language as tl

from tilelink import language
from tilelink.errors import (
    DataBranchError,
    DimensionError,
    DtypeError,
    HomeError,
    NotifyWithoutStoreError,
    NotUnderstoodError,
    RankError,
    TileLinkError,
    TileSizeError,
    UndefinedNameError,
    UnguardedReadError,
    ViewError,
)
from tilelink.frontend import triton_calls
from tilelink.frontend.expressions import (
    RANK,
    WORLD,
    Expr,
    first_of,
    floor_div,
    modulo,
    never_negative,
    symbol,
    to_text,
)
from tilelink.frontend.ir import (
    ALL_RANKS,
    RANKS_DIM,
    Code,
    Compute,
    Copy,
    DataIf,
    For,
    If,
    Load,
    Notify,
    Range,
    Statement,
    Store,
    View,
    Wait,
    loads_of,
)
from tilelink.frontend.names import Names
from tilelink.frontend.values import DOT_DTYPES, Block, Static, TileValue, broadcast, promote
from tilelink.language import AxisWord, RanksWord, TensorWord, TileFunction

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: floor_div,
    ast.Mod: modulo,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: sympy.Lt, ast.LtE: sympy.Le, ast.Gt: sympy.Gt, ast.GtE: sympy.Ge, ast.Eq: sympy.Eq, ast.NotEq: sympy.Ne,
}  # fmt: skip
_BOOLEAN = sympy.logic.boolalg.Boolean
_TOUCHING = ("load", "store", "make_block_ptr", "advance", "make_tensor_descriptor", "load_tensor_descriptor",
             "store_tensor_descriptor", "gather", "inline_asm_elementwise")  # fmt: skip


@dataclass(frozen=True)
class Context:
    """What a tile function is elaborated for: its program's tensors and its role."""

    tensors: dict[str, TensorWord]
    dtypes: dict[str, str]
    cut: frozenset[str]
    written: frozenset[str]
    tile: TileValue
    step: int | None
    reserved: Names


class Elaborator:
    """Elaborates one tile function for one role. `functions` collects the Triton functions it calls, by name."""

    def __init__(self, function: TileFunction, arguments: dict[str, Any], context: Context) -> None:
        self.function, self.context = function, context
        self.names = function.names()
        self.env: dict[str, Any] = {function.parameters[0]: context.tile}
        self.env |= {p: a if isinstance(a, TensorWord) else self.static(a) for p, a in arguments.items()}
        self.statements: list[Statement] = []
        self.stored: list[View] = []
        self.functions: dict[str, Any] = {}
        self.holes: list[Load | Expr] = []
        self.dots: list[tuple[int, int, int]] = []
        self.nested: set[str] = set()
        self.ended: set[str] = set()
        self.renamed: dict[str, str] = {}
        self.taken = {n.id for n in ast.walk(function.node) if isinstance(n, ast.Name)}

    def body(self) -> tuple[Statement, ...]:
        self.run(self.function.node.body)
        return tuple(self.statements)

    def fail(self, kind: type[TileLinkError], node: ast.AST, message: str) -> NoReturn:
        raise kind(message, self.function.site(node))

    # ---- statements

    def run(self, statements: list[ast.stmt]) -> None:
        for s in statements:
            handler = getattr(self, f"on_{type(s).__name__}", None)
            if handler is None:
                self.fail(NotUnderstoodError, s, f"{type(s).__name__.lower()} is not understood in a tile function")
            handler(s)

    def on_Pass(self, s: ast.Pass) -> None:
        pass

    def on_Expr(self, s: ast.Expr) -> None:
        if isinstance(s.value, ast.Constant):
            return
        value = self.value(s.value)
        if isinstance(value, Block):
            self.emit(Compute(self.function.site(s), self.code(value.node)))

    def on_Assign(self, s: ast.Assign) -> None:
        target = s.targets[0]
        if len(s.targets) > 1 or not isinstance(target, ast.Name | ast.Tuple):
            self.fail(NotUnderstoodError, s, "an assignment in a tile function has names on its left, once")
        names = [target] if isinstance(target, ast.Name) else target.elts
        if not all(isinstance(n, ast.Name) for n in names):
            self.fail(NotUnderstoodError, s, "an assignment in a tile function has names on its left, once")
        label = "_".join(n.id for n in names if isinstance(n, ast.Name))
        value = self.value(s.value, label)
        if isinstance(target, ast.Name):
            self.bind(s, [target.id], [value], value)
            return
        values = list(value) if isinstance(value, tuple) else None
        if isinstance(value, Block):  # a function of Triton that returns several
            values = [Block(value.node)] * len(names)
        if values is None or len(values) != len(names):
            self.fail(NotUnderstoodError, s, f"{len(names)} names for {ast.unparse(s.value)}")
        self.bind(s, [n.id for n in names if isinstance(n, ast.Name)], values, value)

    def bind(self, s: ast.stmt, names: list[str], values: list[Any], whole: Any) -> None:
        """Gives names their values, all at once. Blocks become variables of the kernel; `whole` is right of the =."""
        blocks = [(n, v) for n, v in zip(names, values, strict=True) if isinstance(v, Block)]
        for name, value in zip(names, values, strict=True):
            old = self.env.get(name)
            if name not in self.nested or _agree(old, value):
                continue
            if isinstance(old, Block):
                self.fail(NotUnderstoodError, s, f"{name} is a block of data: in a loop or a branch it can't become "
                          f"{self.text(value)}")
            self.fail(NotUnderstoodError, s, f"{name} is known before the run (it is {self.text(old)}), so it can't "
                      "change in a loop or a branch; only blocks can. For data, begin with tl.zeros or tl.full")
        if blocks:
            made = whole.node if isinstance(whole, Block) else ast.Tuple([v.node for _, v in blocks], ast.Load())
            own = [self.local_name(n) for n, _ in blocks]
            right = made.elts[0] if isinstance(made, ast.Tuple) and len(blocks) == 1 else made
            self.emit(Compute(self.function.site(s), self.code(right, f"{', '.join(own)} = ")))
            self.env |= {
                n: Block(ast.Name(o, ast.Load()), v.shape, v.dtype) for (n, v), o in zip(blocks, own, strict=True)
            }
        self.env |= {n: v for n, v in zip(names, values, strict=True) if not isinstance(v, Block)}

    def on_AugAssign(self, s: ast.AugAssign) -> None:
        if not isinstance(s.target, ast.Name):
            self.fail(NotUnderstoodError, s, "an assignment in a tile function has a name on its left")
        whole = ast.copy_location(ast.BinOp(ast.copy_location(ast.Name(s.target.id, ast.Load()), s), s.op, s.value), s)
        value = self.value(whole)
        self.bind(s, [s.target.id], [value], value)

    def on_For(self, s: ast.For) -> None:
        if not (isinstance(s.target, ast.Name) and isinstance(s.iter, ast.Call)) or s.orelse:
            self.fail(NotUnderstoodError, s, "loops of a tile function run over tk.steps(), tk.ranks() or range()")
        function = self.value(s.iter.func)
        called = function.value if isinstance(function, Static) else function
        name = s.target.id
        if name in self.env:
            self.fail(NotUnderstoodError, s, f"{name} is {self.text(self.env[name])} already: a loop's variable has a "
                      "name of its own")
        if called is language.steps:
            self.steps(s, name, s.iter)
        elif isinstance(called, RanksWord):
            self.arguments(s.iter)
            own = self.local_name(name)
            self.loop(s, own, sympy.S.Zero, WORLD, 1, {name: symbol(own)})
        elif called is range or called is tl.range or called is tl.static_range:
            self.range(s, name, s.iter)
        else:
            self.fail(NotUnderstoodError, s, f"a loop over {ast.unparse(s.iter.func)} is not understood")

    def range(self, s: ast.For, name: str, call: ast.Call) -> None:
        bounds = [self.integer(a) for a in self.arguments(call, "start", "stop", "step", needed=1) if a is not None]
        start, stop = (sympy.S.Zero, bounds[0]) if len(bounds) == 1 else bounds[:2]
        step = bounds[2] if len(bounds) > 2 else sympy.S.One
        if not step.is_Integer or step < 1:
            self.fail(NotUnderstoodError, s, f"the step of a range is a positive constant, not {to_text(step)}")
        if not never_negative(start):
            self.fail(NotUnderstoodError, s, f"a range begins at 0 or above; {to_text(start)} may be negative")
        own = self.local_name(name)
        self.loop(s, own, start, stop, int(step), {name: symbol(own)})

    def steps(self, s: ast.For, name: str, call: ast.Call) -> None:
        dimension, end = self.arguments(call, "along", "stop", needed=1)
        assert dimension is not None
        along, stop = self.value(dimension), None if end is None else self.integer(end)
        if not isinstance(along, AxisWord | Range):
            self.fail(ViewError, call, f"tk.steps goes along a dimension or a range, not {self.text(along)}")
        size = self.context.step
        if size is None:
            self.fail(TileSizeError, call, "the schedule gives this role's loops no step: add it as the last of tile=")
        own = self.local_name(name)
        lo = symbol(own)

        def walk(begin: Expr, end: Expr, part: Expr | None, before: Expr = sympy.S.Zero) -> None:
            limit = end if stop is None else sympy.Min(end, stop)
            k = Range(along.dim, lo, sympy.Min(lo + size, limit), size, part, before + lo - begin)
            self.loop(s, own, begin, limit, size, {name: k})

        if isinstance(along, Range):
            walk(along.start, along.stop, along.part, along.offset)
        elif along.dim not in self.context.cut:
            walk(sympy.S.Zero, symbol(along.dim), None)
        else:  # steps never cross the parts of the ranks
            part = self.fresh_name(f"{name}_part")
            dim = symbol(along.dim)
            p = symbol(part)
            with self.inside(s, part, sympy.S.Zero, WORLD, 1):
                walk(first_of(dim, p), first_of(dim, p + 1), p)

    def loop(self, s: ast.For, own: str, start: Expr, stop: Expr, step: int, names: dict[str, Any]) -> None:
        with self.inside(s, own, start, stop, step):
            self.env |= names
            self.run(s.body)

    @contextmanager
    def inside(self, s: ast.stmt, name: str, start: Expr, stop: Expr, step: int) -> Iterator[None]:
        """Statements made in here become the body of a loop."""
        before = dict(self.env)
        with self.nesting() as body:
            yield
        self.leave(before, self.env)  # it may be passed over
        self.emit(For(self.function.site(s), name, start, stop, step, tuple(body)))

    @contextmanager
    def nesting(self) -> Iterator[list[Statement]]:
        """Statements made in here go to the list. What is stored in here may be notified in here only: whether and how
        often it happens is not known outside."""
        outer, nested, stored = self.statements, self.nested, list(self.stored)
        self.statements, self.nested = [], nested | set(self.env)
        yield self.statements
        self.statements, self.nested, self.stored = outer, nested, stored

    def leave(self, one: dict[str, Any], other: dict[str, Any]) -> None:
        """Goes on after a loop or a branch, of which the two ways end so: what is left is what they agree on."""
        self.env = {n: _either(one[n], other[n]) for n in one if n in other and _agree(one[n], other[n])}
        self.ended |= (one.keys() | other.keys()) - self.env.keys()

    def on_If(self, s: ast.If) -> None:
        condition = self.value(s.test)
        if isinstance(condition, Static):
            self.run(s.body if condition.value else s.orelse)
            return
        condition = _truth(condition)
        if condition in (sympy.true, sympy.false):
            self.run(s.body if condition == sympy.true else s.orelse)
            return
        code = self.code(condition.node) if isinstance(condition, Block) else None
        if code is None and not isinstance(condition, _BOOLEAN):
            self.fail(NotUnderstoodError, s, f"a branch on {self.text(condition)}")
        before, bodies, after = self.env, [], []
        for body in (s.body, s.orelse):
            self.env = dict(before)
            with self.nesting() as made:
                self.run(body)
            bodies.append(tuple(made))
            after.append(self.env)
        self.leave(*after)
        site = self.function.site(s)
        if code is None:
            self.emit(If(site, condition, *bodies))
            return
        for inner in (*bodies[0], *bodies[1]):
            if not isinstance(inner, Compute | DataIf) or loads_of(inner):
                raise DataBranchError(
                    f"{inner.site.text} stands in a branch on data ({ast.unparse(s.test)}, line {s.lineno}), so nobody "
                    "knows before the run whether it happens; branch on ranks and coordinates, or use tl.where",
                    inner.site,
                )
        self.emit(DataIf(site, code, *bodies))

    def emit(self, s: Statement) -> None:
        self.statements.append(s)

    # ---- expressions

    def value(self, node: ast.expr, label: str = "") -> Any:
        """The value of an expression; `label` names the guard of a wait that stands right of `label = `."""
        if isinstance(node, ast.Call):
            return self.call(node, label)
        handler = getattr(self, f"of_{type(node).__name__}", None)
        if handler is None:
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)} is not understood in a tile function")
        return handler(node)

    def of_Constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            return sympy.Integer(node.value)
        return Static(node.value, node)

    def of_Name(self, node: ast.Name) -> Any:
        if node.id in self.env:
            return self.env[node.id]
        if node.id in self.names:
            return self.static(self.names[node.id], node)
        if hasattr(builtins, node.id):
            return Static(getattr(builtins, node.id), node)
        if node.id in self.ended:
            self.fail(UndefinedNameError, node, f"{node.id} is not defined here: what a loop or a branch defines ends "
                      "with it, so define it before")
        known = ", ".join(sorted(n for n in self.env if n != self.function.parameters[0]))
        self.fail(UndefinedNameError, node, f"{node.id} is not defined here; {self.function.name} knows {known}")

    def static(self, value: Any, node: ast.expr | None = None) -> Any:
        value = getattr(value, "value", value) if isinstance(value, tl.constexpr) else value
        if isinstance(value, int) and not isinstance(value, bool):
            return sympy.Integer(value)
        return Static(value, node)

    def of_Tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.value(e) for e in node.elts)

    def of_List(self, node: ast.List) -> Any:
        return tuple(self.value(e) for e in node.elts)

    def of_Attribute(self, node: ast.Attribute) -> Any:
        owner = self.value(node.value)
        name = node.attr
        if isinstance(owner, TileValue):
            return self.tile_attribute(node, owner)
        if isinstance(owner, TensorWord):
            if name in ("rows", "cols"):
                return getattr(owner, name)
            if name == "dtype":
                return Static(getattr(tl, triton_calls.TRITON_DTYPES[self.context.dtypes[owner.name]]))
            self.fail(ViewError, node, f"{owner.name} has .rows, .cols and .dtype; memory is touched through views of "
                      f"it, {owner.name}[...]")
        if isinstance(owner, View):
            if name == "home":
                if not isinstance(owner.home, Expr):
                    self.fail(HomeError, node, f"{owner} has more than one home")
                return owner.home
            if name in ("load", "store", "at"):
                return Static((owner, name))
            self.fail(ViewError, node, f"a view has .load(), .store(), .at() and .home, not .{name}")
        if isinstance(owner, Range) and name in ("start", "stop"):
            return getattr(owner, name)
        if isinstance(owner, Block):
            made = ast.Attribute(owner.node, name, ast.Load())
            shape = owner.shape[::-1] if name == "T" and owner.shape else None
            return Block(made, shape, owner.dtype)
        if isinstance(owner, AxisWord) and name == "size":
            return symbol(owner.dim)
        if isinstance(owner, Static):
            try:
                return self.static(getattr(owner.value, name), node)
            except AttributeError:
                self.fail(UndefinedNameError, node, f"{ast.unparse(node.value)} has no {name}")
        self.fail(NotUnderstoodError, node, f"{ast.unparse(node.value)} has no {name}")

    def tile_attribute(self, node: ast.Attribute, tile: TileValue) -> Any:
        match node.attr:
            case "rows":
                return tile.ranges[0]
            case "cols":
                return tile.ranges[-1]
            case "shape":
                return tuple(self.extent(node, r) for r in tile.ranges)
        if node.attr in tile.axes:
            return tile.axes[node.attr]
        known = ["rows", "cols", "shape", *tile.axes]
        self.fail(UndefinedNameError, node, f"this tile has no {node.attr}; it has {', '.join(known)}")

    def extent(self, node: ast.AST, r: Range) -> sympy.Integer:
        if r.extent is None:
            self.fail(TileSizeError, node, f"{r} is not cut into tiles by the schedule, so it can't be a block in "
                      f"registers; give the role a tile size along {r.dim}, or go along it with tk.steps")
        return sympy.Integer(r.extent)

    def of_BinOp(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(left, Block) or isinstance(right, Block):
            made = ast.BinOp(self.node(node.left, left), node.op, self.node(node.right, right))
            return self.elementwise(made, left, right)
        if isinstance(left, Expr) and isinstance(right, Expr) and type(node.op) in _ARITHMETIC:
            if isinstance(node.op, ast.FloorDiv | ast.Mod) and (right.is_zero or not never_negative(right)):
                self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: the divisor {to_text(right)} is 0 or may be "
                          "negative; max(1, ...) makes it positive")
            return _ARITHMETIC[type(node.op)](left, right)
        if isinstance(left, Static | Expr) and isinstance(right, Static | Expr):
            return self.python(node, lambda a, b: eval("a" + _symbol_of(node.op) + "b", {"a": a, "b": b}), left, right)
        self.fail(ViewError, node, f"{self.text(left)} and {self.text(right)}: memory is touched through .load() of a "
                  "view; a tensor or view is no address")

    def of_UnaryOp(self, node: ast.UnaryOp) -> Any:
        v = self.value(node.operand)
        if isinstance(v, Block):
            return Block(ast.UnaryOp(node.op, v.node), v.shape, v.dtype)
        if isinstance(node.op, ast.USub) and isinstance(v, Expr):
            return -v
        if isinstance(node.op, ast.USub) and isinstance(v, Static) and isinstance(v.value, float):
            return Static(-v.value)
        if isinstance(node.op, ast.Not) and isinstance(v, Static | Expr | _BOOLEAN):
            return Static(not v.value) if isinstance(v, Static) else sympy.Not(_truth(v))
        self.fail(NotUnderstoodError, node, f"{ast.unparse(node)} is not understood")

    def of_BoolOp(self, node: ast.BoolOp) -> Any:
        values = [self.value(v) for v in node.values]
        if any(isinstance(v, Block) for v in values):
            return Block(ast.BoolOp(node.op, [self.node(n, v) for n, v in zip(node.values, values, strict=True)]))
        if all(isinstance(v, Static) for v in values):
            fold = all if isinstance(node.op, ast.And) else any
            return Static(fold(v.value for v in values))
        values = [sympy.sympify(bool(v.value)) if isinstance(v, Static) else _truth(v) for v in values]
        if not all(isinstance(v, _BOOLEAN) for v in values):
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)} is not understood")
        return (sympy.And if isinstance(node.op, ast.And) else sympy.Or)(*values)

    def of_Compare(self, node: ast.Compare) -> Any:
        terms = [self.value(node.left), *(self.value(c) for c in node.comparators)]
        nodes = [node.left, *node.comparators]
        if any(isinstance(t, Block) for t in terms):
            made = ast.Compare(self.node(nodes[0], terms[0]), node.ops,
                               [self.node(n, t) for n, t in zip(nodes[1:], terms[1:], strict=True)])
            return replace(self.elementwise(made, *terms), dtype="bool")
        result: Any = sympy.true
        for a, op, b in zip(terms, node.ops, terms[1:], strict=False):
            if isinstance(op, ast.Is | ast.IsNot):
                same = _same_object(a, b)
                result = sympy.And(result, sympy.sympify(same == isinstance(op, ast.Is)))
            elif isinstance(a, Expr) and isinstance(b, Expr) and type(op) in _COMPARISONS:
                result = sympy.And(result, _COMPARISONS[type(op)](a, b))
            elif isinstance(a, Static | sympy.Integer) and isinstance(b, Static | sympy.Integer):
                holds = self.python(node, partial(_compare, op), a, b)
                result = sympy.And(result, sympy.sympify(holds.value))
            else:
                self.fail(NotUnderstoodError, node, f"{self.text(a)} and {self.text(b)} can't be compared")
        return result

    def of_IfExp(self, node: ast.IfExp) -> Any:
        test = self.value(node.test)
        truth = sympy.sympify(bool(test.value)) if isinstance(test, Static) else _truth(test)
        if truth in (sympy.true, sympy.false):
            return self.value(node.body if truth == sympy.true else node.orelse)
        self.fail(NotUnderstoodError, node, "a conditional expression needs a condition that is the same for all "
                  "tiles; write an if statement for ranks and coordinates, and tl.where for data")

    def of_Subscript(self, node: ast.Subscript) -> Any:
        owner = self.value(node.value)
        entries = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if isinstance(owner, TensorWord):
            return self.view(node, owner, entries)
        if isinstance(owner, View):
            return self.narrow(node, owner, entries)
        if isinstance(owner, Block):
            if any(ast.unparse(e) not in (":", "None") for e in entries):
                self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: indices of a block are : and None")
            return Block(ast.Subscript(owner.node, node.slice, ast.Load()), _indexed(owner.shape, entries), owner.dtype)
        if isinstance(owner, tuple):
            index = self.value(node.slice)
            if isinstance(index, sympy.Integer) and -len(owner) <= int(index) < len(owner):
                return owner[int(index)]
        if isinstance(owner, Static):
            return self.python(node, operator.getitem, owner, self.value(node.slice))
        self.fail(NotUnderstoodError, node, f"{ast.unparse(node)} is not understood")

    def python(self, node: ast.expr, function: Callable[..., Any], *arguments: Any) -> Any:
        """Ordinary Python on what is known now."""
        for a in arguments:
            if not isinstance(a, Static | sympy.Integer):
                self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: {self.text(a)} differs from tile to tile, "
                          "rank to rank or call to call; such integers take + - * // %, comparisons, min and max")
        try:
            plain = [a.value if isinstance(a, Static) else int(a) for a in arguments]
            return self.static(function(*plain), node)
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as e:
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: {e}")

    def integer(self, node: ast.expr) -> Expr:
        v = self.value(node)
        if not isinstance(v, Expr):
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)} has to be an integer known before the run")
        return v

    # ---- views

    def view(self, node: ast.expr, tensor: TensorWord, entries: list[ast.expr]) -> View:
        index: list[Range | Expr] = []
        for entry in entries:
            v = self.entry(entry)
            if isinstance(v, TileValue):
                index += v.ranges
            elif v is None:
                index.append(self.whole(tensor, len(index), node))
            else:
                index.append(_whole(v.dim) if isinstance(v, AxisWord) else v)
        if len(index) > len(tensor.dims):
            self.fail(DimensionError, node, f"{tensor.name} has the dimensions {', '.join(tensor.dims)}; "
                      f"{len(index)} indices given: {', '.join(self.text(i) for i in index)}")
        for k, (dim, i) in enumerate(zip(tensor.dims, index, strict=False)):
            if isinstance(i, Range) and i.dim != dim:
                self.fail(DimensionError, node, f"dimension {k} of {tensor.name} is {dim}; it is given {i}, a range "
                          f"along {i.dim}")
            if isinstance(i, Expr) and dim != RANKS_DIM:
                self.fail(DimensionError, node, f"dimension {k} of {tensor.name} is {dim}: it takes a range, "
                          f"not the number {to_text(i)}")
        index += [self.whole(tensor, k, node) for k in range(len(index), len(tensor.dims))]
        home: Expr | str | None = RANK
        if tensor.sharded is not None:
            cut = index[tensor.sharded]
            home = cut.part if isinstance(cut, Range) else None
        return View(tensor.name, tuple(index), home)

    def entry(self, node: ast.expr) -> Any:
        """One entry of an index: a tile, a range, a dimension, an integer, or None for `:`."""
        if isinstance(node, ast.Slice):
            if node.lower or node.upper or node.step:
                self.fail(ViewError, node, f"{ast.unparse(node)}: views are made of tiles and ranges of the schedule, "
                          "so that what is touched is known; write t.rows, a range of tk.steps, or :")
            return None
        v = self.value(node)
        if not isinstance(v, TileValue | Range | AxisWord | Expr):
            self.fail(DimensionError, node, f"{self.text(v)} is no index of a view: use the tile, a range or :")
        return v

    def whole(self, tensor: TensorWord, k: int, node: ast.expr) -> Range | Expr:
        if k >= len(tensor.dims):
            self.fail(DimensionError, node, f"{tensor.name} has the dimensions {', '.join(tensor.dims)}, and no more")
        dim = tensor.dims[k]
        if dim == RANKS_DIM:
            self.fail(DimensionError, node, f"dimension {k} of {tensor.name} has an entry a rank: say which")
        return _whole(dim)

    def narrow(self, node: ast.expr, view: View, entries: list[ast.expr]) -> View:
        """A view of a view: ranges take the place of wider ones. The unrolling checks that they lie within."""
        index = list(view.index)
        places = [k for k, i in enumerate(index) if isinstance(i, Range)]
        given: list[Any] = []
        for entry in entries:
            v = self.entry(entry)
            given += list(v.ranges) if isinstance(v, TileValue) else [v]
        if len(given) > len(places):
            self.fail(DimensionError, node, f"{view} has {len(places)} dimensions; {len(given)} indices given")
        for k, v in zip(places, given, strict=False):
            old = index[k]
            if v is None:
                continue
            if not isinstance(v, Range | AxisWord) or not isinstance(old, Range) or v.dim != old.dim:
                self.fail(DimensionError, node, f"{view} has {old} there; it is given {self.text(v)}")
            if isinstance(v, Range):
                index[k] = v if v.part is not None or old.part is None else replace(v, part=old.part)
        return replace(view, index=tuple(index))

    def at(self, node: ast.Call, view: View) -> View:
        tensor = self.context.tensors[view.tensor]
        if tensor.sharded is not None:
            self.fail(HomeError, node, f"{view} is sharded, so it has its home already: .at() is for local tensors")
        (rank,) = self.arguments(node, "rank", needed=1)
        assert rank is not None
        where = self.value(rank)
        if isinstance(where, Static) and isinstance(where.value, RanksWord):
            return replace(view, home=ALL_RANKS, guard=None)
        if not isinstance(where, Expr):
            self.fail(RankError, node, f".at() takes a rank or tk.ranks, not {self.text(where)}")
        if where.is_Integer and where < 0:
            self.fail(RankError, node, f".at({where}): there is no rank {where}; ranks go from 0 to tk.world() - 1")
        return replace(view, home=where, guard=None)  # what was waited for lies elsewhere

    def one_home(self, node: ast.AST, view: View, what: str) -> None:
        if view.home is None:
            tensor = self.context.tensors[view.tensor]
            dim = tensor.dims[tensor.sharded or 0]
            self.fail(HomeError, node, f"{what} {view}: it has more than one home, because {dim} is spread over the "
                      f"ranks and {dim}[0:{dim}] crosses the parts; use a range of the tile, which lies in one part")
        if view.home == ALL_RANKS and what == "load of":
            self.fail(HomeError, node, f"load of {view}: say of which rank, with .at(rank)")

    def writable(self, node: ast.AST, view: View, what: str) -> None:
        self.one_home(node, view, what)
        if view.tensor not in self.context.written:  # what programs record goes by the source alone
            self.fail(NotUnderstoodError, node, f"{what} {view}: write it so that the source shows which tensor it "
                      f"is, such as there = {view.tensor}[...]; there.store(...)")

    def readable(self, node: ast.AST, view: View) -> None:
        self.one_home(node, view, "load of")
        if view.guard is None and view.tensor in self.context.written:
            self.fail(UnguardedReadError, node, f"{view} is written by tiles of this program and read without a wait: "
                      f"read what tk.wait({view.tensor}[...]) returns")

    # ---- calls

    def arguments(self, node: ast.Call, *names: str, needed: int = 0) -> list[ast.expr | None]:
        """The arguments of one of our words, given by position or by name; None for those left out."""
        found: dict[str | None, ast.expr] = dict(zip(names, node.args, strict=False))
        given = [k.arg for k in node.keywords]
        if len(node.args) > len(names) or not set(given) <= set(names[len(node.args) :]) or not set(names[:needed]) <= (
            found.keys() | set(given)
        ):
            taken = ", ".join(n if k < needed else f"{n} (may be left out)" for k, n in enumerate(names))
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node.func)} takes {taken or 'no arguments'}")
        found |= {k.arg: k.value for k in node.keywords}
        return [found.get(n) for n in names]

    def call(self, node: ast.Call, label: str) -> Any:
        function = self.value(node.func)
        if isinstance(function, Block):  # a method of a block, such as acc.to(tl.float16)
            return self.triton_call(node, ast.unparse(node.func).split(".")[-1], function.node, function)
        if not isinstance(function, Static):
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node.func)} can't be called")
        called = function.value
        if not callable(called) and not isinstance(called, tuple | RanksWord):
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node.func)} can't be called")
        if isinstance(called, tuple) and isinstance(called[0], View):
            return self.method(node, *called)
        for word, meaning in ((language.wait, self.wait), (language.notify, self.notify), (language.copy, self.copy)):
            if called is word:
                return meaning(node, label)
        if called is language.rank or called is language.world:
            self.arguments(node)
            return RANK if called is language.rank else WORLD
        if called is len:
            return self.length(node)
        if called is min or called is max:
            fold = sympy.Min if called is min else sympy.Max
            values = [self.value(a) for a in node.args]
            if all(isinstance(v, Expr) for v in values):
                return fold(*values)
        if called is language.steps or isinstance(called, RanksWord):
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)} is for loops: for k in {ast.unparse(node)}:")
        if isinstance(called, triton.runtime.JITFunction) and not _is_triton(called):
            name = called.fn.__name__
            if self.functions.setdefault(name, called) is not called or name in self.context.reserved:
                self.fail(NotUnderstoodError, node, f"{name} has another meaning in the kernel: give the function a "
                          "name of its own")
            return self.triton_call(node, name, ast.Name(name, ast.Load()), None)
        if _is_triton(called):
            name = called.__name__
            if name in _TOUCHING or name.startswith("atomic") or "descriptor" in name:
                self.fail(ViewError, node, f"tl.{name} touches memory outside of views, so nobody can tell what it "
                          "reads or writes; use view.load(), view.store(), tk.copy, tk.notify, tk.wait")
            return self.triton_call(node, name, self.triton_name(node, called), None)
        return self.python_call(node, called)

    def python_call(self, node: ast.Call, called: Any) -> Any:
        values = [self.value(a) for a in node.args]
        if any(isinstance(v, Block | View | TensorWord) for v in values):
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node.func)} is not Triton's: a function that computes "
                      "on blocks needs @triton.jit")
        if node.keywords:
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: only functions of Triton take keywords")
        return self.python(node, called, *values)

    def triton_name(self, node: ast.Call, called: Any) -> ast.expr:
        """How a function of Triton is called in a kernel, whatever the tile function's file calls it."""
        name = called.__name__
        for module, path in ((tl, "tl"), (triton.language.math, "tl.math")):
            if getattr(module, name, None) is called:
                return ast.parse(f"{path}.{name}", mode="eval").body
        self.fail(NotUnderstoodError, node, f"{ast.unparse(node.func)} is neither in tl nor in tl.math: call it in a "
                  "function of your own with @triton.jit")

    def method(self, node: ast.Call, view: View, name: str) -> Any:
        if name == "at":
            return self.at(node, view)
        if name == "load":
            self.arguments(node)
            self.readable(node, view)
            shape = tuple(int(self.extent(node, r)) for r in view.ranges)
            return Block(self.hole(Load(view)), shape, self.context.dtypes[view.tensor])
        (block,) = self.arguments(node, "block", needed=1)
        assert block is not None
        self.writable(node, view, "store to")
        for r in view.ranges:
            self.extent(node, r)
        value = self.value(block)
        if isinstance(value, View):
            self.fail(ViewError, node, f"store takes a block in registers; to bring {value} there, use tk.copy")
        number = isinstance(value, Expr) or (isinstance(value, Static) and isinstance(value.value, float | bool))
        if not isinstance(value, Block) and not number:
            self.fail(ViewError, node, f"store takes a block in registers or a number, not {self.text(value)}")
        if isinstance(value, Block) and value.shape is not None and broadcast(value.shape, view.shape) != view.shape:  # type: ignore[arg-type]
            self.fail(DimensionError, node, f"a block of shape {value.shape} does not fit {view}, {view.shape}")
        code = self.code(self.node(block, value))
        self.emit(Store(self.function.site(node), view, code))
        self.stored.append(view)
        return view

    def copy(self, node: ast.Call, label: str) -> View:
        source, target = (self.value(a) for a in self.arguments(node, "source", "target", needed=2) if a is not None)
        if not (isinstance(source, View) and isinstance(target, View)):
            self.fail(ViewError, node, f"tk.copy takes two views, from and to, not {self.text(source)} and "
                      f"{self.text(target)}")
        self.readable(node, source)
        self.writable(node, target, "copy to")
        pairs = list(zip(source.ranges, target.ranges, strict=False))
        if len(source.ranges) != len(target.ranges) or any(a.dim != b.dim for a, b in pairs):
            self.fail(DimensionError, node, f"{source} and {target} do not have the same shape")
        for a, b in pairs:
            if (a.start, a.stop) != (b.start, b.stop):
                self.fail(DimensionError, node, f"{a} is copied to {b}: a copy keeps coordinates")
        here, there = (self.context.dtypes[v.tensor] for v in (source, target))
        if here != there:
            self.fail(DtypeError, node, f"a copy keeps the dtype: {source.tensor} is {here}, {target.tensor} {there}; "
                      f"declare {target.tensor} with dtype={source.tensor}")
        self.emit(Copy(self.function.site(node), source, target))
        self.stored.append(target)
        return target

    def wait(self, node: ast.Call, label: str) -> Any:
        views = self.views(node)
        for v in views:
            if v.home is None or v.home == ALL_RANKS:
                self.fail(HomeError, node, f"wait for {v}: it has more than one home, and a wait looks at one")
        name = self.fresh_name(f"{label}_ready" if label else "ready")
        self.emit(Wait(self.function.site(node), name, tuple(views)))
        guarded = tuple(replace(v, guard=name) for v in views)
        return guarded if len(guarded) > 1 else guarded[0]

    def notify(self, node: ast.Call, label: str) -> Any:
        views = self.views(node)
        for argument, v in zip(node.args, views, strict=True):
            self.one_home(node, v, "notify of")
            if v not in self.stored:
                did = ", ".join(str(s) for s in self.stored) or "nothing"
                self.fail(NotifyWithoutStoreError, node, f"notify of {v}, which this tile did not store here; it "
                          f"stored {did}. Notify what store and copy return ({ast.unparse(argument)})")
        self.emit(Notify(self.function.site(node), tuple(views)))
        return Static(None)

    def views(self, node: ast.Call) -> list[View]:
        """The arguments of tk.wait or tk.notify."""
        values = [self.value(a) for a in node.args]
        for v in values:
            if not isinstance(v, View):
                self.fail(ViewError, node, f"{ast.unparse(node.func)} takes views, not {self.text(v)}")
        if not values or node.keywords:
            self.fail(ViewError, node, f"{ast.unparse(node.func)} takes views, and nothing else")
        return values

    def length(self, node: ast.Call) -> Expr:
        (of,) = self.arguments(node, "range", needed=1)
        assert of is not None
        v = self.value(of)
        if isinstance(v, Range):
            return self.extent(node, v)
        if isinstance(v, tuple):
            return sympy.Integer(len(v))
        self.fail(NotUnderstoodError, node, f"len() is for ranges; {self.text(v)} is none")

    def triton_call(self, node: ast.Call, name: str, function: ast.expr, owner: Block | None) -> Block:
        if any(k.arg is None for k in node.keywords):
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: ** is not understood in a tile function")
        values = [self.value(a) for a in node.args]
        keywords = {k.arg: self.value(k.value) for k in node.keywords if k.arg}
        shape, dtype = triton_calls.result(name, owner, values, keywords)
        if name == "dot":
            shape = self.dot(node, values, keywords)
        arguments = [self.node(n, v) for n, v in zip(node.args, values, strict=True)]
        keys = [ast.keyword(k.arg, self.node(k.value, keywords[k.arg])) for k in node.keywords if k.arg]
        return Block(ast.Call(function, arguments, keys), shape, dtype)

    def dot(self, node: ast.Call, values: list[Any], keywords: dict[str, Any]) -> tuple[int, int] | None:
        a, b = (v if isinstance(v, Block) else None for v in (*values, *keywords.values(), None, None)[:2])
        if a is None or b is None:
            self.fail(NotUnderstoodError, node, "tl.dot takes two blocks")
        for side, operand in (("left", a), ("right", b)):
            if operand.dtype is not None and operand.dtype not in DOT_DTYPES:
                self.fail(DtypeError, node, f"tl.dot does not take {operand.dtype} ({side} operand); it takes "
                          f"{', '.join(DOT_DTYPES)}")
        if a.dtype and b.dtype and a.dtype != b.dtype:
            self.fail(DtypeError, node, f"tl.dot takes operands of one dtype; left is {a.dtype}, right {b.dtype}")
        if not a.shape or not b.shape:
            return None
        if a.shape[-1] != b.shape[-2]:
            self.fail(DimensionError, node, f"tl.dot of {a.shape} and {b.shape}: {a.shape[-1]} is not {b.shape[-2]}")
        if min(a.shape[-2], a.shape[-1], b.shape[-1]) < 16:
            self.fail(TileSizeError, node, f"tl.dot of {a.shape} and {b.shape}: it takes at least 16 along each side")
        self.dots.append((a.shape[-2], b.shape[-1], a.shape[-1]))
        return a.shape[-2], b.shape[-1]

    # ---- source with holes

    def hole(self, what: Load | Expr) -> ast.expr:
        if what not in self.holes:
            self.holes.append(what)
        return ast.Name(f"__hole{self.holes.index(what)}__", ast.Load())

    def node(self, node: ast.expr, value: Any) -> ast.expr:
        """The source of a value, as it stands in Triton code."""
        match value:
            case Block():
                return value.node
            case sympy.Integer():
                return ast.Constant(int(value)) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-int(value)))
            case Expr():
                return self.hole(value)
            case tuple():
                return ast.Tuple([self.node(node, v) for v in value], ast.Load())
            case Static(value=v):
                if isinstance(v, bool | float | str | None):
                    return ast.Constant(v)
                if isinstance(v, tl.dtype):
                    return ast.parse(f"tl.{triton_calls.language_name(v)}", mode="eval").body
                if isinstance(v, triton.runtime.JITFunction):
                    self.functions[v.fn.__name__] = v
                    return ast.Name(v.fn.__name__, ast.Load())
        if isinstance(value, View | TensorWord):
            self.fail(ViewError, node, f"{self.text(value)} is used as if it were a block: memory is touched through "
                      f"views, with .load()")
        self.fail(NotUnderstoodError, node, f"{self.text(value)} can't be part of Triton code")

    def code(self, node: ast.expr, prefix: str = "") -> Code:
        """The source of an expression with the holes that were made while it was read; `prefix` goes before it."""
        text = prefix + ast.unparse(ast.fix_missing_locations(node)).replace("{", "{{").replace("}", "}}")
        used = [h for k, h in enumerate(self.holes) if f"__hole{k}__" in text]
        for k, h in enumerate(self.holes):
            if h in used:
                text = text.replace(f"__hole{k}__", f"{{{used.index(h)}}}")
        made = Code(text, tuple(used), tuple(self.dots))
        self.holes, self.dots = [], []
        return made

    def elementwise(self, node: ast.expr, *operands: Any) -> Block:
        shape: tuple[int, ...] | None = ()
        dtype: str | None = None
        for o in operands:
            shape = broadcast(shape, o.shape if isinstance(o, Block) else ())
            dtype = promote(dtype, o.dtype if isinstance(o, Block) else None)
        return Block(node, shape, dtype)

    def local_name(self, name: str) -> str:
        """The name of a variable in the kernel: not one that the kernel has already."""
        if name not in self.context.reserved:
            return name
        if name not in self.renamed:
            self.renamed[name] = self.fresh_name(name)
        return self.renamed[name]

    def fresh_name(self, name: str) -> str:
        """The name of something that the tile function does not name itself: not one that it uses either."""
        while name in self.context.reserved or name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def text(self, value: Any) -> str:
        match value:
            case Expr() | _BOOLEAN():
                return to_text(value)
            case Block():
                return ast.unparse(value.node)
            case TensorWord():
                return value.name
            case AxisWord():
                return value.dim
            case TileValue():
                return "the tile"
            case Static():
                return repr(value.value)
        return str(value)


def _truth(value: Any) -> Any:
    """What an integer is as a condition; anything else is left as it is."""
    return sympy.Ne(value, 0) if isinstance(value, Expr) else value


def _same(one: Any, other: Any) -> bool:
    """Whether two values known before the run are the same, with what guards them."""
    guards = [v.guard if isinstance(v, View) else None for v in (one, other)]
    return bool(one == other) and guards[0] == guards[1]


def _agree(one: Any, other: Any) -> bool:
    """Whether a name that is the one on one way and the other on another can be used after both."""
    return (isinstance(one, Block) and isinstance(other, Block)) or _same(one, other)


def _either(one: Any, other: Any) -> Any:
    """What is known of a value that is one of two that agree."""
    if not isinstance(one, Block):
        return one
    shape = one.shape if one.shape == other.shape else None
    return Block(one.node, shape, one.dtype if one.dtype == other.dtype else None)


def _whole(dim: str) -> Range:
    return Range(dim, sympy.S.Zero, symbol(dim), None, None, whole=True)


def _is_triton(called: Any) -> bool:
    module = getattr(called, "__module__", "") or ""
    return module.startswith(("triton.language", "triton.tools"))


def _same_object(a: Any, b: Any) -> bool:
    plain = [v.value if isinstance(v, Static) else v for v in (a, b)]
    return plain[0] is plain[1]


def _compare(op: ast.cmpop, a: Any, b: Any) -> bool:
    table = {ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
             ast.Gt: operator.gt, ast.GtE: operator.ge}  # fmt: skip
    return bool(table[type(op)](a, b))


def _symbol_of(op: ast.operator) -> str:
    return ast.unparse(ast.BinOp(ast.Name("a"), op, ast.Name("b")))[1:-1]


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
