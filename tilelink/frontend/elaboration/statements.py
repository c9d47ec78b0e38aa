"""Statements of tile functions: assignments, loops, branches, and calls of other tile functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import sympy
import triton.language as tl

from tilelink import language
from tilelink.errors import (
    DataBranchError,
    DimensionError,
    DtypeError,
    NotUnderstoodError,
    TileLinkError,
    TileSizeError,
    ViewError,
    counted,
)
from tilelink.frontend import ir
from tilelink.frontend.arithmetic import to_text
from tilelink.frontend.elaboration.calls import Calls
from tilelink.frontend.elaboration.reading import truth
from tilelink.frontend.expressions import (
    WORLD,
    Boolean,
    Expr,
    floor_div,
    loop,
    natural,
    never_negative,
    smaller,
)
from tilelink.frontend.schedule import power_of_two
from tilelink.frontend.values import Block, Static, is_floating
from tilelink.frontend.walk import axis_values
from tilelink.language import AxisWord, RanksWord, TileFunction

INSTEAD: dict[type[ast.stmt], str] = {
    ast.While: ": the number of steps must be known before the run; write for k in tk.steps(...) or range(...)",
    ast.Assert: ": sizes are known where the program is called; let the caller look at them",
    ast.With: ": a kernel has nothing to open or to close; write its body alone",
    ast.Try: ": a kernel raises nothing; write its body alone",
    ast.Raise: ": a kernel raises nothing; sizes are known where the program is called, so let the caller raise",
    ast.Break: ": the end of a loop is known before the run; write it as stop= of tk.steps or the end of range, or put "
    "the rest of the loop's body below an if",
    ast.Continue: ": put the rest of the loop's body below an if",
    ast.FunctionDef: ": write the function outside of it, with @triton.jit if it takes blocks or with @tk.tile if it "
    "takes views, and call it here",
    ast.ClassDef: ": write the class outside of it",
    ast.Match: ": write if and elif",
    ast.Delete: ": leave it out; a name costs nothing once it is no longer read",
    **dict.fromkeys((ast.Import, ast.ImportFrom), ": import at the top of the file"),
    **dict.fromkeys((ast.Global, ast.Nonlocal), ": a tile function changes nothing outside of it but memory"),
    **dict.fromkeys((ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef), ": leave async out"),
}
"""Advice for statements that are not understood."""
_WORDS = {ast.FunctionDef: "def", ast.ClassDef: "class", ast.Delete: "del", ast.ImportFrom: "import"}
LOOPS = "loops of a tile function run over tk.steps(), tk.ranks(), tk.each() or range()"


class Elaborator(Calls):
    """Elaborates one tile function for one role, statement by statement, and the tile functions that it calls."""

    def body(self) -> tuple[ir.Statement, ...]:
        self.run(self.function.node.body)
        return tuple(self.statements)

    def run(self, statements: list[ast.stmt]) -> None:
        for s in statements:
            handler = getattr(self, f"on_{type(s).__name__}", None)
            if handler is None:
                word, cure = _WORDS.get(type(s), type(s).__name__.lower()), INSTEAD.get(type(s), "")
                self.fail(NotUnderstoodError, s, f"{word} is not understood in a tile function{cure}")
            handler(s)

    def on_Pass(self, s: ast.Pass) -> None:
        pass

    def on_Expr(self, s: ast.Expr) -> None:
        if isinstance(s.value, ast.Constant):
            return
        value = self.value(s.value)
        if isinstance(value, Block) and not isinstance(value.node, ast.Name):
            self.emit(ir.Compute(self.function.site(s), self.code(value.node)))

    def on_Assign(self, s: ast.Assign) -> None:
        target = s.targets[0]
        left = target.elts if isinstance(target, ast.Tuple) else [target]
        names = [n.id for n in left if isinstance(n, ast.Name)]
        if len(s.targets) > 1 or len(names) < len(left):
            self.fail(NotUnderstoodError, s, "an assignment in a tile function has names on its left, once")
        value = self.value(s.value, "_".join(names))
        values = [value]
        if isinstance(target, ast.Tuple):
            several = [Block(value.node)] * len(names) if isinstance(value, Block) else []  # of a Triton function
            values = list(value) if isinstance(value, tuple) else several
        if len(values) != len(names):
            self.fail(NotUnderstoodError, s, f"{counted(len(names), 'name')} for {ast.unparse(s.value)}")
        self.bind(s, names, values, value)

    def on_AnnAssign(self, s: ast.AnnAssign) -> None:
        """An assignment with an annotation, which means nothing here."""
        if s.value is not None:
            self.on_Assign(ast.copy_location(ast.Assign([s.target], s.value), s))

    def bind(self, s: ast.stmt | ast.expr, names: list[str], values: list[Any], whole: Any) -> None:
        """Gives names their values, all at once. Blocks become variables of the kernel. `whole`: right of the =."""
        blocks = [(n, v) for n, v in zip(names, values, strict=True) if isinstance(v, Block)]
        if any(isinstance(v, tuple) and _holds_block(v) for v in values):
            self.fail(NotUnderstoodError, s, "a tuple of blocks has no name in a kernel: give each block its own")
        for name, value in zip(names, values, strict=True):
            old = self.env.get(name)
            if name not in self.nested:
                continue
            if isinstance(old, Block) and isinstance(value, Block):
                self.same_block(s, name, old, value, "in a loop or a branch it can't become")
            if _agree(old, value):
                continue
            if isinstance(old, Block):
                self.fail(NotUnderstoodError, s, f"{name} is a block of data: in a loop or a branch it can't become "
                          f"{self.text(value)}")
            self.fail(NotUnderstoodError, s, f"{name} is known before the run (it is {self.text(old)}), so it can't "
                      "change in a loop or a branch; only blocks can. For data, begin with tl.zeros or tl.full")
        if blocks:
            own = [self.local_name(n) for n, _ in blocks]
            of_one = isinstance(whole, Block) and len(blocks) > 1  # of a function that returns several
            blocks = blocks if of_one else [(n, self.as_before(n, v)) for n, v in blocks]
            nodes = [v.node for _, v in blocks]
            right = whole.node if of_one else nodes[0] if len(nodes) == 1 else ast.Tuple(nodes, ast.Load())
            variables = [self.hole(ir.Variable(o)) for o in own]
            if [ast.unparse(right)] != [ast.unparse(v) for v in variables]:  # a result may have its name already
                self.emit(ir.Compute(self.function.site(s), self.code(right), tuple(own)))
            self.env |= {n: replace(v, node=o) for (n, v), o in zip(blocks, variables, strict=True)}
        self.env |= {n: v for n, v in zip(names, values, strict=True) if not isinstance(v, Block)}

    def as_before(self, name: str, value: Block) -> Block:
        """The block for a variable. A loop or a branch keeps the variable's dtype, so an integer of the kernel that
        went into either block does not change it."""
        old = self.env.get(name)
        if name not in self.nested or not isinstance(old, Block):
            return value
        whole_number = value.dtype is not None and not is_floating(value.dtype)
        if not value.mixed and not (old.mixed and whole_number):
            return value
        dtype = ast.Attribute(old.node, "dtype", ast.Load())
        return replace(old, node=ast.Call(ast.Attribute(value.node, "to", ast.Load()), [dtype], []), shape=value.shape)

    def same_block(self, s: ast.stmt | ast.expr, name: str, one: Block, other: Block, what: str) -> None:
        """Raises DtypeError or DimensionError if a variable of a kernel would change its dtype or shape, as far as they
        are known. Triton compiles no such loop or branch."""
        a, b = one.dtype, other.dtype
        if a != b and a is not None and b is not None:
            self.fail(DtypeError, s, f"{name} is a block of {a}: {what} one of {b}; convert it, .to(...)")
        if None not in (one.shape, other.shape) and one.shape != other.shape:
            self.fail(DimensionError, s, f"{name} is a block of shape {one.shape}: {what} one of {other.shape}")

    def on_Return(self, s: ast.Return) -> None:
        rule = "only a tile function that another one calls may return, in its last line"
        ifs = [n for n in ast.walk(self.function.node) if isinstance(n, ast.If)]
        above = next((n for n in ifs if s in n.body or s in n.orelse), None)
        if above is None:
            self.fail(NotUnderstoodError, s, f"leave this return out: {rule}")
        test = ast.unparse(above.test)
        self.fail(NotUnderstoodError, s, "no early return: put the rest of the body below "
                  f"`if {f'not ({test})' if s in above.body else test}:`; {rule}")

    def on_AugAssign(self, s: ast.AugAssign) -> None:
        if not isinstance(s.target, ast.Name):
            self.fail(NotUnderstoodError, s, "an assignment in a tile function has a name on its left")
        whole = ast.copy_location(ast.BinOp(ast.copy_location(ast.Name(s.target.id, ast.Load()), s), s.op, s.value), s)
        value = self.value(whole)
        self.bind(s, [s.target.id], [value], value)

    def on_For(self, s: ast.For) -> None:
        if s.orelse:
            self.fail(NotUnderstoodError, s.orelse[0], "a loop of a tile function has no else: no break ends it early, "
                      "so write these lines behind the loop")
        if not isinstance(s.iter, ast.Call):
            self.fail(NotUnderstoodError, s, LOOPS)
        function = self.value(s.iter.func)
        called = function.value if isinstance(function, Static) else function
        if called is language.each:
            self.each(s, s.iter)
            return
        if not isinstance(s.target, ast.Name):
            self.fail(NotUnderstoodError, s, LOOPS)
        name = s.target.id
        self.check_new(s, name)
        if called is language.steps:
            self.steps(s, name, s.iter)
        elif isinstance(called, RanksWord):
            self.arguments(s.iter)
            counter = loop(self.local_name(name))
            self.loop(s, counter, sympy.S.Zero, axis_values(called)[0], 1, {name: counter})
        elif called is range or called is tl.range or called is tl.static_range:
            self.range(s, name, s.iter)
        else:
            self.fail(NotUnderstoodError, s, f"a loop over {ast.unparse(s.iter.func)} is not understood")

    def check_new(self, s: ast.For, *names: str) -> None:
        for n in names:
            if n in self.env:
                self.fail(NotUnderstoodError, s, f"{n} is defined already: the variable of a loop needs a new name")

    def each(self, s: ast.For, call: ast.Call) -> None:
        """Reads the body for the members of lists, one after the other: it is unrolled, since lists are known here."""
        targets = s.target.elts if isinstance(s.target, ast.Tuple) else [s.target]
        names = [n.id for n in targets if isinstance(n, ast.Name)]
        if len(names) != len(targets) or len(names) != len(call.args) or call.keywords:
            self.fail(NotUnderstoodError, s, "for weight, bias in tk.each(weights, biases): a name for each list")
        self.check_new(s, *names)
        for members in language.lists_of(*[self.value(a) for a in call.args], site=self.function.site(s)):
            self.env |= dict(zip(names, members, strict=True))
            self.run(s.body)
            self.env = {n: v for n, v in self.env.items() if n not in names}
        self.ended |= set(names)

    def range(self, s: ast.For, name: str, call: ast.Call) -> None:
        given = [a for a in self.arguments(call, "start", "stop", "step", needed=1) if a is not None]
        bounds = [self.integer(a) for a in given]
        start, stop = (sympy.S.Zero, bounds[0]) if len(bounds) == 1 else bounds[:2]
        step = bounds[2] if len(bounds) > 2 else sympy.S.One
        if step.is_Integer and step < 0:
            count = re.sub(r"\b(rank|world)\b", r"tk.\1()", to_text(floor_div(start - stop - step - 1, -step)))
            many = "" if step == -1 else f"{-step} * "
            self.fail(NotUnderstoodError, s, f"a range counts up: write `for {name} in range({count})`, and in its "
                      f"body {ast.unparse(given[0])} - {many}{name} where {name} stands now")
        if not step.is_Integer or step < 1:
            self.fail(NotUnderstoodError, s, f"the step of a range is a positive constant, not {to_text(step)}")
        if not never_negative(start):
            self.fail(NotUnderstoodError, s, f"a range begins at 0 or above; {to_text(start)} may be negative")
        counter = loop(self.local_name(name))
        self.loop(s, counter, start, stop, int(step), {name: counter})

    def steps(self, s: ast.For, name: str, call: ast.Call) -> None:
        if len(call.args) > 1:
            self.fail(NotUnderstoodError, call, f"{ast.unparse(call)}: what follows the first argument is named, "
                      f"stop={ast.unparse(call.args[1])} where the steps end, or by={ast.unparse(call.args[1])} how "
                      "long a step is")
        dimension, end, by = self.arguments(call, "along", "stop", "by", needed=1)
        along, stop = self.value(dimension), None if end is None else self.integer(end)
        if not isinstance(along, AxisWord | ir.Range):
            self.fail(ViewError, call, f"tk.steps goes along a dimension or a range, not {self.text(along)}")
        self.stepped |= by is None
        size = self.step if by is None else self.length_of_step(call, by)
        if size is None:
            self.fail(TileSizeError, call, "the schedule gives this role's loops no step: add it as the last of tile=, "
                      "or say by= here")
        lo = loop(self.local_name(name))

        def walk(of: ir.Range) -> None:
            limit = of.stop if stop is None else smaller(of.stop, stop)
            k = ir.Range(
                of.dim, lo, smaller(lo + size, limit), size, of.part, of.offset + natural(lo - of.start),
                inside=of.extent, bounded=of.bounded or stop is not None, segment=of.segment,
            )  # fmt: skip
            self.loop(s, lo, of.start, limit, size, {name: k})

        if isinstance(along, ir.Range):
            walk(along)
        elif along.dim not in self.cut:
            walk(ir.whole_range(along.dim))
        else:  # steps never cross the parts of the ranks, nor go beyond the rows of a route in them
            p = loop(self.fresh_name(f"{name}_part"))
            with self.inside(s, p, sympy.S.Zero, WORLD, 1):
                walk(self.part(along.dim, p))

    def length_of_step(self, call: ast.Call, by: ast.expr) -> int:
        """The length that by= gives the steps of a loop."""
        size = self.integer(by)
        if not size.is_Integer or not power_of_two(int(size)):
            self.fail(TileSizeError, call, f"by={self.text(size)}: the length of a step is a constant, and a power of "
                      "two")
        return int(size)

    def loop(
        self, s: ast.For, counter: sympy.Symbol, start: Expr, stop: Expr, step: int, names: dict[str, Any]
    ) -> None:
        with self.inside(s, counter, start, stop, step):
            self.env |= names
            self.run(s.body)

    @contextmanager
    def inside(self, s: ast.stmt, counter: sympy.Symbol, start: Expr, stop: Expr, step: int) -> Iterator[None]:
        """Statements that are made inside become the body of a loop."""
        before = dict(self.env)
        with self.nesting() as body:
            yield
        self.leave(before, self.env)  # the loop may have no step
        self.emit(ir.For(self.function.site(s), counter.name, start, stop, step, tuple(body)))

    @contextmanager
    def nesting(self) -> Iterator[list[ir.Statement]]:
        """Statements that are made inside go to the yielded list. A view stored inside may only be notified inside,
        because nobody knows outside whether and how often it is stored."""
        outer, nested, stored = self.statements, self.nested, dict(self.stored)
        self.statements, self.nested = [], nested | set(self.env)
        yield self.statements
        self.stored_inside |= self.stored
        self.statements, self.nested, self.stored = outer, nested, stored

    def leave(self, one: dict[str, Any], other: dict[str, Any]) -> None:
        """Goes on after a loop or a branch, with the names on which its two ways (`one`, `other`) agree."""
        self.env = {n: _either(one[n], other[n]) for n in one if n in other and _agree(one[n], other[n])}
        self.ended |= (one.keys() | other.keys()) - self.env.keys()

    def on_If(self, s: ast.If) -> None:
        condition = truth(self.value(s.test))
        if condition in (sympy.true, sympy.false):
            self.run(s.body if condition == sympy.true else s.orelse)
            return
        code = self.code(condition.node) if isinstance(condition, Block) else None
        if code is None and not isinstance(condition, Boolean):
            self.fail(NotUnderstoodError, s, f"a branch on {self.text(condition)}{self.instead(s.test, condition)}")
        if code is not None and condition.shape:
            self.fail(DataBranchError, s, f"a branch on a block of shape {condition.shape}: a branch takes one number; "
                      "use tl.where for each element, or tl.max to ask for any")
        before, bodies, after = self.env, [], []
        for body in (s.body, s.orelse):
            self.env = dict(before)
            with self.nesting() as made:
                self.run(body)
            bodies.append(tuple(made))
            after.append(self.env)
        for name in after[0].keys() & after[1].keys() - before.keys():
            one, other = after[0][name], after[1][name]
            if isinstance(one, Block) and isinstance(other, Block):
                self.same_block(s, name, one, other, "in the other branch it can't be")
        self.leave(*after)
        site = self.function.site(s)
        if code is None:
            self.emit(ir.If(site, condition, *bodies))
            return
        for inner in (*bodies[0], *bodies[1]):
            if not isinstance(inner, ir.Compute | ir.DataIf) or inner.loads:
                raise DataBranchError(
                    f"{inner.site.text} stands in a branch on data ({ast.unparse(s.test)}, line {s.lineno}), so nobody "
                    "knows before the run whether it happens; branch on ranks and coordinates, or use tl.where",
                    inner.site,
                )
        self.emit(ir.DataIf(site, code, *bodies))

    # ---- tile functions that are called: their statements stand where they are called

    def inline(self, node: ast.Call, called: TileFunction, label: str) -> Any:
        """The result of a called tile function, after its statements. `label`: the name that it gets, "" for none."""
        if called.function in (f.function for f in self.callers):
            way = " -> ".join(f.name for f in (*self.callers, called))
            self.fail(NotUnderstoodError, node, f"{way}: a tile function that calls itself has no end")
        if self.open or self.dots:
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node.func)} is a tile function, called behind others in "
                      f"one expression: give its result a name first, result = {ast.unparse(node)}")
        values = self.given(node, called)
        *statements, last = called.node.body
        returned = last.value if isinstance(last, ast.Return) else None
        renamed = {}
        if isinstance(returned, ast.Name) and label and not self.reads(values, returned.id, label):
            renamed[returned.id] = self.local_name(label)
        try:
            with self.frame(called, values, renamed):
                for p, value in list(values.items()):  # assigned parameters get new variables: the caller's stay
                    if p in called.assigned and isinstance(value, Block):
                        self.bind(node, [p], [value], value)
                self.run(statements if returned is not None else called.node.body)
                return Static(None) if returned is None else self.value(returned)
        except TileLinkError as e:
            raise e.because_of("called", self.function.site(node)) from None

    def given(self, node: ast.Call, called: TileFunction) -> dict[str, Any]:
        """The values of a tile function's parameters in a call. A block that is an expression gets a name at once."""
        found = self.arguments(node, *called.parameters, needed=len(called.parameters) - len(called.defaults))
        defaults = dict(zip(reversed(called.parameters), reversed(called.defaults), strict=False))
        return {
            p: self.argument(defaults[p]) if a is None else self.named_block(node, self.value(a), f"{called.name}_{p}")
            for p, a in zip(called.parameters, found, strict=True)
        }

    def named_block(self, node: ast.Call, value: Any, name: str) -> Any:
        """A block that is an expression, as a variable of the kernel; any other value, unchanged."""
        if not isinstance(value, Block):
            return value
        if isinstance(value.node, ast.Name) and isinstance(self.source(value.node).holes[0], ir.Variable):
            return value
        own = self.fresh_name(name)
        self.emit(ir.Compute(self.function.site(node), self.code(value.node), (own,)))
        return replace(value, node=self.hole(ir.Variable(own)))

    def reads(self, values: dict[str, Any], returned: str, label: str) -> bool:
        """Whether a call reads the variable that gets its result, other than as the parameter that it returns."""
        old = self.env.get(label)
        return isinstance(old, Block) and any(
            isinstance(v, Block) and ast.dump(v.node) == ast.dump(old.node) for p, v in values.items() if p != returned
        )

    @contextmanager
    def frame(self, called: TileFunction, values: dict[str, Any], renamed: dict[str, str]) -> Iterator[None]:
        """Inside, a called function is read with its own names. Its variables are new in the kernel."""
        kept = self.function, self.names, self.env, self.renamed, self.nested, self.ended, self.callers
        self.callers = (*self.callers, called)
        self.function, self.names, self.env, self.renamed = called, called.names(), values, renamed
        self.nested, self.ended = set(), set()
        try:
            yield
        finally:
            self.function, self.names, self.env, self.renamed, self.nested, self.ended, self.callers = kept


def _holds_block(values: tuple[Any, ...]) -> bool:
    return any(isinstance(v, Block) or (isinstance(v, tuple) and _holds_block(v)) for v in values)


def _agree(one: Any, other: Any) -> bool:
    """Whether a name can be used after two ways that give it the values `one` and `other`."""
    if isinstance(one, Block) and isinstance(other, Block):
        return True
    guards = [v.guard if isinstance(v, ir.View) else None for v in (one, other)]
    return bool(one == other) and guards[0] == guards[1]


def _either(one: Any, other: Any) -> Any:
    """The value of a name after two ways that give it `one` and `other`, which agree: as much as both know."""
    if not isinstance(one, Block):
        return one
    shape = one.shape if one.shape == other.shape else None
    return Block(one.node, shape, one.dtype if one.dtype == other.dtype else None, one.mixed or other.mixed)

