"""Recording a program: runs its function once, and keeps its buffers and launches."""

from __future__ import annotations

import ast
import contextvars
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tilelink.errors import (
    ArgumentError,
    DimensionError,
    NotUnderstoodError,
    Site,
    TileLinkError,
    UndefinedNameError,
    similar,
)
from tilelink.language.declarations import RANKS_DIM, Declared, Dim, RouteWord, Space, TensorWord, declared_dims, ranks
from tilelink.language.members import Each, FunctionWord, Parameters, Variant, launched, lists_of, member_name, own_dims

if TYPE_CHECKING:
    from tilelink.language.tile_functions import TileFunction


@dataclass(frozen=True)
class Launch:
    """A role that a program launches, with its arguments by parameter. `scheduled`: its name in schedules, `matmul`, or
    `matmul[1]` for the second member of lists. `own`: the names of the dimensions in which members differ."""

    function: TileFunction
    space: Space
    arguments: dict[str, Any]
    site: Site
    scheduled: str
    own: Mapping[str, str]

    def tensors(self, parameter: str) -> tuple[TensorWord, ...]:
        """The argument for a parameter: a tensor, or the members of a list."""
        given = self.arguments.get(parameter)
        return tuple(w for w in (given if isinstance(given, tuple) else (given,)) if isinstance(w, TensorWord))


@dataclass
class Recording:
    """The record of a program's function. `own`: the dimensions in which the members of `variant` differ. `begun`:
    launches with a space and without tensors so far, and their lines. `member`: the member that is recorded now, if
    there are several."""

    name: str
    buffer_names: dict[int, list[str]]
    dims: frozenset[str]
    variant: Variant
    own: frozenset[str]
    tensors: list[TensorWord] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    routes: list[RouteWord] = field(default_factory=list)
    begun: dict[str, Site] = field(default_factory=dict)
    member: int | None = None

    @property
    def roles(self) -> frozenset[str]:
        """The launched roles; all members of a list are one role."""
        return frozenset(launched(launch.scheduled) for launch in self.launches)

    def each(self, lists: tuple[Any, ...], site: Site) -> Iterator[Any]:
        """The members of lists, one after the other."""
        for k, members in enumerate(lists_of(*lists, site=site)):
            self.member = k if self.variant.members > 1 else None
            yield members if len(lists) > 1 else members[0]
        self.member = None

    @property
    def called(self) -> dict[str, str]:
        """The names of the dimensions of the present member, if members differ in them."""
        return {} if self.member is None else {d: member_name(d, self.member) for d in self.own}

    def buffer(
        self, dims: tuple[Dim, ...], axis: int | None, dtype: Any, buffers: int | None = None
    ) -> TensorWord:
        site = Site.of_user()
        dims = tuple(self.called.get(d, d) if isinstance(d, str) else d for d in dims)
        declared = declared_dims(dims, axis, site)
        if buffers is not None and (not isinstance(buffers, int) or buffers < 1 or dims[:1] != (ranks,)):
            raise DimensionError(
                f"buffers={buffers!r} of {dims}: it must be a number of buffers, at least 1, and the first dimension "
                "must be tk.ranks",
                site,
            )
        for d in dims:
            if isinstance(d, str) and d not in self.dims:
                known = f"they have {', '.join(sorted(self.dims))}{similar(d, self.dims)}"
                raise DimensionError(f"no tensor of {self.name} has the dimension {d}; {known}", site)
        made = sum(t.site is not None and t.site.line == site.line for t in self.tensors)
        names = self.buffer_names.get(site.line) or [f"buffer{sum(t.kind == 'buffer' for t in self.tensors)}"]
        name = names[made % len(names)]
        name = name if self.member is None else member_name(name, self.member)
        while any(t.name == name for t in self.tensors):
            name += "_"
        word = TensorWord(name, _names(declared.dims), declared.sharded, "buffer", dtype, site, buffers)
        word.called = tuple(next((c for c, own in self.called.items() if own == d), d) for d in word.dims)
        self.tensors.append(word)
        return word

    def launch(self, function: TileFunction, space: Space, arguments: tuple[Any, ...], site: Site) -> None:
        self.begun.pop(function.name, None)
        for route in self.routes if space.routed is None else ():
            for dim in (d for d in space.dims if d in route.sides):
                raise DimensionError(
                    f"the tile space of {function.name} has {dim}, a dimension of {route.counts}: for its rows, write "
                    f"tk.tiles({route.counts}, ...), or tk.tiles({route.counts}.experts, ...)",
                    site,
                )
        wanted, given = function.parameters[1:], len(arguments)
        needed = wanted[: len(wanted) - len(function.defaults)]
        if not len(needed) <= given <= len(wanted):
            named = {a.name for a in arguments if isinstance(a, TensorWord)}
            absent = [n for n in needed if n not in named]
            absent = absent if len(absent) == len(needed) - given else list(needed[given:])
            said = f"{given} given" if given > len(wanted) else f"{', '.join(absent)} is missing"
            first = function.parameters[0]
            if given == len(function.parameters) and first != "t":
                said += f"; did you forget t, the tile? It is the first parameter: def {function.name}(t, {first}, ...)"
            raise ArgumentError(f"{function.name} takes {', '.join(wanted)}; {said}", site)
        arguments += function.defaults[len(function.defaults) - (len(wanted) - given) :]
        scheduled = function.name
        if self.member is not None:
            scheduled = f"{function.name}[{self.member}]"
            function = function.named(member_name(function.name, self.member))
        if any(launch.function.name == function.name for launch in self.launches):
            raise NotUnderstoodError(
                f"{self.name} has a role {function.name}: give this one another name, {function.name}.named(...)", site
            )
        by_name = dict(zip(wanted, arguments, strict=True))
        for parameter, value in by_name.items():
            if isinstance(value, Declared):
                what = f"{parameter} of {function.name} is {value!r}, which declares a parameter of a program"
                raise ArgumentError(f"{what}; a buffer of a program is tk.local(...) or tk.sharded(...)", site)
        self.launches.append(Launch(function, space, by_name, site, scheduled, self.called))


