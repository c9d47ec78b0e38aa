"""Mutants of lowered kernels: what signals, ranks, places and order can be wrong about in the Triton source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from tests.verification.mutants.mutant import Mutant, Operator, Source, calls, name_of

SYNCHRONISES = ("wait", "notify", "credit", "enter", "entered", "last_out", "leave", "drain")
WEAKER = {"sys": ("gpu", "cta"), "gpu": ("cta",), "cta": ()}


def waits(source: Source) -> Iterator[Mutant]:
    """A wait less; one that waits for one too few, or too many."""
    for call in calls(source, "wait"):
        yield source.changed("wait", call, "0")
        yield from _off_by(source, "threshold", call.args[2])
    for call in calls(source, "entered"):
        yield source.changed("wait", call, "0")
        yield source.changed("threshold", call.args[2], "run - 1")


def notifications(source: Source) -> Iterator[Mutant]:
    """A notification less, or one given twice."""
    for call in calls(source, "notify"):
        yield source.without("notify", source.statement(call))
        yield source.twice("notify", source.statement(call))


def scopes(source: Source) -> Iterator[Mutant]:
    """A release or an acquire that does not reach as far."""
    for call in calls(source, "wait", "notify", "drain"):
        scope = call.args[-1]
        assert isinstance(scope, ast.Constant)
        for weaker in WEAKER[scope.value]:
            yield source.changed("scope", scope, f'"{weaker}"', f"{scope.value} -> {weaker} of {name_of(call)}")


def runs(source: Source) -> Iterator[Mutant]:
    """What keeps runs apart: credits, entering, leaving, draining; the slot."""
    for call in calls(source, "credit", "enter", "leave"):
        if isinstance(source.parents[call], ast.Expr):
            kind = "credit" if name_of(call) == "credit" else "release" if name_of(call) == "enter" else "slot"
            yield source.without(kind, source.statement(call))
    for call in calls(source, "credit"):
        yield source.changed("credit", call.args[1], "0")
    for call in calls(source, "last_out"):
        yield source.changed("drain", call, "worker == 0")
        yield from _off_by(source, "drain", call.args[1])
    for call in calls(source, "drain"):
        yield from _off_by(source, "drain", call.args[2])
        yield source.changed("zeroing", call.args[3], "here & (cell < 1)")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Expr) and name_of(node.value).startswith("drain_"):
            yield source.without("drain", node)
        if isinstance(node, ast.Name) and node.id == "slot" and isinstance(node.ctx, ast.Load):
            yield source.changed("slot", node, "(1 - slot)")


def tokens(source: Source) -> Iterator[Mutant]:
    """An address that does not depend on the wait before it."""
    made = {
        target.id
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign | ast.AugAssign) and name_of(node.value) in ("wait", "entered")
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(source.tree):
        if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Name) and node.right.id in made:
            yield source.changed("token", node, source.of(node.left))


def ranks(source: Source) -> Iterator[Mutant]:
    """Another rank's memory or signal; a condition on ranks turned round."""
    for call in calls(source, "peer"):
        rank = source.of(call.args[1])
        yield source.changed("rank", call.args[1], "rank" if rank != "rank" else "(rank + 1) % world")
        yield source.changed("rank", call.args[1], f"({rank} + 1) % world")
    for call in calls(source, "entered"):
        yield source.changed("rank", call.args[1], "rank")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.If) and not any(name_of(c) == "last_out" for c in ast.walk(node.test)):
            yield source.changed("rank", node.test, f"not ({source.of(node.test)})")


def homes(source: Source) -> Iterator[Mutant]:
    """The rank of a tile, in an address or a signal, is another's."""
    for function in (n for n in source.tree.body if isinstance(n, ast.FunctionDef)):
        names = [a.id for n in ast.walk(function) if isinstance(n, ast.Assign) for a in n.targets if _of_rank(a)]
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                if node.id in names:
                    yield source.changed("home", node, "rank", f"{node.id} -> rank in {_line(source, node)}")
                elif node.id == "rank" and names and not isinstance(source.parents[node], ast.Call):
                    yield source.changed("home", node, names[0], f"rank -> {names[0]} in {_line(source, node)}")
            if isinstance(node, ast.Assign) and any(_of_rank(a) for a in node.targets):
                yield source.changed("home", node.value, f"({source.of(node.value)} + 1) % world")


