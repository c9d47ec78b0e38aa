"""Finds the blocks of a role whose layout Gluon can't find: what warps of the specialised form must not do with blocks.

Gluon finds the layout of a block from a store or a sum that the block leads to. It adds no dimension to a block, keeps
one layout for a name, and knows what is left of a reduced block only as a part of the layout before.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import count
from typing import TypeGuard

from tilelink.errors import Site
from tilelink.frontend import ir
from tilelink.frontend.ir import Role

MATRIX = 2
"""The dimensions of a block that is reduced along one of them."""
_MOVING = ("permute", "reshape", "expand_dims", "join", "T", "trans", "ravel", "split")
"""Functions of Triton, or methods of blocks, that move numbers to other places."""
_REDUCING = ("sum", "max", "min", "reduce", "xor_sum", "argmax", "argmin")
"""Those that make a block of fewer dimensions, whose layout is part of the first one's."""


def without_layout(role: Role, sums: set[str], behind: ir.Body) -> Iterator[tuple[str, Site]]:
    """Yields what a role does with blocks whose layout Gluon can't find. `sums`: the sums of its product, which are
    laid out, and `behind`: its statements behind the product; none of both if it makes none."""
    again = _used_again(sums, behind) if sums else ()
    yield from ((f"uses {name} again or moved, which may need another layout than the sum has", s) for name, s in again)
    moved = () if sums else _in_two_layouts(role)
    yield from ((f"uses {name} in another layout", site) for name, site in moved)
    for word, site in _reduced_alone(role, sums):
        yield f"takes {word} of a block that it does not store, and no store says how that is laid out", site
    yield from _reduced_otherwise(role, makes_sums=bool(sums))
    for what, site in _of_unequal_dimensions(role):
        yield f"has blocks of fewer dimensions than others, to which Gluon adds none: {what}", site


def _uses(code: ir.Code) -> Iterator[tuple[str, str]]:
    """Yields the named blocks in an expression, each with what makes its layout another one: the index, the function or
    the method around it, "" if nothing does."""
    tree = tree_of(code)
    around = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        match node:
            case ast.Set([ast.Constant(int() as k)]) if isinstance(hole := code.holes[k], ir.Variable):
                match around.get(id(node)):
                    case ast.Subscript(_, index):
                        yield hole.name, ast.unparse(index)
                    case ast.Call(ast.Attribute(_, word)) | ast.Attribute(_, word) if word in _MOVING:
                        yield hole.name, word
                    case _:
                        yield hole.name, ""


def _used_again(sums: set[str], behind: ir.Body) -> Iterator[tuple[str, Site]]:
    """Yields the blocks behind the main loop that would need a second layout, where they would: blocks that are not
    made of its sums, which have that of a sum where they meet it and another one in a store, at their second use; and
    blocks that are made of a sum, where they are moved, or get more dimensions than the sum has."""
    of_sum, used, reduced = sums, set[str](), set[str]()
    for s in ir.walk(behind):
        uses = [use for code in s.codes for use in _uses(code)]
        for name, how in uses:
            if name in used or (name in of_sum and how in _MOVING) or (name in of_sum - reduced and how):
                yield name, s.site
            if name not in of_sum:
                used.add(name)
        if isinstance(s, ir.Compute):
            names, made = {name for name, _ in uses}, {*s.targets}
            fewer = _reduces(s.code) or not names & (of_sum - reduced)
            used, of_sum = used - made, of_sum | made if of_sum & names else of_sum - made
            reduced = reduced | made if fewer else reduced - made


def _in_two_layouts(role: Role) -> Iterator[tuple[str, Site]]:
    """Yields the blocks of a role that does not multiply, where a use needs another layout than one before. An index or
    a function around a block, and a store, each ask for a layout. Blocks that are computed of each other, element by
    element, have one layout: they are in one group."""
    fresh, group, ways = count(), dict[str, int](), defaultdict[int, set[str]](set)
    for s in ir.walk(role.body):
        uses = [use for code in s.codes for use in _uses(code)]
        for name, how in uses:
            number = group.setdefault(name, next(fresh))
            if how or isinstance(s, ir.Write):
                ways[number].add(how)
            if len(ways[number]) > 1:
                yield name, s.site
        if isinstance(s, ir.Compute):
            meeting = {group[name] for name, how in uses if not how and not _reduces(s.code)}
            new = next(fresh)
            ways[new] = set[str]().union(*(ways[number] for number in meeting))
            group = {name: new if number in meeting else number for name, number in group.items()}
            group |= dict.fromkeys(s.targets, new)


