"""Lays out blocks in Gluon, where Triton's own compiler would choose a layout for each.

Gluon finds the layout of a block from what the block leads to, such as a store, which names its layout. That fails for
a block that two things ask for in two layouts, and for one whose numbers are reduced or moved. A block with a name, or
one that is reduced or moved, is therefore `laid` out by its shape. Whatever reads it converts it to the layout that it
needs (`loose`), which costs nothing if that is the same. Sums of matrix instructions stay as they are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeGuard

from tilelink.errors import Site
from tilelink.frontend import ir
from tilelink.frontend.ir import Role

_MOVING = ("permute", "reshape", "expand_dims", "T")
"""Functions of Triton, or methods of blocks, that move numbers to other places."""
_REDUCING = ("sum", "max", "min", "reduce", "xor_sum", "argmax", "argmin")
"""Those that make a block of fewer dimensions, whose layout is part of the first one's."""


def laid_out(code: ir.Code) -> ir.Code:
    """The expression with blocks laid out where an operation needs it, and converted where they are read."""
    tree = tree_of(code)
    if not any(isinstance(h, ir.Variable) for h in code.holes) and not any(map(_moves, ast.walk(tree))):
        return code
    return replace(code, text=ast.unparse(_LaidOut(code).visit(tree)))


class _LaidOut(ast.NodeTransformer):
    def __init__(self, code: ir.Code) -> None:
        self.code = code

    def visit_Set(self, node: ast.Set) -> ast.expr:
        return _call("reuse", node) if _variable(node, self.code) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Where a block gets more dimensions, its layout is part of that of the block with more."""
        block = node.value if _variable(node.value, self.code) else self.visit(node.value)
        return ast.Subscript(_call("loose", block), node.slice, node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if _moves(node):
            return _call("loose", ast.Attribute(_call("laid", node.value), node.attr, node.ctx))
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not _moves(node):
            return self.generic_visit(node)
        assert isinstance(node.func, ast.Attribute)
        arguments = [self.visit(a) for a in node.args]
        owner = node.func.value
        if isinstance(owner, ast.Name):  # a function of Triton
            arguments[0] = _call("laid", arguments[0])
        else:
            owner = _call("laid", self.visit(owner))
        function = ast.Attribute(owner, node.func.attr, ast.Load())
        return _call("loose", ast.Call(function, arguments, node.keywords))


def _call(function: str, value: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(function, ast.Load()), [value], [])


def _variable(node: ast.expr, code: ir.Code) -> bool:
    """Whether an expression is a variable of the tile function. Python parses a hole, such as {0}, as a set of one
    number."""
    match node:
        case ast.Set([ast.Constant(int() as k)]):
            return isinstance(code.holes[k], ir.Variable)
    return False


def _moves(node: ast.AST) -> bool:
    """Whether an expression reduces a block, or moves its numbers."""
    match node:
        case ast.Call(ast.Attribute(_, word)):
            return word in (*_REDUCING, *_MOVING)
        case ast.Attribute(_, "T"):
            return True
    return False


def unlike(role: Role) -> Iterator[tuple[str, Site]]:
    """Yields the parts of expressions whose blocks have unequal numbers of dimensions, to which Gluon adds none. (The
    elaborator gives leading ones to blocks that have fewer, where it knows all shapes. It does not know what a function
    of the user returns.)"""
    known: dict[str, int] = {}
    for s in ir.walk(role.body):
        for code in s.codes:
            for node in ast.walk(tree := tree_of(code)):
                if isinstance(node, ast.BinOp | ast.Compare | ast.Call) and not is_reducing(node):
                    parts = (_dimensions(n, code, known) for n in ast.iter_child_nodes(node))
                    if len({*parts} - {0}) > 1:
                        yield ast.unparse(node).format(*code.holes), s.site
            if isinstance(s, ir.Store) and _dimensions(tree, code, known) not in (0, len(s.target.ranges)):
                yield str(s.target), s.site
        if isinstance(s, ir.Compute):
            known |= dict.fromkeys(s.targets, _dimensions(tree_of(s.code), s.code, known))


def _dimensions(node: ast.AST, code: ir.Code, known: dict[str, int]) -> int:
    """The number of dimensions of a block, 0 if it is a number or unknown. `known`: the same of named blocks."""
    match node:
        case ast.Set([ast.Constant(int() as k)]):
            hole = code.holes[k]
            return len(hole.view.ranges) if isinstance(hole, ir.Load) else known.get(str(hole), 0)
        case ast.Subscript(_, ast.Tuple(index)):
            return len(index)
        case ast.Call(ast.Attribute(ast.Name("tl"), "arange")):
            return 1
        case ast.Call(ast.Attribute(ast.Name("tl"), "zeros" | "full"), [ast.Tuple(lengths), *_]):
            return len(lengths)
        case ast.Call() if is_reducing(node):
            before = max(_dimensions(n, code, known) for n in (node.func, *node.args[:1]))
            kept = "keep_dims" in {k.arg for k in node.keywords}
            return before if kept else 0 if _axis_of(node) is None else max(0, before - 1)
        case ast.Call() if _moves(node):
            return 0
    return max((_dimensions(n, code, known) for n in ast.iter_child_nodes(node)), default=0)


def _axis_of(node: ast.Call) -> int | None:
    """The dimension along which a call reduces its block, None if that is along all."""
    axis = {k.arg: k.value for k in node.keywords}.get("axis") or next(iter(_options(node)), None)
    return ast.literal_eval(axis) if isinstance(axis, ast.Constant | ast.UnaryOp) else None


def gives_indices(node: ast.Call) -> bool:
    return "return_indices" in {k.arg for k in node.keywords} or len(_options(node)) > 1


def _options(node: ast.Call) -> list[ast.expr]:
    """The arguments of a reduction behind its block, which may be a method's."""
    of_language = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
    return node.args[1:] if of_language else node.args


def is_reducing(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _REDUCING


def tree_of(code: ir.Code) -> ast.expr:
    """The expression. Python parses a hole, such as {0}, as a set of one number."""
    return ast.parse(code.text, mode="eval").body
