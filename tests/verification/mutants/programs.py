"""Mutants of programs as users write them: tile functions, what launches them, and schedules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from tests.verification.mutants.mutant import Mutant, Operator, Source, calls, name_of

AXES = ("home", "reader", "source", "node", "place", "N_home")
ACTS = ("wait", "notify", "claim", "release", "copy", "store", "load")


def waits(source: Source) -> Iterator[Mutant]:
    """A wait less, for all or one of its views; a claim less."""
    for call in calls(source, "wait", "claim"):
        kind = "wait" if name_of(call) == "wait" else "credit"
        views = [source.of(a) for a in call.args]
        yield source.changed(kind, call, views[0] if len(views) == 1 else f"({', '.join(views)})")
        for k in range(len(views)) if len(views) > 1 else ():
            rest = [v if n == k else f"tk.wait({v})" for n, v in enumerate(views)]
            yield source.changed(kind, call, f"({', '.join(rest)})")


def notifications(source: Source) -> Iterator[Mutant]:
    """A notification less, of all or one of its views, or one given twice; a release less."""
    for call in calls(source, "notify", "release"):
        kind, statement = name_of(call), source.statement(call)
        yield source.changed(kind, call, source.of(call.args[0]) if len(call.args) == 1 else _tuple(source, call.args))
        yield source.twice(kind, statement)
        for k in range(len(call.args)) if len(call.args) > 1 else ():
            rest = [source.of(a) for n, a in enumerate(call.args) if n != k]
            yield source.changed(kind, call, f"tk.{kind}({', '.join(rest)})")


def ranks(source: Source) -> Iterator[Mutant]:
    """Memory of another rank; a condition on ranks turned round."""
    for call in calls(source, "at"):
        assert isinstance(call.func, ast.Attribute)
        view, rank = source.of(call.func.value), source.of(call.args[0])
        yield source.changed("rank", call, view)
        if rank != "tk.ranks":
            yield source.changed("rank", call, f"{view}.at(({rank} + 1) % tk.world())")
    for call in calls(source, "rank"):
        yield source.changed("rank", call, "((tk.rank() + 1) % tk.world())")
    for node in _in_tile_functions(source, ast.If):
        assert isinstance(node, ast.If)
        if "None" not in (text := source.of(node.test)):
            yield source.changed("rank", node.test, f"not ({text})" if ">" not in text else text.replace(">=", ">"))
            if isinstance(node.test, ast.Compare) and len(node.test.ops) == 1:
                yield source.changed("rank", node.test, _opposite(source, node.test))


def homes(source: Source) -> Iterator[Mutant]:
    """A tile's home, or a rank axis, taken for another; who executes a tile."""
    for node in _in_tile_functions(source, ast.Attribute):
        assert isinstance(node, ast.Attribute)
        if node.attr in AXES and source.of(node.value) == "t":
            for other in ("tk.rank()", "t.home", f"(({source.of(node)} + 1) % tk.world())"):
                yield source.changed("home", node, other)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.keyword) and node.arg == "at" and isinstance(node.value, ast.Constant):
            for other in ("home", "reader", "source"):
                yield source.changed("home", node.value, f'"{other}"')


def tiles(source: Source) -> Iterator[Mutant]:
    """Another part of a tensor; a loop that begins late, or ends early or late."""
    other = {"rows": "cols", "cols": "rows", "M": "N", "N": "M", "S": "H", "H": "S"}
    for node in _in_tile_functions(source, ast.Subscript):
        assert isinstance(node, ast.Subscript)
        index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for i in index:
            if isinstance(i, ast.Attribute) and i.attr in other:
                yield source.changed("tile index", i, f"{source.of(i.value)}.{other[i.attr]}")
            elif isinstance(i, ast.Name) and i.id == "t":
                yield source.changed("tile index", i, "t.rows")
            elif isinstance(i, ast.Name | ast.BinOp | ast.Constant) and source.of(i) != "None" and len(index) > 1:
                yield source.changed("tile index", i, f"{source.of(i)} + 1")
                yield source.changed("tile index", i, "0")
    for call in calls(source, "steps", "ranks", "range"):
        if not isinstance(source.parents[call], ast.For):
            continue
        if name_of(call) == "ranks":
            yield source.changed("tile index", call, "range(tk.world() - 1)")
            yield source.changed("tile index", call, "range(1, tk.world())")
        elif name_of(call) == "range":
            yield source.changed("tile index", call, f"range({source.of(call.args[-1])} - 1)")
            yield source.changed("tile index", call, f"range({source.of(call.args[-1])} + 1)")
            yield source.changed("tile index", call, f"range(1, {source.of(call.args[-1])})")
        elif call.keywords:
            stop = source.of(call.keywords[0].value)
            for new in (f"{stop} - 1", f"{stop} + 1", stop.replace("stop", "start")):
                yield source.changed("tile index", call.keywords[0].value, new)
        else:
            whole = source.of(call.args[0])
            yield source.changed("tile index", call, f"tk.steps({whole}, stop={whole}.size - 1)")


def orders(source: Source) -> Iterator[Mutant]:
    """Two statements that touch memory, or two launches, the other way round; tiles in another order."""
    for function in _functions(source, "tile", "program"):
        for block in source.blocks():
            if function not in _ancestors(source, block[0]):
                continue
            for one, other in pairwise(block):
                made = {n.id for n in ast.walk(one) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
                used = {n.id for n in ast.walk(other) if isinstance(n, ast.Name)}
                if not made & used and _acts(one) and _acts(other):
                    yield source.swapped("order", one, other)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.keyword) and node.arg == "order":
            for other in ("tk.own_rank_first", "tk.ring"):
                yield source.changed("order", node.value, other)


def turns(source: Source) -> Iterator[Mutant]:
    """Entries of a buffer that take turns in fewer places, or in more."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.keyword) and node.arg == "buffers":
            yield source.changed("slot", node.value, "1")
            yield source.changed("slot", node.value, "3")


OPERATORS: tuple[Operator, ...] = (waits, notifications, ranks, homes, tiles, orders, turns)


def _functions(source: Source, *decorators: str) -> Iterator[ast.FunctionDef]:
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef) and any(source.of(d) in map("tk.{}".format, decorators)
                                                     for d in node.decorator_list):  # fmt: skip
            yield node


def _in_tile_functions(source: Source, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
    for function in _functions(source, "tile"):
        yield from (n for n in ast.walk(function) if isinstance(n, kinds))


def _ancestors(source: Source, node: ast.AST) -> list[ast.AST]:
    found = []
    while node in source.parents:
        node = source.parents[node]
        found.append(node)
    return found


def _acts(statement: ast.stmt) -> bool:
    """Whether a statement touches memory, synchronises, or launches a role."""
    names = [name_of(n) for n in ast.walk(statement) if isinstance(n, ast.Call)]
    launches = any(isinstance(n, ast.Call) and isinstance(n.func, ast.Subscript) for n in ast.walk(statement))
    return launches or any(n in ACTS for n in names)


def _opposite(source: Source, test: ast.Compare) -> str:
    words = {ast.Eq: "!=", ast.NotEq: "==", ast.Gt: "<=", ast.GtE: "<", ast.Lt: ">=", ast.LtE: ">"}
    return f"{source.of(test.left)} {words[type(test.ops[0])]} {source.of(test.comparators[0])}"


def _tuple(source: Source, nodes: list[ast.expr]) -> str:
    return f"({', '.join(map(source.of, nodes))})"
