"""What Triton does not compile in a user's function with @triton.jit, although CPU ranks run it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import triton

from tilelink.errors import shown
from tilelink.frontend.arithmetic import to_text
from tilelink.frontend.expressions import WORLD, Boolean, Expr
from tilelink.frontend.values import Block

_OF_TYPES = ("dtype", "shape", "type", "numel")
"""Attributes of a block that Triton knows when it compiles."""


def problem_of(called: triton.runtime.JITFunction, given: Mapping[str, Any]) -> str | None:
    """Why Triton does not compile a call of a function; None if nothing is known against it. `given`: its arguments by
    the names of its parameters."""
    for p in (p for p in called.params if p.is_constexpr and p.name in given):
        value = given[p.name]
        if isinstance(value, Block) or (isinstance(value, Expr | Boolean) and value.free_symbols - {WORLD}):
            said = "a block" if isinstance(value, Block) else f"{to_text(value)}, which is known only in the kernel"
            return f"{p.name} is a tl.constexpr, and here {said}: leave tl.constexpr out, or pass a constant"
    blocks = {n for n, v in given.items() if isinstance(v, Block)}
    return next((p for f in _with_callees(called) for p in _of_globals(f)), None) or _early_return(called, blocks)


def _with_callees(called: triton.runtime.JITFunction) -> Iterator[triton.runtime.JITFunction]:
    """A function, and those of the user that it calls."""
    found, known = [called], {called}
    for f in found:
        yield f
        used = [v for _, v in _outside(f) if isinstance(v, triton.runtime.JITFunction)]
        new = [v for v in dict.fromkeys(used) if v not in known and not v.__module__.startswith("triton.")]
        found += new
        known |= {*new}


def _outside(f: triton.runtime.JITFunction) -> Iterator[tuple[ast.Name, Any]]:
    """The names in a function's body that mean something outside of it, each with its value."""
    scope = {**f.fn.__globals__, **inspect.getclosurevars(f.fn).nonlocals}
    definition = _definition(f)
    names = [n for s in definition.body for n in ast.walk(s) if isinstance(n, ast.Name)]
    own = {*f.arg_names, *(n.id for n in names if isinstance(n.ctx, ast.Store))}
    return ((n, scope[n.id]) for n in names if n.id not in own and n.id in scope)


def _of_globals(f: triton.runtime.JITFunction) -> Iterator[str]:
    """A text for each number or text of Python that a function takes from outside: Triton takes only constants."""
    for name, value in _outside(f):
        if isinstance(value, bool | int | float | str):
            yield (f"{f.fn.__name__} reads {name.id}, which is {value!r} and no constant for Triton "
                   f"({_line(f, name)}): write {name.id} = tl.constexpr({value!r})")


def _early_return(f: triton.runtime.JITFunction, data: set[str]) -> str | None:
    """Why a function with a return below an `if` on data can't be called: a call stands in the loop over tiles, and
    Triton compiles no such function in a loop. `data`: the parameters that hold blocks."""
    data = set(data)
    for s in ast.walk(_definition(f)):
        if isinstance(s, ast.Assign | ast.AugAssign | ast.AnnAssign) and s.value is not None and _reads(s.value, data):
            data |= {n.id for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for s in ast.walk(_definition(f)):
        if isinstance(s, ast.If) and _reads(s.test, data) and any(isinstance(r, ast.Return) for r in ast.walk(s)):
            return (f"{f.fn.__name__} returns below `if {ast.unparse(s.test)}`, a branch on data ({_line(f, s)}): "
                    "Triton compiles that in no loop, such as the one over tiles; give a variable its value in both "
                    "branches, and return it in the last line")
    return None


def _reads(node: ast.AST, data: set[str]) -> bool:
    """Whether an expression depends on data: not if it asks for a dtype, a shape, or for None."""
    if isinstance(node, ast.Attribute) and node.attr in _OF_TYPES:
        return False
    if isinstance(node, ast.Compare) and all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
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
