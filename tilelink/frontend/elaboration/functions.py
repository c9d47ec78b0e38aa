"""What a user's function with @triton.jit may not do: what Triton does not compile, although CPU ranks run it; tl.dot,
which has to stand in a tile function; and tl.program_id."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, TypeGuard

import triton
import triton.language as tl

from tilelink.errors import shown
from tilelink.frontend.expressions import Boolean, Expr
from tilelink.frontend.values import ELEMENTWISE, Block
from tilelink.language.tile_functions import meant

_NOT_COMPILED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Break: ("a break", "no loop ends early; let later steps change nothing, by an `if` around the rest of it"),
    ast.Continue: ("a continue", "put the rest of the loop's body below an `if`"),
    ast.Lambda: ("a lambda", "write a function with @triton.jit"),
    ast.NamedExpr: ("`:=`", "assign on a line of its own"),
    ast.Try: ("a try", "a kernel raises nothing"),
    ast.Raise: ("a raise", "a kernel raises nothing"),
}
"""What Triton's compiler has no translation for, and what to write."""
OF_WORKERS = ("depends on the workers of the schedule, and a tile is the same whichever computes it; take the tile's "
              "ranges, such as t.rows.start")
"""Why tl.program_id and tl.num_programs are refused, and what to do."""
_BY_ELEMENT = ELEMENTWISE - {"softmax", "cumsum", "cumprod", "flip", "zeros_like"} | {"cast", "to", "dtype"}
"""Words of Triton, and of its blocks, that give each element from elements at the same place, or a type."""
_OF_TYPES = ("dtype", "shape", "type", "numel")
"""Attributes of a block that Triton knows when it compiles."""


def problem_of(called: triton.runtime.JITFunction, given: Mapping[str, Any]) -> str | None:
    """Why a function can't be called; None if nothing is known against it. `given`: its arguments by the names of its
    parameters."""
    callees = [*_with_callees(called)]
    found = (p for problems in (_of_products, _of_workers, _of_globals) for f in callees for p in problems(f))
    data = {n for n, v in given.items() if _varies(v)}
    return next(found, None) or _early_return(called, data) or _untranslated(called, data)


def by_element(called: triton.runtime.JITFunction) -> bool:
    """Whether a function, with those that it calls, computes each element of a block from elements at the same place.
    All its blocks then lie alike."""
    return not any(_moves(f, node) for f in _with_callees(called) for node in _everything(_definition(f)))


def _moves(f: triton.runtime.JITFunction, node: ast.AST) -> bool:
    """Whether an index, or a word of Triton or of its blocks, may bring numbers to other places."""
    if isinstance(node, ast.Subscript):
        return True
    called = meant(node, {**f.fn.__globals__, **inspect.getclosurevars(f.fn).nonlocals}) if _named(node) else None
    if isinstance(called, triton.runtime.JITFunction) and not called.__module__.startswith("triton."):
        return False
    word = node.attr if isinstance(node, ast.Attribute) else getattr(called, "__name__", "")
    constant = called is None and not isinstance(node, ast.Attribute)
    return not (constant or isinstance(called, tl.dtype | tl.constexpr | ModuleType) or word in _BY_ELEMENT)


def _named(node: ast.AST) -> TypeGuard[ast.Name | ast.Attribute]:
    return isinstance(node, ast.Name | ast.Attribute)


def _varies(value: Any) -> bool:
    """Whether only a running kernel knows the value."""
    return isinstance(value, Block) or (isinstance(value, Expr | Boolean) and bool(value.free_symbols))


def _with_callees(called: triton.runtime.JITFunction) -> Iterator[triton.runtime.JITFunction]:
    """A function, and those of the user that it calls."""
    found, known = [called], {called}
    for f in found:
        yield f
        used = [v for _, v in _outside(f, _everything(_definition(f))) if isinstance(v, triton.runtime.JITFunction)]
        new = [v for v in dict.fromkeys(used) if v not in known and not v.__module__.startswith("triton.")]
        found += new
        known |= {*new}


def _outside(f: triton.runtime.JITFunction, body: Iterable[ast.AST]) -> Iterator[tuple[ast.Name, Any]]:
    """The names in a part of a function that mean something outside of it, each with its value."""
    scope = {**f.fn.__globals__, **inspect.getclosurevars(f.fn).nonlocals}
    names = [n for s in _definition(f).body for n in ast.walk(s) if isinstance(n, ast.Name)]
    own = {*f.arg_names, *(n.id for n in names if isinstance(n.ctx, ast.Store))}
    return ((n, scope[n.id]) for n in body if isinstance(n, ast.Name) and n.id not in own and n.id in scope)


def _everything(node: ast.AST) -> Iterator[ast.AST]:
    return (n for s in ast.iter_child_nodes(node) for n in ast.walk(s))


def _always(node: ast.AST) -> Iterator[ast.AST]:
    """What stands in no branch, which Triton may leave out, and is no argument of an assertion of Triton's."""
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.If | ast.IfExp) and child is not node.test:
            continue
        if isinstance(child, ast.Call) and ast.unparse(child.func).endswith(("static_assert", "static_print")):
            continue
        yield child
        yield from _always(child)


def _of_products(f: triton.runtime.JITFunction) -> Iterator[str]:
    """A text for each product of a function. What multiplies decides which loops are pipelined, how their blocks are
    loaded, and what a prediction counts."""
    for call in _calls_of(f, tl.dot, tl.dot_scaled):
        yield (f"{call}, where predictions do not count it and no loop is pipelined for it: write {f.fn.__name__} with "
               "@tk.tile in place of @triton.jit")