def _reduced_alone(role: Role, sums: set[str]) -> Iterator[tuple[str, Site]]:
    """Yields the words that make blocks of fewer dimensions, where no store says how their operands are laid out, nor
    an index how their results are. `sums` are laid out."""
    read = [(s, code) for s in ir.walk(role.body) for code in s.codes]
    stored, before = set(sums), -1
    while before < len(stored):
        before = len(stored)
        for s, code in read:
            if isinstance(s, ir.Write) or (isinstance(s, ir.Compute) and stored & {*s.targets}):
                stored |= _names(tree_of(code), code, leave_out=is_reducing)
    indexed = {name for _, code in read for name, how in _uses(code) if how}
    for s, code in read:
        tree = tree_of(code)
        known = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Subscript)}
        laid_out = isinstance(s, ir.Compute) and indexed & {*s.targets}
        for node in filter(is_reducing, ast.walk(tree)):
            if id(node) not in known and not laid_out and not stored & _names(node, code):
                yield ast.unparse(node.func).format(*code.holes), s.site


def _reduced_otherwise(role: Role, *, makes_sums: bool) -> Iterator[tuple[str, Site]]:
    """Yields where a reduced block gets another dimension back than the one that was reduced: what is left of a block
    lies as its other dimension does. A role that `makes_sums` knows how these lie. In others, a store would ask for
    another layout of what is left, and so does a reduction of all numbers of a block."""
    known: dict[str, frozenset[int]] = {}
    for s in ir.walk(role.body):
        for code in s.codes:
            for node in ast.walk(tree_of(code)):
                if isinstance(node, ast.Subscript) and (along := _along(node.value, code, known)):
                    index = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
                    new = {k for k, i in enumerate(index) if isinstance(i, ast.Constant)}
                    if len(index) != MATRIX or any({axis % MATRIX} != new for axis in along):
                        given = ast.unparse(node.slice)
                        yield f"reduces a block along one dimension, and gives it back another one, [{given}]", s.site
                elif not makes_sums and is_reducing(node) and _axis_of(node) is None:
                    yield "reduces a block along all dimensions, which gives it no layout", s.site
            if isinstance(s, ir.Write) and not makes_sums and _along(tree_of(code), code, known):
                yield "stores what is left of a block that it reduces, which gives the block no layout", s.site
        if isinstance(s, ir.Compute):
            known |= dict.fromkeys(s.targets, _along(tree_of(s.code), s.code, known))


def _along(node: ast.AST, code: ir.Code, known: dict[str, frozenset[int]]) -> frozenset[int]:
    """The dimensions along which an expression is reduced, and has no longer. `known`: the same of named blocks."""
    match node:
        case ast.Subscript():
            return frozenset()
        case ast.Set([ast.Constant(int() as k)]):
            return known.get(hole.name, frozenset()) if isinstance(hole := code.holes[k], ir.Variable) else frozenset()
        case ast.Call() if is_reducing(node):
            axis = _axis_of(node)
            return frozenset() if axis is None or "keep_dims" in {k.arg for k in node.keywords} else frozenset([axis])
    return frozenset[int]().union(*(_along(n, code, known) for n in ast.iter_child_nodes(node)))


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


def _of_unequal_dimensions(role: Role) -> Iterator[tuple[str, Site]]:
    """Yields the parts of expressions whose blocks have unequal numbers of dimensions. (The elaborator gives leading
    ones to blocks that have fewer, where it knows all shapes. It does not know what a function of the user returns.)"""
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
        case ast.Call(ast.Attribute(_, word)) if word in _MOVING:
            return 0
        case ast.Call() if is_reducing(node):
            before = max(_dimensions(n, code, known) for n in (node.func, *node.args[:1]))
            kept = "keep_dims" in {k.arg for k in node.keywords}
            return before if kept else 0 if _axis_of(node) is None else max(0, before - 1)
    return max((_dimensions(n, code, known) for n in ast.iter_child_nodes(node)), default=0)


def is_reducing(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _REDUCING


def _names(node: ast.AST, code: ir.Code, leave_out: Callable[[ast.AST], bool] = lambda _: False) -> set[str]:
    """The named blocks in a part of an expression."""
    match node:
        case ast.Set([ast.Constant(int() as k)]):
            return {hole.name} if isinstance(hole := code.holes[k], ir.Variable) else set()
    parts = (_names(n, code, leave_out) for n in ast.iter_child_nodes(node) if not leave_out(n))
    return set() if leave_out(node) else set[str]().union(*parts)


def _reduces(code: ir.Code) -> bool:
    """Whether an expression makes a block of fewer dimensions."""
    return any(isinstance(n, ast.Attribute) and n.attr in _REDUCING for n in ast.walk(tree_of(code)))


def tree_of(code: ir.Code) -> ast.expr:
    """The expression. Python parses a hole, such as {0}, as a set of one number."""
    return ast.parse(code.text, mode="eval").body
