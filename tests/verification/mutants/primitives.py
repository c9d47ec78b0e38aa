"""Mutants of primitives: orders and scopes of atomics, barriers, what is polled for, told, zeroed, advanced."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from tests.verification.mutants.mutant import Mutant, Operator, Source, calls, name_of

WEAKER = {
    "acquire": ("relaxed",),
    "release": ("relaxed",),
    "acq_rel": ("acquire", "release", "relaxed"),
    "sys": ("gpu",),
    "gpu": ("cta",),
}
INSTRUCTIONS: tuple[tuple[str, str, str], ...] = (
    (r"red\.release\.", "red.relaxed.", "release"),
    (r"fence\.acq_rel\.sys", "fence.acq_rel.gpu", "scope"),
    (r"fence\.acq_rel\.sys", "nanosleep.u32 1", "release"),
    (r"ld\.acquire\.", "ld.relaxed.", "acquire"),
    (r"fence\.proxy\.async\.global;", "", "acquire"),
    (r"bar\.warp\.sync 0xffffffff;", "", "barrier"),
    (r"and\.b32 \$0, \$1, 0;", "mov.b32 $0, 0;", "token"),
    (r"buffer_inv ", "s_nop 0 ; ", "acquire"),
    (r"s_waitcnt vmcnt\(0\)", "s_nop 0", "barrier"),
    (r"sc0 sc1", "sc1", "scope"),
    (r"@%p bra POLL_", "// @%p bra POLL_", "wait"),
)
"""Of inline assembly: what is taken out, what stands there then, what that was for."""


def semantics(source: Source) -> Iterator[Mutant]:
    """Weaker orders and narrower scopes."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and node.value in WEAKER:
            kind = "scope" if node.value in ("sys", "gpu") else "acquire" if node.value == "acquire" else "release"
            for weaker in WEAKER[node.value]:
                yield source.changed(kind, node, f'"{weaker}"', _told(source, node, weaker))
        if isinstance(node, ast.keyword) and node.arg == "scope" and isinstance(node.value, ast.Name):
            yield source.changed("scope", node.value, '"cta"', _told(source, node.value, '"cta"'))


def instructions(source: Source) -> Iterator[Mutant]:
    """Of inline assembly, an instruction less, or a weaker one."""
    documentation = {n.body[0].value for n in ast.walk(source.tree) if _documented(n)}
    for node in ast.walk(source.tree):
        inside = isinstance(source.parents.get(node), ast.JoinedStr)
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and not inside and node not in documentation
        ):
            begin, end = source.span(node)
            for pattern, new, kind in INSTRUCTIONS:
                for found in re.finditer(pattern, source.text[begin:end]):
                    line = source.text.count("\n", 0, begin + found.start()) + 1
                    what = f"{found[0]} -> {new or 'nothing'}"
                    yield Mutant(kind, line, what, begin + found.start(), begin + found.end(), new)


def statements(source: Source) -> Iterator[Mutant]:
    """A barrier, a store or an atomic less; a wait that does not; two statements the other way round."""
    for block in source.blocks():
        for statement in block:
            if isinstance(statement, ast.While):
                yield source.without("wait", statement)
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                yield source.without(_kind(source.of(statement)), statement)
        for one, other in pairwise(block):
            made = {n.id for n in ast.walk(one) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            used = {n.id for n in ast.walk(other) if isinstance(n, ast.Name)}
            runs = not any(isinstance(s, ast.AnnAssign | ast.Return) or _documentation(s) for s in (one, other))
            if runs and not made & used:
                yield source.swapped("order", one, other)


def numbers(source: Source) -> Iterator[Mutant]:
    """Counts, progress and comparisons that are off by one; peers that are passed over; words of others."""
    for node in ast.walk(source.tree):
        if not _in_function(source, node):
            continue
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                other = {ast.Lt: "<=", ast.Gt: ">=", ast.Eq: "!=", ast.GtE: ">", ast.LtE: "<"}[type(op)]
                yield source.changed("threshold", node, f"{source.of(left)} {other} {source.of(right)}")
                yield source.changed("threshold", right, f"{source.of(right)} - 1")
                yield source.changed("threshold", right, f"{source.of(right)} + 1")
            case ast.BinOp(left=ast.BinOp(op=ast.Mult()), op=ast.Add(), right=ast.Constant(value=int(value))):
                yield source.changed("threshold", node.right, str(value - 1))
                yield source.changed("threshold", node.right, str(value + 1))
            case ast.BinOp(left=ast.Name(id="run"), op=ast.Add()):
                yield source.changed("slot", node, "run")
            case ast.BinOp(left=ast.Name(id="SLOT_LEFT"), right=ast.Name()):
                yield source.changed("slot", node, "SLOT_LEFT")
            case ast.BinOp(right=ast.Name(id="rank" | "other" as name)):
                new = "other" if name == "rank" else "rank"
                if new in _names(source, node):
                    yield source.changed("rank", node.right, new, _told(source, node.right, new))
                yield source.changed("rank", node, source.of(node.left), _told(source, node, source.of(node.left)))
    for call in calls(source, "range"):
        if len(call.args) == 1:
            yield source.changed("credit", call, f"range({source.of(call.args[0])} - 1)", _told(source, call, "less"))
            yield source.changed("credit", call, f"range(1, {source.of(call.args[0])})", _told(source, call, "from 1"))
    for call in calls(source, "peer"):
        if source.of(call.args[1]) == "other":
            yield source.changed("rank", call.args[1], "rank", _told(source, call.args[1], "rank"))


def tokens(source: Source) -> Iterator[Mutant]:
    """A wait that returns a zero which the compiler knows."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Return) and node.value is not None and _function(source, node) in (
            "wait", "entered", "_until",
        ):  # fmt: skip
            if name_of(node.value) in ("to", "inline_asm_elementwise"):
                yield source.changed("token", node.value, "0", _told(source, node, "0"))
            else:
                yield source.changed("wait", node.value, "0", _told(source, node, "0"))


OPERATORS: tuple[Operator, ...] = (semantics, instructions, statements, numbers, tokens)


def _kind(text: str) -> str:
    """What a statement is for."""
    for word, kind in (
        ("debug_barrier", "barrier"), ("_stored", "barrier"), ("tl.zeros", "zeroing"), ("TICKET", "zeroing"),
        ("SLOT_LEFT", "slot"), ("RUN", "slot"), ("wait(", "wait"), ("_until(", "wait"),
    ):  # fmt: skip
        if word in text:
            return kind
    return "release"


def _documentation(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _documented(node: ast.AST) -> bool:
    body = getattr(node, "body", None)
    return isinstance(node, ast.Module | ast.FunctionDef) and bool(body) and _documentation(body[0])


def _function(source: Source, node: ast.AST) -> str:
    """The function that a node stands in."""
    while node in source.parents:
        node = source.parents[node]
        if isinstance(node, ast.FunctionDef):
            return node.name
    return ""


def _in_function(source: Source, node: ast.AST) -> bool:
    return bool(_function(source, node))


def _names(source: Source, node: ast.AST) -> set[str]:
    """The names that a function knows where a node stands in it."""
    while not isinstance(node, ast.FunctionDef):
        node = source.parents[node]
    return {a.arg for a in node.args.args} | {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _told(source: Source, node: ast.AST, new: str) -> str:
    """The change, with the function and the statement it is in."""
    statement = " ".join(source.of(source.statement(node)).split())
    text = source.of(node)
    return f"{_function(source, node)}: {text if len(text) < 40 else '...'} -> {new} in {statement[:70]}"