_recording: contextvars.ContextVar[Recording | None] = contextvars.ContextVar("recording", default=None)


def program_of(word: str) -> Recording:
    recording = _recording.get()
    if recording is None:
        raise NotUnderstoodError(f"{word} has a meaning only inside a program", Site.of_user())
    return recording


def begin(name: str, site: Site) -> None:
    """Notes that a tile function is given its space, in the program that is being recorded, if there is one."""
    if (recording := _recording.get()) is not None:
        recording.begun[name] = site


def _names(dims: tuple[Dim, ...]) -> tuple[str, ...]:
    return tuple(d if isinstance(d, str) else RANKS_DIM for d in dims)


def _buffer_names(function: Callable[..., Any]) -> dict[int, list[str]]:
    """The buffers' names in the program's source, by the line that makes them."""
    names: dict[int, list[str]] = {}
    lines, first_line = inspect.getsourcelines(function)
    for name, value in assigned(ast.parse(textwrap.dedent("".join(lines)))):
        if isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] in ("local", "sharded"):
            names.setdefault(value.lineno + first_line - 1, []).append(name)
    return names


def declarations(function: Callable[..., None]) -> Parameters:
    """The declarations of a program's parameters, by name. Raises DimensionError."""
    parameters = {n: p.annotation for n, p in inspect.signature(function, eval_str=True).parameters.items()}
    for name, p in parameters.items():
        if not isinstance(p, Declared | Each | FunctionWord):
            raise DimensionError(
                f"{name} of {function.__name__} needs tk.Local(...) or tk.Sharded(...)", site_of(function)
            )
    return parameters


def site_of(function: Callable[..., None]) -> Site:
    """The file and line of a program's function."""
    file = inspect.getsourcefile(function) or "<unknown>"
    return Site(file, function.__code__.co_firstlineno, f"def {function.__name__}")


