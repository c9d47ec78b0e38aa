"""Lays out blocks in Gluon, which chooses no layout for each block, as Triton's own compiler does.

Gluon finds the layout of a block from what the block leads to, such as a store, which names its layout. That fails for
a block that two things ask for in two layouts, and for one whose numbers are reduced or moved. A block with a name, or
one that is reduced or moved, is therefore `laid` out by its shape. Whatever reads it converts it to the layout that it
needs (`loose`), which costs nothing if that is the same. Sums of matrix instructions stay as they are.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TypeGuard

from tilelink.frontend import ir

MOVING = ("permute", "reshape", "expand_dims")
"""Functions of Triton, or methods of blocks, that move numbers to other places."""
REDUCING = ("sum", "max", "min", "xor_sum", "reduce_or", "reduce")
"""Those that make a block of fewer dimensions, whose layout is part of the first one's."""


def laid_out(code: ir.Code) -> ir.Code:
    """The expression with blocks laid out where an operation needs it, and converted where they are read."""
    tree = tree_of(code)
    if not any(isinstance(h, ir.Variable) for h in code.holes) and not any(map(moves, ast.walk(tree))):
        return code
    return replace(code, text=ast.unparse(_LaidOut(code).visit(tree)))


class _LaidOut(ast.NodeTransformer):
    def __init__(self, code: ir.Code) -> None:
        self.code = code

    def visit_Set(self, node: ast.Set) -> ast.expr:
        return _call("reuse", node) if _is_variable(node, self.code) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Where a block gets more dimensions, its layout is part of that of the block with more."""
        block = node.value if _is_variable(node.value, self.code) else self.visit(node.value)
        return ast.Subscript(_call("loose", block), node.slice, node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if moves(node):
            return _call("loose", ast.Attribute(_call("laid", node.value), node.attr, node.ctx))
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not moves(node):
            return self.generic_visit(node)
        assert isinstance(node.func, ast.Attribute)
        arguments = [self.visit(a) for a in node.args]
        keywords = {k.arg: self.visit(k.value) for k in node.keywords}
        owner = node.func.value
        if not isinstance(owner, ast.Name):
            owner = _call("laid", self.visit(owner))
        elif arguments:
            arguments[0] = _call("laid", arguments[0])
        else:
            keywords["input"] = _call("laid", keywords["input"])
        function = ast.Attribute(owner, node.func.attr, ast.Load())
        return _call("loose", ast.Call(function, arguments, [ast.keyword(k, v) for k, v in keywords.items()]))


def _call(function: str, value: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(function, ast.Load()), [value], [])


def _is_variable(node: ast.expr, code: ir.Code) -> bool:
    """Whether an expression is a variable of the tile function."""
    match node:
        case ast.Set([ast.Constant(int() as k)]):
            return isinstance(code.holes[k], ir.Variable)
    return False


def moves(node: ast.AST) -> bool:
    """Whether an expression reduces a block, or moves its numbers."""
    match node:
        case ast.Call(ast.Attribute(_, word)):
            return word in (*REDUCING, *MOVING)
        case ast.Attribute(_, "T"):
            return True
    return False


def is_reducing(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in REDUCING


def tree_of(code: ir.Code) -> ast.expr:
    """The expression. Python parses a hole, such as {0}, as a set of one number."""
    return ast.parse(code.text, mode="eval").body