def _of_workers(f: triton.runtime.JITFunction) -> Iterator[str]:
    """A text for each place where a function asks which worker calls it."""
    for call in _calls_of(f, tl.program_id, tl.num_programs):
        yield f"{call}, which {OF_WORKERS}, as an argument"


def _calls_of(f: triton.runtime.JITFunction, *called: Any) -> Iterator[str]:
    """A text for each call of one of these functions of Triton."""
    scope = {**f.fn.__globals__, **inspect.getclosurevars(f.fn).nonlocals}
    for call in (n for n in _everything(_definition(f)) if isinstance(n, ast.Call)):
        if meant(call.func, scope) in called:
            yield f"{f.fn.__name__} calls {ast.unparse(call.func)} ({_line(f, call)})"


def _of_globals(f: triton.runtime.JITFunction) -> Iterator[str]:
    """A text for each number or text of Python that a function takes from outside: Triton takes only constants."""
    if triton.knobs.compilation.allow_non_constexpr_globals:
        return
    for name, value in _outside(f, (n for s in _definition(f).body for n in (s, *_always(s)))):
        if isinstance(value, bool | int | float | str):
            yield (f"{f.fn.__name__} reads {name.id}, which is {value!r} and no constant for Triton "
                   f"({_line(f, name)}): write {name.id} = tl.constexpr({value!r})")


def _early_return(f: triton.runtime.JITFunction, data: set[str]) -> str | None:
    """Why a function with a return below an `if` on data can't be called: a call stands in the loop over tiles, and
    Triton compiles no such function in a loop, unless it is not inlined. `data`: the parameters whose values
    only the kernel knows."""
    found = None if f.noinline else _return_on_data(_definition(f).body, set(data))
    if found is None:
        return None
    return (f"{f.fn.__name__} returns below `if {ast.unparse(found.test)}`, a branch on data ({_line(f, found)}): "
            "Triton compiles that in no loop, such as the one over tiles; give a variable its value in both "
            "branches, and return it in the last line")


def _untranslated(f: triton.runtime.JITFunction, data: set[str]) -> str | None:
    """A text for the first thing in a function that Triton's compiler has no translation for, if the compiler surely
    gets there: not behind a return, and in no branch that may be on a constant. `data`: as in `_early_return`."""
    data = set(data)
    for s in _definition(f).body:
        for node in (s, *_reached(s, data)):
            if (found := _NOT_COMPILED.get(type(node))) is not None:
                assert isinstance(node, ast.stmt | ast.expr)
                what, instead = found
                return f"{f.fn.__name__} has {what} ({_line(f, node)}), which Triton does not compile: {instead}"
        if any(isinstance(n, ast.Return) for n in ast.walk(s)):
            return None
    return None


def _reached(node: ast.AST, data: set[str]) -> Iterator[ast.AST]:
    """What is in a node, without branches that may be on a constant. `data`: as in `_return_on_data`."""
    _assign(node, data)
    if isinstance(node, ast.For) and ast.unparse(node.iter).startswith(("range(", "tl.range(")):
        data |= {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
    for child in ast.iter_child_nodes(node):
        if not isinstance(node, ast.If | ast.IfExp) or child is node.test or _reads(node.test, data):
            yield child
            yield from _reached(child, data)


def _return_on_data(body: Iterable[ast.stmt], data: set[str]) -> ast.If | None:
    """The first `if` on data with a return below it. `data`: the variables that hold data; changed as statements do."""
    for s in body:
        if isinstance(s, ast.If) and _reads(s.test, data) and any(isinstance(r, ast.Return) for r in ast.walk(s)):
            return s
        _assign(s, data)
        inside = [*getattr(s, "body", []), *getattr(s, "orelse", [])]
        for _ in range(2 if isinstance(s, ast.For | ast.While) else 1):  # a loop comes back with what it computed
            if (found := _return_on_data(inside, data)) is not None:
                return found
    return None


def _assign(s: ast.AST, data: set[str]) -> None:
    """Changes `data`, the variables that hold data, as an assignment does."""
    if isinstance(s, ast.Assign | ast.AugAssign | ast.AnnAssign) and s.value is not None:
        names = {n.id for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        holds = _reads(s.value, data) or (isinstance(s, ast.AugAssign) and bool(names & data))
        data -= names
        data |= names if holds else set()


def _reads(node: ast.AST, data: set[str]) -> bool:
    """Whether an expression depends on data. Unknown for calls of functions outside of Triton, which may return
    constants: then it does not. Nor does it if it asks for a type, a shape, or for None."""
    if isinstance(node, ast.Attribute) and node.attr in _OF_TYPES:
        return False
    if isinstance(node, ast.Compare) and all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
        return False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return False
    return (isinstance(node, ast.Name) and node.id in data) or any(_reads(n, data) for n in ast.iter_child_nodes(node))


def _definition(f: triton.runtime.JITFunction) -> ast.FunctionDef:
    (definition,) = f.parse().body
    assert isinstance(definition, ast.FunctionDef)
    return definition


def _line(f: triton.runtime.JITFunction, node: ast.stmt | ast.expr) -> str:
    """The place of a statement or an expression in a function."""
    above = next(k for k, line in enumerate(f.raw_src) if line.lstrip().startswith("def "))  # its decorators
    return f"{shown(f.fn.__code__.co_filename)}:{f.starting_line_number + above + node.lineno - 1}"
