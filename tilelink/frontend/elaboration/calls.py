"""Calls in tile functions: wait, notify, copy, load, store; and which functions may be called."""

from __future__ import annotations

import ast
from abc import abstractmethod
from dataclasses import replace
from typing import Any

import sympy
import triton

from tilelink import language
from tilelink.errors import (
    DimensionError,
    DtypeError,
    HomeError,
    NotifyWithoutStoreError,
    NotUnderstoodError,
    ViewError,
    similar,
)
from tilelink.frontend import ir
from tilelink.frontend.arithmetic import to_text
from tilelink.frontend.elaboration.functions import OF_WORKERS
from tilelink.frontend.elaboration.source import parsed
from tilelink.frontend.elaboration.triton_calls import TritonCalls
from tilelink.frontend.expressions import RANK, WORLD, Expr, larger, node_of, place_of, rank_at, smaller
from tilelink.frontend.values import TRITON_DTYPES, Block, Part, Static, broadcast
from tilelink.language import AxisWord, RanksWord, TensorWord, TileFunction

_TOUCHING = ("load", "store", "make_block_ptr", "advance", "make_tensor_descriptor", "load_tensor_descriptor",
             "store_tensor_descriptor", "inline_asm_elementwise")  # fmt: skip


class Calls(TritonCalls):
    """Reads calls: of our words, of methods of views, and of functions."""

    def call(self, node: ast.Call, label: str) -> Any:
        function = self.value(node.func)
        if isinstance(function, Block):  # a method of a block, such as acc.to(tl.float16)
            return self.triton_call(node, ast.unparse(node.func).split(".")[-1], function.node, function)
        called = function.value if isinstance(function, Static) else None
        if not callable(called) and not isinstance(called, tuple | RanksWord):
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node.func)} can't be called")
        if isinstance(called, tuple) and isinstance(called[0], ir.View):
            return self.method(node, *called)
        for word, meaning in (
            (language.wait, self.wait), (language.notify, self.notify), (language.copy, self.copy),
            (language.claim, self.claim), (language.release, self.release),
        ):  # fmt: skip
            if called is word:
                return meaning(node, label)
        if isinstance(called, TileFunction):
            return self.inline(node, called, label)
        if called is language.rank or called is language.world:
            self.arguments(node)
            return RANK if called is language.rank else WORLD
        if called is language.node or called is language.place:
            of = node_of if called is language.node else place_of
            return of(*[RANK if a is None else self.integer(a) for a in self.arguments(node, "rank")])
        if called is language.part:
            return Part(self.integer(*self.arguments(node, "rank", needed=1)))
        if called is language.rank_at:
            return rank_at(*map(self.integer, self.arguments(node, "node", "place", needed=2)))
        if called is len:
            return self.length(node)
        if called is min or called is max:
            return self.extreme(node, called)
        if called is language.steps or isinstance(called, RanksWord):
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)} is for loops: for k in {ast.unparse(node)}:")
        if isinstance(called, triton.runtime.JITFunction) and not _is_triton(called):
            name = self.function_name(called)
            if problem := _misfit(called, node):
                self.fail(NotUnderstoodError, node, f"{name}({', '.join(called.arg_names)}) does not take this: "
                          f"{problem}")
            return self.triton_call(node, "", self.hole(ir.Called(name)), None, called)
        if _is_triton(called):
            name = called.__name__
            if name in _TOUCHING or name.startswith("atomic") or "descriptor" in name:
                self.fail(ViewError, node, f"tl.{name} touches memory outside of views, so nobody can tell what it "
                          "reads or writes; use view.load(), view.store(), tk.copy, tk.notify, tk.wait")
            if name in ("program_id", "num_programs"):
                self.fail(NotUnderstoodError, node, f"tl.{name} {OF_WORKERS}")
            return self.triton_call(node, name, self.triton_name(node, called), None)
        return self.python_call(node, called)

    def extreme(self, node: ast.Call, called: Any) -> Any:
        """The least or the greatest of integers, or of Python's constants. They are arguments, or one tuple."""
        word, values = called.__name__, [self.value(a) for a in node.args]
        listed = len(values) == 1 and isinstance(values[0], tuple)
        values = list(values[0]) if listed else values
        if any(isinstance(v, Block) for v in values):
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: {word} is of integers; of blocks, element by "
                      f"element, write tl.{word}imum(a, b), and tl.{word}(a) of the elements of one block")
        if node.keywords or len(values) < (1 if listed else 2):
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: {word} takes two integers or more, or a tuple")
        if all(isinstance(v, Expr) for v in values):
            return (smaller if called is min else larger)(*values)
        return self.python(node, called, *values)

    @abstractmethod
    def inline(self, node: ast.Call, called: TileFunction, label: str) -> Any:
        """The result of a tile function that is called in another."""

    def python_call(self, node: ast.Call, called: Any) -> Any:
        if called is print:
            self.fail(NotUnderstoodError, node, "print is Python's, and a tile function is not run by Python: take "
                      "tl.device_print")
        values = [self.value(a) for a in node.args]
        if any(isinstance(v, Block | ir.View | TensorWord) for v in values):
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node.func)} is not Triton's: compute on blocks with "
                      "functions of triton.language, or with your own that have @triton.jit")
        if node.keywords:
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node)}: a tile function is Triton code, and only "
                      "Triton's functions take keywords in it")
        made = self.python(node, called, *values)
        if isinstance(made, Static) and getattr(made.value, "ndim", 0) > 0:
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node.func)} makes a {type(made.value).__name__}, and a "
                      "tile function is Triton code: make a block with triton.language, as in "
                      "tl.zeros(t.shape, tl.float32), or pass the values as a tensor of the program")
        return made

    def method(self, node: ast.Call, view: ir.View, name: str) -> Any:
        if name == "at":
            return self.at(node, view)
        if name == "load":
            (moved,) = self.arguments(node, "where")
            self.readable(node, view)
            block = self.as_block(node, view)
            shape = tuple(int(self.extent(node, r)) for r in block.ranges)
            self.check_elements(node, shape)
            return Block(self.hole(ir.Load(block, self.moved(node, moved, view))), shape, self.dtypes[view.tensor])
        stored, moved = self.arguments(node, "block", "where", needed=1)
        self.writable(node, view, "store to")
        place = self.as_block(node, view)
        value = self.value(stored)
        if isinstance(value, ir.View):
            self.fail(ViewError, node, f"store takes a block in registers; to bring {value} there, use tk.copy")
        number = isinstance(value, Expr) or (isinstance(value, Static) and isinstance(value.value, float | bool))
        if not isinstance(value, Block) and not number:
            self.fail(ViewError, node, f"store takes a block in registers or a number, not {self.text(value)}")
        if isinstance(value, Block) and not _fits(value.shape, place.shape):
            self.fail(DimensionError, node, f"a block of shape {value.shape} does not fit {view}, {place.shape}")
        self.stored_dtype(node, place, value)
        _, value = self.of_equal_dimensions(Block(node, tuple(n or 1 for n in place.shape)), value)
        made = self.node(stored, value)
        if number or (isinstance(value, Block) and value.shape == ()):
            made = self.filled(node, place, made, value.dtype if isinstance(value, Block) else None)
        where = self.moved(node, moved, view)
        self.emit(ir.Store(self.function.site(node), self.code(made), target=place, where=where))
        self.stored[view] = self.function.site(node)
        return view

    def filled(self, node: ast.Call, place: ir.View, number: ast.expr, dtype: str | None) -> ast.Call:
        """A block filled with a number, as large as the place that it is stored to. `dtype`: by default the place's."""
        of = parsed(f"tl.{TRITON_DTYPES[dtype or self.dtypes[place.tensor]]}")
        extents: list[ast.expr] = [ast.Constant(int(self.extent(node, r))) for r in place.ranges]
        return ast.Call(parsed("tl.full"), [ast.Tuple(extents, ast.Load()), number, of], [])

    def copy(self, node: ast.Call, label: str) -> ir.View:
        *views, moved = self.arguments(node, "source", "target", "where", needed=2)
        source, target = map(self.value, views)
        if not (isinstance(source, ir.View) and isinstance(target, ir.View)):
            self.fail(ViewError, node, f"tk.copy takes two views, from and to, not {self.text(source)} and "
                      f"{self.text(target)}")
        self.readable(node, source)
        self.writable(node, target, "copy to")
        pairs = [(a.walked, b) for a, b in zip(source.ranges, target.ranges, strict=False)]
        if len(source.ranges) != len(target.ranges) or any(a.dim != b.dim and not a.same_rows(b) for a, b in pairs):
            self.fail(DimensionError, node, f"{source} and {target} do not have the same shape")
        for a, b in pairs:
            if (a.start, a.stop) != (b.start, b.stop) and not a.same_rows(b):
                self.fail(DimensionError, node, f"{source} is copied to {target}, another range along {b.dim}: a copy "
                          f"keeps coordinates, so both sides need the same range along {b.dim}")
        here, there = (self.dtypes[v.tensor] for v in (source, target))
        if here != there:
            instead = f"{ast.unparse(views[1])}.store({ast.unparse(views[0])}.load())"
            self.fail(DtypeError, node, f"a copy keeps the dtype: {source.tensor} is {here}, {target.tensor} {there}; "
                      f"declare both with one dtype, or write {instead}")
        where = self.moved(node, moved, target)
        self.emit(ir.Copy(self.function.site(node), source, target=target, where=where))
        self.stored[target] = self.function.site(node)
        return target

    def wait(self, node: ast.Call, label: str) -> Any:
        views = self.views(node)
        for v in views:
            self.at_one_home(node, v, "wait for")
        name = self.fresh_name(f"{label}_ready" if label else "ready")
        self.emit(ir.Wait(self.function.site(node), name, tuple(views)))
        guarded = tuple(replace(v, guard=name) for v in views)
        return guarded if len(guarded) > 1 else guarded[0]

    def at_one_home(self, node: ast.Call, view: ir.View, what: str) -> None:
        if view.home is None or view.home == ir.ALL_RANKS:
            self.fail(HomeError, node, f"{what} {view}: it has more than one home, and a wait looks at one")

    def notify(self, node: ast.Call, label: str) -> Any:
        views = self.views(node)
        for argument, v in zip(node.args, views, strict=True):
            self.one_home(node, v, "notify of")
            if v not in self.stored and (inside := self.stored_inside.get(v)) is not None:
                self.fail(NotifyWithoutStoreError, node, f"notify of {v}, which this tile stored in a loop or a branch "
                          f"that has ended ({inside}: {inside.text}): whether and how often it did is not known here. "
                          "Notify it there, after that line")
            if v not in self.stored:
                did = ", ".join(str(s) for s in self.stored) or "nothing"
                ended = [f"{s} in a loop or a branch that has ended ({at})" for s, at in self.stored_inside.items()]
                parts = f", and {' and '.join(ended)}: notify that there" if ended else ""
                self.fail(NotifyWithoutStoreError, node, f"notify of {v}, which this tile did not store here; it "
                          f"stored {did} before{parts}. Notify what store and copy return ({ast.unparse(argument)})")
        self.emit(ir.Notify(self.function.site(node), tuple(views)))
        return Static(None)

    def claim(self, node: ast.Call, label: str) -> ir.View:
        """Waits for the release of the previous entry in the same buffer, except for the first entries."""
        view, token, buffers = self.reused(node)
        self.at_one_home(node, view, "claim of")
        entry, *rest = token.index
        assert isinstance(entry, Expr)
        site, name = self.function.site(node), self.fresh_name(f"{label}_claimed" if label else "claimed")
        wait = ir.Wait(site, name, (replace(token, index=(entry - buffers, *rest)),))
        reuses = sympy.Ge(entry, buffers)
        if reuses != sympy.false:
            self.emit(wait if reuses == sympy.true else ir.If(site, reuses, (wait,), ()))
        return view

    def release(self, node: ast.Call, label: str) -> Any:
        view, token, _ = self.reused(node)
        if view.guard is None:
            self.fail(ViewError, node, f"release of {view}, which this tile did not wait for: release what it read, "
                      "and read what tk.wait returns")
        self.emit(ir.Notify(self.function.site(node), (token,)))
        return Static(None)

    def reused(self, node: ast.Call) -> tuple[ir.View, ir.View, int]:
        """The argument of tk.claim or tk.release, the same region of its token, and the number of buffers."""
        views, word = self.views(node), ast.unparse(node.func)
        if len(views) > 1:
            self.fail(ViewError, node, f"{word} takes one view")
        view = views[0]
        buffers = self.tensors[view.tensor].buffers
        if buffers is None:
            self.fail(ViewError, node, f"{word} of {view}: each entry of {view.tensor} has its own memory; tk.local("
                      "tk.ranks, ..., buffers=2) makes entries that take turns in two")
        return view, replace(view, tensor=ir.token_name(view.tensor), guard=None), buffers

    def views(self, node: ast.Call) -> list[ir.View]:
        """The arguments of a word that takes only views."""
        values = [self.value(a) for a in node.args]
        for v in values:
            if not isinstance(v, ir.View):
                self.fail(ViewError, node, f"{ast.unparse(node.func)} takes views, not {self.text(v)}")
            if v.picked_by:
                self.fail(ViewError, node, f"{ast.unparse(node.func)} of {v}: signals belong to tiles, and which rows "
                          "are picked is not known before the run; wait for all that they are picked from, and index "
                          "what the wait returns")
            for dim, i in zip(self.tensors[v.tensor].dims, v.index, strict=True):
                if isinstance(i, Expr) and dim != ir.RANKS_DIM:
                    self.fail(ViewError, node, f"{ast.unparse(node.func)} of {v}: signals belong to tiles, so name a "
                              f"range along {dim}, not the number {to_text(i)}: a range of the tile, or one entry of "
                              f"`for i in tk.steps({v.tensor}.{dim}, by=1)`")
        if not values or node.keywords:
            self.fail(ViewError, node, f"{ast.unparse(node.func)} takes views, and nothing else")
        return values

    def length(self, node: ast.Call) -> Expr:
        v = self.value(*self.arguments(node, "range", needed=1))
        if isinstance(v, ir.Range):
            return self.extent(node, self.blocked(node, v))
        if isinstance(v, AxisWord):
            return self.extent(node, self.blocked(node, ir.whole_range(v.dim)))
        if isinstance(v, tuple):
            return sympy.Integer(len(v))
        self.fail(NotUnderstoodError, node, f"len() is for ranges; {self.text(v)} is none")

def _fits(shape: tuple[int, ...] | None, place: tuple[int | None, ...]) -> bool:
    """Whether a block can be stored to a place of this shape, if its shape is known."""
    try:
        return shape is None or broadcast(shape, tuple(n or 1 for n in place)) == place
    except ValueError:
        return False


def _misfit(called: triton.runtime.JITFunction, node: ast.Call) -> str | None:
    """Why a function can't be called with the arguments of a call; None if it can."""
    try:
        called.signature.bind(*node.args, **{k.arg: k.value for k in node.keywords if k.arg})
    except TypeError as e:
        meant = next(filter(None, (similar(k.arg, called.arg_names) for k in node.keywords)), "")
        return f"{e}{meant}"
    return None


def _is_triton(called: Any) -> bool:
    module = getattr(called, "__module__", "") or ""
    return module.startswith(("triton.language", "triton.tools"))
