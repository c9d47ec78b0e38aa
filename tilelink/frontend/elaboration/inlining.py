"""Tile functions that tile functions call: their statements stand where they are called."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tilelink.errors import NotUnderstoodError, TileLinkError
from tilelink.frontend import ir
from tilelink.frontend.elaboration.source import VariableName
from tilelink.frontend.elaboration.statements import Statements
from tilelink.frontend.values import Block, Static
from tilelink.language import TileFunction


class Elaborator(Statements):
    """Elaborates one tile function for one role, with the tile functions that it calls."""

    def inline(self, node: ast.Call, called: TileFunction, label: str) -> Any:
        """What a tile function returns, after its statements. `label`: the name that the result gets, "" for none."""
        if called.function in (f.function for f in self.callers):
            way = " -> ".join(f.name for f in (*self.callers, called))
            self.fail(NotUnderstoodError, node, f"{way}: a tile function that calls itself has no end")
        if self.holes or self.dots:
            self.fail(NotUnderstoodError, node, f"{ast.unparse(node.func)} is a tile function, called behind others in "
                      f"one expression: give its result a name first, result = {ast.unparse(node)}")
        values = self.given(node, called)
        *statements, last = called.node.body
        returned = last.value if isinstance(last, ast.Return) else None
        renamed = {}
        if isinstance(returned, ast.Name) and label and not self.reads(values, returned.id, label):
            renamed[returned.id] = self.local_name(label)
        try:
            with self.frame(called, values, renamed):
                for p in called.assigned & values.keys():
                    self.own_variable(node, p)
                self.run(statements if returned is not None else called.node.body)
                return Static(None) if returned is None else self.value(returned)
        except TileLinkError as e:
            raise e.because_of("called", self.function.site(node)) from None

    def given(self, node: ast.Call, called: TileFunction) -> dict[str, Any]:
        """The values of a tile function's parameters in a call; a block that is an expression gets a name at once."""
        found = self.arguments(node, *called.parameters, needed=len(called.parameters) - len(called.defaults))
        defaults = dict(zip(reversed(called.parameters), reversed(called.defaults), strict=False))
        return {
            p: self.argument(defaults[p]) if a is None else self.named_block(node, self.value(a), f"{called.name}_{p}")
            for p, a in zip(called.parameters, found, strict=True)
        }

    def named_block(self, node: ast.Call, value: Any, name: str) -> Any:
        """A block that is an expression as a variable of the kernel; anything else as it is."""
        if not isinstance(value, Block) or isinstance(value.node, VariableName):
            return value
        own = self.fresh_name(name)
        self.emit(ir.Compute(self.function.site(node), self.code(value.node), (own,)))
        return Block(VariableName(own, ast.Load()), value.shape, value.dtype)

    def reads(self, values: dict[str, Any], returned: str, label: str) -> bool:
        """Whether a call reads the variable that gets its result, other than as the parameter that it returns."""
        old = self.env.get(label)
        return isinstance(old, Block) and any(
            isinstance(v, Block) and ast.dump(v.node) == ast.dump(old.node) for p, v in values.items() if p != returned
        )

    def own_variable(self, node: ast.Call, parameter: str) -> None:
        """Gives a parameter that is assigned to a variable of its own, so that the caller's keeps its value."""
        value = self.env[parameter]
        if isinstance(value, Block):
            self.bind(node, [parameter], [value], value)

    @contextmanager
    def frame(self, called: TileFunction, values: dict[str, Any], renamed: dict[str, str]) -> Iterator[None]:
        """Reads what a function says with its own names; those of its variables are new in the kernel."""
        kept = self.function, self.names, self.env, self.renamed, self.nested, self.ended, self.callers
        self.callers = (*self.callers, called)
        self.function, self.names, self.env, self.renamed = called, called.names(), values, renamed
        self.nested, self.ended = set(), set()
        try:
            yield
        finally:
            self.function, self.names, self.env, self.renamed, self.nested, self.ended, self.callers = kept
