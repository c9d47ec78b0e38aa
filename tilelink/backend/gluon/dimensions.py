"""Finds blocks of unequal numbers of dimensions: Triton gives leading ones to a block that has fewer, and Gluon does
not. The elaborator gives them where it knows all shapes. It does not know what a function of the user returns."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilelink.backend.gluon.layouts import is_reducing, moves, tree_of
from tilelink.errors import Site
from tilelink.frontend import ir
from tilelink.frontend.ir import Role


def unequal(role: Role) -> Iterator[tuple[str, Site]]:
    """Yields the parts of a role's expressions whose blocks have unequal numbers of dimensions, and its stores of
    blocks that have another number than their place."""
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
            before = max(_dimensions(n, code, known) for n in ast.iter_child_nodes(node))
            kept = "keep_dims" in {k.arg for k in node.keywords}
            return before if kept else 0 if _along(node) is None else max(0, before - 1)
        case ast.Call() if moves(node):
            return 0
    return max((_dimensions(n, code, known) for n in ast.iter_child_nodes(node)), default=0)


def _along(node: ast.Call) -> int | None:
    """The dimension along which a call reduces its block, None if that is along all."""
    axis = {k.arg: k.value for k in node.keywords}.get("axis") or next(iter(options(node)), None)
    return ast.literal_eval(axis) if isinstance(axis, ast.Constant | ast.UnaryOp) else None


def gives_indices(node: ast.Call) -> bool:
    """Whether a reduction also returns where it found its results."""
    asked = {k.arg: k.value for k in node.keywords}.get("return_indices") or next(iter(options(node)[1:]), None)
    assert isinstance(node.func, ast.Attribute)
    return node.func.attr in ("max", "min") and asked is not None and ast.unparse(asked) != "False"


def options(node: ast.Call) -> list[ast.expr]:
    """The arguments of a reduction behind its block, which may be a method's."""
    of_language = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
    return node.args[1:] if of_language else node.args