def tiles(source: Source) -> Iterator[Mutant]:
    """A tile, a cell or a step beside the one that is meant; a mask less."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and any(_of_place(a) for a in node.targets):
            value = source.of(node.value)
            yield source.changed("tile index", node.value, f"({value}) + 1")
            if isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.FloorDiv | ast.Mod):
                other = "%" if isinstance(node.value.op, ast.FloorDiv) else "//"
                new = f"{source.of(node.value.left)} {other} {source.of(node.value.right)}"
                yield source.changed("tile index", node.value, new)
        if isinstance(node, ast.For) and name_of(node.iter) == "range" and isinstance(node.iter, ast.Call):
            args = node.iter.args if len(node.iter.args) > 1 else [None, *node.iter.args]
            by = source.of(args[2]) if len(args) > 2 and isinstance(args[2], ast.Constant) else "1"
            if args[0] is not None:
                yield from _off_by(source, "tile index", args[0], by, less=False)
            yield from _off_by(source, "tile index", args[1], by)
        if isinstance(node, ast.keyword) and node.arg == "mask":
            yield source.changed("tile index", node.value, "None", f"no mask in {_line(source, node)}")
    for call in calls(source, "wait", "notify"):
        word = call.args[1] if name_of(call) == "wait" else call.args[0]
        yield source.changed("tile index", word, f"{source.of(word)} + 1", f"{name_of(call)}: the next signal")
        if isinstance(word, ast.BinOp) and isinstance(word.op, ast.Add):
            yield source.changed("tile index", word, source.of(word.left))
    for call in calls(source, "peer"):
        at = source.of(call.args[2])
        if at != "0":
            yield source.changed("tile index", call.args[2], f"{at} + 4")


def orders(source: Source) -> Iterator[Mutant]:
    """Two things that follow each other the other way round, one of which synchronises or touches memory; workers
    that do the tiles of others."""
    for block in source.blocks():
        for one, other in pairwise(block):
            made = {n.id for n in ast.walk(one) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            used = {n.id for n in ast.walk(other) if isinstance(n, ast.Name)}
            if not made & used and _acts(one) and _acts(other) and (_orders(one) or _orders(other)):
                yield source.swapped("order", one, other)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and node.left.id == "worker":
            operator = {ast.Lt: "<=", ast.Eq: "!="}[type(node.ops[0])]
            yield source.changed("order", node, f"worker {operator} {source.of(node.comparators[0])}")
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and node.target.id == "i":
            assert isinstance(node.iter, ast.Call)
            worker, _, workers = map(source.of, node.iter.args)
            yield source.changed("order", node.iter.args[0], f"{workers} - 1 - {worker}")
            yield source.changed("order", node.iter.args[2], f"{workers} + 1")


OPERATORS: tuple[Operator, ...] = (
    waits, notifications, scopes, runs, tokens, ranks, homes, tiles, orders,
)  # fmt: skip


def _off_by(source: Source, kind: str, node: ast.expr, by: str = "1", *, less: bool = True) -> Iterator[Mutant]:
    """A number that is a step too large, or too small."""
    text = source.of(node)
    text = text if isinstance(node, ast.Name | ast.Constant) else f"({text})"
    yield source.changed(kind, node, f"{text} + {by}")
    if less:
        yield source.changed(kind, node, f"{text} - {by}")


def _acts(statement: ast.stmt) -> bool:
    """Whether a statement synchronises, or reads or writes memory."""
    return _orders(statement) or any(name_of(n) == "load" for n in ast.walk(statement))


def _orders(statement: ast.stmt) -> bool:
    """Whether a statement synchronises or writes: two that only read may be done in any order."""
    names = {name_of(n) for n in ast.walk(statement)}
    return bool(names & {*SYNCHRONISES, "store"}) or any(n.startswith("drain_") for n in names)


def _of_rank(target: ast.AST) -> bool:
    """Whether what is assigned is the rank of a tile."""
    return isinstance(target, ast.Name) and (target.id in RANKS or target.id.endswith("_home"))


def _of_place(target: ast.AST) -> bool:
    """Whether what is assigned is where a tile, or a cell of the signals, lies."""
    name = target.id if isinstance(target, ast.Name) else ""
    return name.endswith(("_tile", "_lo", "_cell")) or name.startswith(("cell_", "part_", "index_"))


RANKS = ("home", "reader", "source", "node", "place")


def _line(source: Source, node: ast.AST) -> str:
    """Where a name stands, to tell it from others of its line."""
    begin, _ = source.span(node)
    return " ".join(source.text[max(source.lines[source.statement(node).lineno - 1], begin - 24) : begin + 12].split())
