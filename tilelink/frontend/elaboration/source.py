"""Source text of tile functions, rewritten: names of the kernel, and code with holes for loads and integers."""

from __future__ import annotations

import ast
import re
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, NoReturn

import sympy
import triton
import triton.language as tl

from tilelink.errors import (
    DimensionError,
    DtypeError,
    NotUnderstoodError,
    ScheduleError,
    Site,
    TileLinkError,
    TileSizeError,
    ViewError,
    similar,
)
from tilelink.frontend import ir
from tilelink.frontend.arithmetic import to_text
from tilelink.frontend.expressions import Boolean, Expr
from tilelink.frontend.schedule import COMPUTES, CopyEngine, SMs
from tilelink.frontend.values import (
    FLOAT8,
    TRITON_DTYPES,
    WIDER_THAN_FLOAT8,
    Block,
    Static,
    TileValue,
    block_dtype,
    broadcast,
    dtype_of_two,
    is_floating,
    mixes,
)
from tilelink.frontend.walk import step_size
from tilelink.language import AxisWord, Launch, Recording, TensorWord, TileFunction

_HOLE = re.compile(r"__hole(\d+)__")


def parsed(text: str) -> ast.expr:
    """The expression of a text."""
    return ast.parse(text, mode="eval").body


class Source(ABC):
    """The base of all layers of the elaborator: the names in scope, and source text with holes for Triton's part.

    `written`: the tensors that tiles write, and where first. `step`: the length of steps that the schedule gives, and
    `stepped`: whether a loop takes it. `order`: the order of its tiles, and `on_engine`: whether a copy engine has
    them. `functions`: the Triton functions that roles call, by name. `own`: the names of the dimensions in which the
    members of lists differ. `reserved`: names of the role that this one is folded into.
    """

    def __init__(
        self, program: ir.TileProgram, recording: Recording, launch: Launch, resource: SMs | CopyEngine,
        tile: TileValue, reserved: frozenset[str],
    ) -> None:  # fmt: skip
        self.function = function = launch.function
        self.routes = program.routes
        self.tensors, self.cut, self.own = {t.name: t for t in recording.tensors}, program.cut, launch.own
        self.dtypes = {t.name: t.dtype for t in program.tensors}
        self.written = {
            word.name: site
            for other in reversed(recording.launches)
            for p, site in other.function.written_parameters.items()
            for word in other.tensors(p)
        }
        self.tile, self.order, self.on_engine = tile, resource.order, isinstance(resource, CopyEngine)
        self.step, self.sizes = step_size(resource, launch.space), dict(resource.whole)
        self.stepped = function.takes_step
        self.functions, self.reserved = dict(program.functions), reserved
        self.names = function.names()
        self.env: dict[str, Any] = {function.parameters[0]: tile}
        self.env |= {p: self.argument(a) for p, a in launch.arguments.items()}
        self.statements: list[ir.Statement] = []
        self.stored: dict[ir.View, Site] = {}
        self.stored_inside: dict[ir.View, Site] = {}
        self.wholes: set[str] = set()
        self.holes: dict[ir.Load | ir.Variable | ir.Called | Expr | Boolean, int] = {}
        self.open = False
        self.dots: list[tuple[int, int, int]] = []
        self.nested: set[str] = set()
        self.ended: set[str] = set()
        self.renamed: dict[str, str] = {}
        self.callers: tuple[TileFunction, ...] = (function,)
        self.taken = {n.id for n in ast.walk(function.node) if isinstance(n, ast.Name)} | reserved

    @abstractmethod
    def value(self, node: ast.expr, label: str = "") -> Any:
        """The value of an expression. `label`: the name of the guard, for a wait that stands right of `label = `."""

    def fail(self, kind: type[TileLinkError], node: ast.AST, message: str) -> NoReturn:
        raise kind(message, self.function.site(node)) from None

    def emit(self, s: ir.Statement) -> None:
        self.statements.append(s)

    def arguments(self, node: ast.Call, *names: str, needed: int = 0) -> list[Any]:
        """The arguments of one of our words, given by position or by name; None for those left out. The first `needed`
        can't be left out."""
        found: dict[str | None, ast.expr] = dict(zip(names, node.args, strict=False))
        given = [k.arg for k in node.keywords]
        if len(node.args) > len(names) or not set(given) <= set(names[len(node.args) :]) or not set(names[:needed]) <= (
            found.keys() | set(given)
        ):
            taken = ", ".join(n if k < needed else f"{n} (may be left out)" for k, n in enumerate(names))
            meant = next(filter(None, (similar(g, names) for g in given if g is not None)), "")
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node.func)} takes {taken or 'no arguments'}{meant}")
        found |= {k.arg: k.value for k in node.keywords}
        return [found.get(n) for n in names]

    def static(self, value: Any) -> Any:
        value = getattr(value, "value", value) if isinstance(value, tl.constexpr) else value
        if isinstance(value, int) and not isinstance(value, bool):
            return sympy.Integer(value)
        return Static(value)

    def argument(self, given: Any) -> Any:
        """An argument that a program gives a tile function: a tensor, a list of tensors, or any other object."""
        if isinstance(given, tuple):
            return tuple(self.argument(g) for g in given)
        return given if isinstance(given, TensorWord) else self.static(given)

    def hole(self, what: ir.Load | ir.Variable | ir.Called | Expr | Boolean) -> ast.expr:
        """The source that stands for it. `open` until a statement has it, except for variables, which stay the same."""
        self.open |= not isinstance(what, ir.Variable)
        return ast.Name(f"__hole{self.holes.setdefault(what, len(self.holes))}__", ast.Load())

    def node(self, node: ast.expr, value: Any) -> ast.expr:
        """The source of a value, as it stands in Triton code."""
        match value:
            case Block():
                return value.node
            case sympy.Integer():
                return ast.Constant(int(value)) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-int(value)))
            case Expr() | Boolean():
                return self.hole(value)
            case tuple():
                return ast.Tuple([self.node(node, v) for v in value], ast.Load())
            case Static(value=v):
                if isinstance(v, bool | float | str | None):
                    return ast.Constant(v)
                if isinstance(v, tl.dtype):
                    return parsed(f"tl.{TRITON_DTYPES[self.block_dtype(node, v)]}")
                if isinstance(v, triton.runtime.JITFunction):
                    return self.hole(ir.Called(self.function_name(v)))
                if hasattr(v, "__array__"):
                    self.fail(NotUnderstoodError, node, f"{ast.unparse(node)} is a {type(v).__name__} and can't be "
                              "part of Triton code; use a Python number, or pass it as a tensor of the program")
        if isinstance(value, ir.View | TensorWord):
            self.fail(ViewError, node, f"{self.text(value)} is used as if it were a block: read memory through views, "
                      f"with .load()")
        instead = self.instead(node, value)
        self.fail(NotUnderstoodError, node, f"{self.text(value)} can't be part of Triton code{instead}")

    def instead(self, node: ast.expr, value: Any) -> str:
        """The end of an error about a value that is no number: what it is, and what to write in its place. `node`: its
        source."""
        written = ast.unparse(node)
        match value:
            case Boolean():
                return (f"; {written} is a condition, and takes only `and`, `or` and `not`: put what depends on it "
                        "below an `if`, or compute an integer with + - * // % min max")
            case ir.View():
                rows = ", and an index that picks rows takes it as it is" if len(value.ranges) == 1 else ""
                return f"; {written} is a view: its elements are {written}.load(){rows}"
            case TensorWord():
                return f"; {written} is a tensor: its elements are loaded through views, {written}[...].load()"
            case AxisWord():
                return f"; {written} is a dimension: its number of elements is .size"
            case ir.Range():
                return f"; {written} is a range: it has .start, and len(), the length of the block"
            case TileValue():
                return f"; {written} is the tile: tensors are indexed by it, and it has ranges such as {written}.rows"
            case tuple():
                return f"; {written} is a tuple of {len(value)}: take one of its entries, such as {written}[0]"
        return ""

    def block_dtype(self, node: ast.AST, dtype: tl.dtype) -> str:
        """The name of a dtype of Triton that blocks may have. Raises DtypeError."""
        try:
            return block_dtype(dtype)
        except ValueError as e:
            self.fail(DtypeError, node, str(e))

    def source(self, node: ast.expr) -> ir.Code:
        """The source of an expression, with the contents of its holes, variables last."""
        text, filled = ast.unparse(node).replace("{", "{{").replace("}", "}}"), list(self.holes)
        used = sorted(dict.fromkeys(_HOLE.findall(text)), key=lambda k: isinstance(filled[int(k)], ir.Variable))
        numbered = _HOLE.sub(lambda hole: f"{{{used.index(hole[1])}}}", text)
        return ir.Code(numbered, tuple(filled[int(k)] for k in used), tuple(self.dots))

    def code(self, node: ast.expr) -> ir.Code:
        """The source of an expression, for a statement."""
        made, self.open, self.dots = self.source(node), False, []
        return made

    def of_equal_dimensions(self, *values: Any) -> tuple[Any, ...]:
        """The values. Blocks with fewer dimensions than others get leading ones of length 1, since Gluon adds none."""
        most = max((len(v.shape) for v in values if isinstance(v, Block) and v.shape), default=0)

        def spread(v: Any) -> Any:
            lacks = most - len(v.shape) if isinstance(v, Block) and v.shape else 0
            if not lacks:
                return v
            index: list[ast.expr] = [ast.Constant(None)] * lacks + [ast.Slice()] * len(v.shape)
            return replace(v, node=ast.Subscript(v.node, ast.Tuple(index), ast.Load()), shape=(1,) * lacks + v.shape)

        return tuple(map(spread, values))

    def elementwise(self, node: ast.expr, made: ast.expr, left: Any, right: Any) -> Block:
        """The block that results from an operation on blocks and numbers. `made`: its source."""
        try:
            shape = broadcast(*(o.shape if isinstance(o, Block) else () for o in (left, right)))
        except ValueError as e:
            self.fail(DimensionError, node, f"{ast.unparse(node)}: {e}")
        op = made.op if isinstance(made, ast.BinOp) else None
        fractions = any(isinstance(o, Block) and o.dtype is not None and is_floating(o.dtype) for o in (left, right))
        if fractions and op is not None and not isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.Mod):
            instead = "tl.floor(a / b)" if isinstance(op, ast.FloorDiv) else ".to(tl.int32) first"
            self.fail(DtypeError, node, f"{ast.unparse(node)}: this is for blocks of integers; of fractions, write "
                      f"{instead}")
        dtype = dtype_of_two(left, right, divides=isinstance(op, ast.Div | ast.Mod))
        self.not_float8(node, left, right, dtype=dtype)
        if isinstance(op, ast.Div) and dtype is not None and not is_floating(dtype):
            dtype = "float32"
        return Block(made, shape, dtype, mixes((left, right), dtype))

    def not_float8(self, node: ast.expr, *operands: Any, dtype: str | None) -> None:
        """Raises DtypeError if an operator would compute with blocks of float8 in `dtype`: Triton compiles none that
        does not convert them to a wider dtype first."""
        narrow = next((o.dtype for o in operands if isinstance(o, Block) and o.dtype in FLOAT8), None)
        if narrow is not None and dtype not in WIDER_THAN_FLOAT8:
            others = ", ".join(o.dtype for o in operands if isinstance(o, Block) and o.dtype not in (None, narrow))
            self.fail(DtypeError, node, f"{ast.unparse(node)}: operators do not take {narrow}"
                      f"{others and f' and {others}'}: convert it, .to(tl.float32)")

    def local_name(self, name: str) -> str:
        """The name of a variable in the role. Inside a called tile function, the name is new in the role."""
        if len(self.callers) == 1 and name not in self.reserved:
            return name
        if name not in self.renamed:
            self.renamed[name] = self.fresh_name(name)
        return self.renamed[name]

    def fresh_name(self, name: str) -> str:
        """A name that the tile function does not use, for something that it does not name itself."""
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def function_name(self, called: Any) -> str:
        """The name of a Triton function of the user. No other function that the program calls has it."""
        name = called.fn.__name__
        while self.functions.setdefault(name, called) is not called:
            name += "_"
        return str(name)

    def text(self, value: Any) -> str:
        """A value as text for a person."""
        value = self.source(value.node) if isinstance(value, Block) else value
        return to_text(value) if isinstance(value, sympy.Basic) else str(value)

    def extent(self, node: ast.AST, r: ir.Range) -> sympy.Integer:
        if r.extent is None and self.on_engine:
            self.fail(ScheduleError, node, f"{self.callers[0].name} can't be on the copy engine: {COMPUTES}")
        if r.extent is None:
            own = next((o for o in self.tile.ranges if o.dim == r.dim), None)
            if r.whole and own is not None and own.extent is not None:
                tile = next((n for n, v in self.env.items() if isinstance(v, TileValue)), "t")
                self.fail(TileSizeError, node, f"`:`, or an index left out, takes all of {r.dim}, which the schedule "
                          f"cuts into tiles of {own.extent} for this role: write {tile}.{r.dim} there")
            size = f"give the role a tile size along {r.dim}, or " if own is not None else ""
            whole = f", or say whole={{{r.dim!r}: size}} for the role in the schedule" if r.whole else ""
            self.fail(TileSizeError, node, f"{r} is not cut into tiles by the schedule, so it can't be a block in "
                      f"registers; {size}go along it with tk.steps{whole}")
        return sympy.Integer(r.extent)

    def blocked(self, node: ast.AST, r: ir.Range) -> ir.Range:
        """The range of a block in registers. A whole dimension takes as many elements as the schedule says."""
        if r.whole and r.dim in self.sizes:
            self.wholes.add(r.dim)
            r = ir.Range(r.dim, r.start, r.stop, self.sizes[r.dim])
        self.extent(node, r)
        return r