def record(function: Callable[..., None], absent: frozenset[str], variant: Variant) -> Recording:
    """Runs a program's function and records it; tensors in `absent` are None."""
    parameters = declarations(function)
    arguments: dict[str, Any] = dict(variant.functions)
    given: list[TensorWord] = []
    routes: list[RouteWord] = []
    for name, tensors in variant.flattened(parameters).items():
        parameter = parameters[name]
        called = _names((parameter.declared if isinstance(parameter, Each) else tensors[0][1]).dims)
        words = tuple(
            None
            if n in absent
            else TensorWord(n, _names(d.dims), d.sharded, "input", d.dtype, called=called, contiguous=d.contiguous)
            for n, d in tensors
        )
        given += [w for w in words if w is not None]
        arguments[name] = words if isinstance(parameter, Each) else words[0]
        if isinstance(parameter, Declared) and parameter.route is not None and words[0] is not None:
            words[0].dtype = "int32"
            arguments[name] = replace(parameter.route, counts=name)
            routes.append(arguments[name])
    dims = frozenset(d for a in given for d in a.dims) - {r.everywhere for r in routes}
    dims |= {d for r in routes for d in (*r.sides, r.per_rank)}
    own = own_dims(parameters)
    recording = Recording(function.__name__, _buffer_names(function), dims, variant, own, list(given), routes=routes)
    _check_routes(recording, site_of(function))
    token = _recording.set(recording)
    try:
        function(**arguments)
    except (TypeError, AttributeError, NameError, ValueError, ArithmeticError, LookupError) as e:
        raise _located(e, function) from e
    finally:
        _recording.reset(token)
    for name, site in recording.begun.items():
        raise NotUnderstoodError(
            f"{name}[...] is not called, so nothing is launched: write {name}[space](tensors)", site
        )
    if not recording.launches:
        raise NotUnderstoodError(f"{function.__name__} launches no tile function", site_of(function))
    for launch in recording.launches:
        for word in (w for p in launch.function.written_parameters for w in launch.tensors(p)):
            if word.kind == "input":
                word.kind = "output"
    return recording


def _check_routes(recording: Recording, site: Site) -> None:
    """Raises DimensionError for a route that does not fit the tensors or another route."""
    cut = frozenset(t.dims[t.sharded] for t in recording.tensors if t.sharded is not None)
    local = frozenset(d for t in recording.tensors for d in t.dims) - cut
    known = set[str]()
    for route in recording.routes:
        route.check(cut, local, site)
        if known & {*route.sides}:
            raise DimensionError(f"{route.counts}, {route}: a dimension belongs to one route", site)
        known |= {*route.sides}


_NO_NUMBERS = {"AxisWord": "a dimension", "TensorWord": "a tensor", "RanksWord": "a rank axis"}
"""What Python calls the words that a program may take for numbers, and what they are."""


def _located(e: Exception, function: Callable[..., Any]) -> TileLinkError:
    """The error to raise for an ordinary Python error of a program's body, with its line."""
    trace, site = e.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code is function.__code__:
            site = Site.at(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    kind = UndefinedNameError if isinstance(e, NameError) else NotUnderstoodError
    named = isinstance(e, TypeError | AttributeError | NameError)  # others need the name of their kind
    said, hint = str(e) if named else f"{type(e).__name__}: {e}", ""
    for word, what in _NO_NUMBERS.items():
        if f"'{word}'" in said:
            said = f"{what} is no number: a program knows neither sizes nor ranks; tile functions know them"
    if site and "'function' object is not subscriptable" in str(e):
        names = re.findall(r"(\w+)\[", site.text)
        plain = next((f for n in names if isinstance(f := function.__globals__.get(n), FunctionType)), None)
        code = plain.__code__ if plain else None
        above = f"{code.co_name} ({Site(code.co_filename, code.co_firstlineno)})" if code else "it"
        hint = f"; only tile functions are launched like this: write @tk.tile above {above}"
    if isinstance(e, NameError):
        code = function.__code__
        hint = similar(e.name, {*code.co_varnames, *code.co_names, *function.__globals__} - {e.name or ""})
    return kind(f"{function.__name__}: {said}{hint}", site)


def assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The single names that assignments give values to, with the values."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs: Iterable[tuple[ast.expr, ast.expr]] = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=False)
                yield from ((t.id, v) for t, v in pairs if isinstance(t, ast.Name))
