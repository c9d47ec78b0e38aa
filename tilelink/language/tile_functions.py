"""Tile functions: read from their source, launched over tile spaces, never run."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from types import FunctionType
from typing import Any, NoReturn

from tilelink.errors import ChangedValueError, DimensionError, NotUnderstoodError, Site
from tilelink.language.declarations import Space
from tilelink.language.recording import assigned, begin, program_of
from tilelink.language.words import steps

WORDS = "tilelink.language.words"
"""The module of the words of tile functions."""


def meant(node: ast.expr, scope: Mapping[str, Any]) -> Any:
    """The object that a name or an attribute stands for outside of a function; None for other expressions."""
    if isinstance(node, ast.Attribute):
        return getattr(meant(node.value, scope), node.attr, None)
    return scope.get(node.id) if isinstance(node, ast.Name) else None


class TileFunction:
    """A function of one tile; `function[space](tensors...)` in a program makes it a role."""

    def __init__(self, function: Callable[..., None], name: str | None = None) -> None:
        if not isinstance(function, FunctionType):
            what = "has @tk.tile already" if isinstance(function, TileFunction) else "is no function of Python"
            message = f"{function!r} {what}: @tk.tile stands once, on a function written with def"
            raise NotUnderstoodError(message, Site.of_user())
        self.function, self.name = function, name or function.__name__
        self.values_read: dict[str, Any] = {}
        self.file = inspect.getsourcefile(function) or "<unknown>"
        try:
            lines, self.first_line = inspect.getsourcelines(function)
        except OSError as e:
            raise NotUnderstoodError(f"the source of {self.name} can't be read: tile functions live in files") from e
        tree = ast.parse(textwrap.dedent("".join(lines)))
        ast.increment_lineno(tree, self.first_line - 1)
        node = tree.body[0]
        if not isinstance(node, ast.FunctionDef):
            raise NotUnderstoodError(f"{self.name}: a tile function is written with def", self.site(node))
        self.node = node
        self.parameters = tuple(a.arg for a in node.args.args)
        self.defaults: tuple[Any, ...] = function.__defaults__ or ()
        if not self.parameters or node.args.vararg or node.args.kwarg or node.args.kwonlyargs:
            raise NotUnderstoodError(f"{self.name}: the parameters are the tile, then tensors", self.site(node))
        self._check_assignments()

    def _check_assignments(self) -> None:
        """Raises NotUnderstoodError for an assignment to memory, because it would write nothing."""
        for node in ast.walk(self.node):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            view = next((t for t in targets if isinstance(t, ast.Subscript)), None)
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and view is not None and node.value:
                adds = "; add up in registers before, acc += ..." if isinstance(node, ast.AugAssign) else ""
                stored = f"write {ast.unparse(view)}.store({ast.unparse(node.value)}){adds}"
                said = f"memory is not assigned to; {stored}"
                if not (isinstance(view.value, ast.Name) and view.value.id in self.parameters):
                    name = ast.unparse(view.value)
                    said = f"entries are not assigned to. If {name} is a view, {stored}. If it is a block, make a new "\
                        f"one: {name} = tl.where(...)"
                raise NotUnderstoodError(f"{ast.unparse(node)}: {said}", self.site(node))

    def _check_launched(self) -> None:
        """Raises NotUnderstoodError if a function that is launched returns a value: nobody gets it."""
        for node in _outside_functions(self.node.body):
            if isinstance(node, ast.Return) and node.value is not None:
                calls = (n for n in ast.walk(node.value) if isinstance(n, ast.Call))
                stores = any(self._written_by(call) is not None for call in calls)
                instead = f"its results are stored, out[t].store({ast.unparse(node.value)})"
                raise NotUnderstoodError(
                    f"{self.name} returns {ast.unparse(node.value)}: a tile function that is launched returns nothing; "
                    f"{'leave `return` out' if stores else instead}",
                    self.site(node),
                )

    def __repr__(self) -> str:
        return f"<tile function {self.name}>"

    def site(self, node: ast.AST) -> Site:
        return Site(self.file, getattr(node, "lineno", self.first_line), ast.unparse(node).split("\n")[0])

    def names(self) -> dict[str, Any]:
        """The names that the function sees around it, with their values."""
        return {**self.function.__globals__, **self._enclosed()}

    def _value_of(self, text: str) -> Any:
        name, *attributes = text.split(".")
        enclosed = self._enclosed()
        value = enclosed[name] if name in enclosed else self.function.__globals__.get(name)
        for attribute in attributes:
            value = getattr(value, attribute)
        return value

    def _enclosed(self) -> dict[str, Any]:
        """The names that it sees in functions around it, with their values."""
        cells = zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True)
        return {name: cell.cell_contents for name, cell in cells}

    def named(self, name: str) -> TileFunction:
        """The same function under another role name, for programs that use it twice."""
        if not isinstance(name, str) or not name.isidentifier():
            raise NotUnderstoodError(
                f"{self.name}.named({name!r}): a role's name has letters, digits and _, and begins with no digit",
                Site.of_user(),
            )
        made = TileFunction(self.function, name)
        made.values_read = self.values_read
        return made

    def read(self, text: str) -> Any:
        """The value of a name from outside of the function, or of an attribute of one, "SIZES.M". A number, a text,
        True, False or None becomes part of kernels, so it has to stay as it is. Raises AttributeError."""
        value = self._value_of(text)
        if isinstance(value, int | float | str | None):
            self.values_read.setdefault(text, value)
        return value

    def check_values_read(self) -> None:
        """Raises ChangedValueError if a value is no longer what it was when it was first read."""
        for text, before in self.values_read.items():
            now = self._value_of(text)
            if (type(now), now) != (type(before), before):
                raise ChangedValueError(
                    f"{text} was {before!r} when {self.name} was first read, and is {now!r} now: its value is part of "
                    f"kernels. Define {self.name} and its program in a function that takes {text}, or pass it as a "
                    "tensor of the program",
                    Site(self.file, self.first_line, f"def {self.node.name}"),
                )

    @cached_property
    def with_called(self) -> tuple[TileFunction, ...]:
        """The function, and the tile functions that it calls."""
        own = (f for _, f in self.calls if f.function is not self.function)
        return self, *(f for called in own for f in called.with_called)

    @cached_property
    def assigned(self) -> frozenset[str]:
        """The names that it assigns to."""
        return frozenset(
            n.id for n in ast.walk(self.node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        )

    @cached_property
    def mentioned(self) -> frozenset[str]:
        """The names in it, and in the tile functions that it calls."""
        own = frozenset(n.id for n in ast.walk(self.node) if isinstance(n, ast.Name))
        return own.union(*(called.mentioned for _, called in self.calls if called.function is not self.function))

    @cached_property
    def calls(self) -> tuple[tuple[ast.Call, TileFunction], ...]:
        """Its calls of tile functions, and the functions."""
        calls = (n for n in ast.walk(self.node) if isinstance(n, ast.Call))
        return tuple((n, f) for n in calls if isinstance(f := meant(n.func, self.names()), TileFunction))

    @cached_property
    def takes_step(self) -> bool:
        """Whether a loop of it, or of a tile function that it calls, takes its step from the schedule."""
        calls = (n for n in ast.walk(self.node) if isinstance(n, ast.Call) and all(k.arg != "by" for k in n.keywords))
        own = any(meant(n.func, self.names()) is steps for n in calls)
        return own or any(f.takes_step for _, f in self.calls if f.function is not self.function)

    def _written_by(self, node: ast.Call) -> ast.expr | None:
        """The expression that a call writes to: the view of a `store`, or the argument `target` of a word."""
        if isinstance(node.func, ast.Attribute) and node.func.attr == "store":
            return node.func.value
        word = meant(node.func, self.names())
        if getattr(word, "__module__", None) != WORDS:
            return None
        given = dict(zip(inspect.signature(word).parameters, node.args, strict=False))
        return given.get("target") or next((k.value for k in node.keywords if k.arg == "target"), None)

    def __getitem__(self, space: Space) -> Callable[..., None]:
        if not isinstance(space, Space):
            raise DimensionError(f"{self.name}[{space!r}]: a role runs over tk.tiles(...)", Site.of_user())

        site = Site.of_user()
        begin(self.name, site)

        def launch(*arguments: Any, **named: Any) -> None:
            self._check_launched()
            if named:
                said = f"{self.name} takes {', '.join(named)} by position: {self.name}[tk.tiles(...)](x, out)"
                raise NotUnderstoodError(said, Site.of_user())
            program_of(self.name).launch(self, space, arguments, site)

        return launch

    def __call__(self, *arguments: Any) -> NoReturn:
        raise NotUnderstoodError(
            f"{self.name} is a tile function: a program launches it over a tile space, {self.name}[tk.tiles(...)](...)",
            Site.of_user(),
        )

    @cached_property
    def written_parameters(self) -> dict[str, Site]:
        """Parameters that the function, or a function that it calls, stores or copies to, each with the first place
        that does (elaboration checks that there are no others)."""
        roots: dict[str, str] = {}

        def root(node: ast.AST) -> str | None:
            while isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
                if isinstance(node, ast.Call):
                    claims = isinstance(node.func, ast.Attribute) and node.func.attr == "claim"
                    node = node.args[0] if claims and node.args else node.func
                else:
                    node = node.value
            return roots.get(node.id, node.id) if isinstance(node, ast.Name) else None

        written: dict[str | None, ast.Call] = {}
        for name, value in (*_looped(self.node), *assigned(self.node)):
            if (r := root(value)) in self.parameters and isinstance(r, str):
                roots[name] = r
        for node, called in self.calls:
            given = dict(zip(called.parameters, node.args, strict=False)) | {k.arg: k.value for k in node.keywords}
            for parameter in called.written_parameters if called.function is not self.function else ():
                if parameter in given:
                    written.setdefault(root(given[parameter]), node)
        for node in sorted((n for n in ast.walk(self.node) if isinstance(n, ast.Call)), key=lambda n: n.lineno):
            if (target := self._written_by(node)) is not None:
                written.setdefault(root(target), node)
        return {p: self.site(written[p]) for p in self.parameters if p in written}


def _looped(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names that loops over tk.each give to members of lists, with the lists."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
            names = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
            if isinstance(node.iter.func, ast.Attribute) and node.iter.func.attr == "each":
                yield from ((n.id, v) for n, v in zip(names, node.iter.args, strict=False) if isinstance(n, ast.Name))


def tile(function: Callable[..., None]) -> TileFunction:
    """Declares a function of one tile. Its first parameter is the tile, the others are tensors of the program."""
    return TileFunction(function)


def _outside_functions(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes and what stands in them, except in functions that are written inside."""
    for node in nodes:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _outside_functions(ast.iter_child_nodes(node))
