"""A mutant: one thing changed in one place of a source text; and the places of a source, found by its syntax."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """The characters from `begin` to `end` of a source replaced by `new`. `kind`: what was changed, a wait, a scope;
    `line`: where that begins, from 1; `what`: the change, to be read and to tell mutants of a line apart."""

    kind: str
    line: int
    what: str
    begin: int
    end: int
    new: str

    def of(self, source: str) -> str:
        """The source with the change."""
        return source[: self.begin] + self.new + source[self.end :]

    def __str__(self) -> str:
        return f"{self.kind}, line {self.line}: {self.what}"


class Source:
    """A source text in ASCII with its syntax tree; makes mutants of its nodes."""

    def __init__(self, text: str) -> None:
        self.text, self.tree = text, ast.parse(text)
        self.lines = [0]
        for line in text.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node begins and ends, in characters."""
        assert isinstance(node, ast.expr | ast.stmt | ast.keyword)
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.lines[node.lineno - 1] + node.col_offset, self.lines[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.AST) -> str:
        """The text of a node."""
        begin, end = self.span(node)
        return self.text[begin:end]

    def changed(self, kind: str, node: ast.AST, new: str, what: str = "") -> Mutant:
        """Another text in place of a node. `what`: the change in words, where before and after don't say it all."""
        begin, end = self.span(node)
        words = what or f"{_short(self.of(node))} -> {_short(new)}"
        return Mutant(kind, self.text.count("\n", 0, begin) + 1, words, begin, end, new)

    def without(self, kind: str, statement: ast.stmt) -> Mutant:
        """A statement less."""
        return self.changed(kind, statement, "pass", f"without {_short(self.of(statement))}")

    def twice(self, kind: str, statement: ast.stmt) -> Mutant:
        """A statement done twice."""
        text = self.of(statement)
        indent = " " * statement.col_offset
        return self.changed(kind, statement, f"{text}\n{indent}{text}", f"twice {_short(text)}")

    def swapped(self, kind: str, one: ast.stmt, other: ast.stmt) -> Mutant:
        """Two statements of a block that follow each other, the other way round."""
        (begin, middle), (later, end) = self.span(one), self.span(other)
        new = self.text[later:end] + self.text[middle:later] + self.text[begin:middle]
        what = f"{_short(self.of(other))} before {_short(self.of(one))}"
        return Mutant(kind, one.lineno, what, begin, end, new)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that a node is part of."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def blocks(self) -> Iterator[list[ast.stmt]]:
        """The blocks of statements of all functions."""
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Module | ast.ClassDef):
                for name in ("body", "orelse"):
                    block = getattr(node, name, None)
                    if isinstance(block, list) and block:
                        yield block


Operator = Callable[[Source], Iterator[Mutant]]
"""What makes all mutants of one idea that a source has."""


def mutants(text: str, operators: tuple[Operator, ...]) -> list[Mutant]:
    """All mutants of a source, in order of their places; two that come to the same text are one."""
    source = Source(text)
    made: dict[str, Mutant] = {}
    for m in (m for operator in operators for m in operator(source)):
        changed = m.of(text)
        if changed != text:
            made.setdefault(changed, m)
    return sorted(made.values(), key=lambda m: (m.begin, m.kind, m.what))


def name_of(call: ast.AST) -> str:
    """The last name of the function that a call is of: "wait" of tk.wait(...); "" of what is no call."""
    if not isinstance(call, ast.Call):
        return ""
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def calls(source: Source, *names: str) -> Iterator[ast.Call]:
    """The calls of functions of these names."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and name_of(node) in names:
            yield node


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 70 else f"{line[:45]} ... {line[-20:]}"
