"""Recording a program: its function is run once, and what it makes and launches is written down."""

from __future__ import annotations

import ast
import contextvars
import inspect
import linecache
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilelink.errors import DimensionError, NotUnderstoodError, Site, TileLinkError, UndefinedNameError
from tilelink.language.declarations import RANKS_DIM, Declared, Dim, Space, TensorWord, declared_dims, ranks

if TYPE_CHECKING:
    from tilelink.language.tile_functions import TileFunction


@dataclass(frozen=True)
class Launch:
    """A role as a program launches it: arguments by parameter."""

    function: TileFunction
    space: Space
    arguments: dict[str, Any]
    site: Site


@dataclass
class Recording:
    """What running a program's function records."""

    name: str
    buffer_names: dict[int, list[str]]
    dims: frozenset[str]
    tensors: list[TensorWord] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)

    def buffer(
        self, dims: tuple[Dim, ...], axis: int | None, dtype: Any, buffers: int | None = None
    ) -> TensorWord:
        site = Site.of_user()
        declared = declared_dims(dims, axis, site)
        if buffers is not None and (not isinstance(buffers, int) or buffers < 1 or dims[:1] != (ranks,)):
            raise DimensionError(
                f"buffers={buffers!r} of {dims}: a number of buffers, at least 1, in which the entries of the first "
                "dimension, tk.ranks, take turns",
                site,
            )
        for d in dims:
            if isinstance(d, str) and d not in self.dims:
                raise DimensionError(
                    f"no tensor of {self.name} has the dimension {d}; they have {', '.join(sorted(self.dims))}", site
                )
        names = self.buffer_names.get(site.line) or [f"buffer{sum(t.kind == 'buffer' for t in self.tensors)}"]
        name = names.pop(0)
        while any(t.name == name for t in self.tensors):
            name += "_"
        word = TensorWord(name, _names(declared.dims), declared.sharded, "buffer", dtype, site, buffers)
        self.tensors.append(word)
        return word

    def launch(self, function: TileFunction, space: Space, arguments: tuple[Any, ...], site: Site) -> None:
        wanted = function.parameters[1:]
        if len(arguments) != len(wanted):
            raise DimensionError(f"{function.name} takes {', '.join(wanted)}; {len(arguments)} given", site)
        if any(launch.function.name == function.name for launch in self.launches):
            raise NotUnderstoodError(
                f"{self.name} has a role {function.name}: give this one another name, {function.name}.named(...)", site
            )
        self.launches.append(Launch(function, space, dict(zip(wanted, arguments, strict=True)), site))


_recording: contextvars.ContextVar[Recording | None] = contextvars.ContextVar("recording", default=None)


def program_of(word: str) -> Recording:
    recording = _recording.get()
    if recording is None:
        raise NotUnderstoodError(f"{word} has a meaning only inside a program", Site.of_user())
    return recording


def _names(dims: tuple[Dim, ...]) -> tuple[str, ...]:
    return tuple(d if isinstance(d, str) else RANKS_DIM for d in dims)


def _buffer_names(function: Callable[..., Any]) -> dict[int, list[str]]:
    """Names that the program's source gives its buffers, by the line on which they are made."""
    names: dict[int, list[str]] = {}
    lines, first_line = inspect.getsourcelines(function)
    for name, value in assigned(ast.parse(textwrap.dedent("".join(lines)))):
        if isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] in ("local", "sharded"):
            names.setdefault(value.lineno + first_line - 1, []).append(name)
    return names


def record(function: Callable[..., None], absent: frozenset[str]) -> Recording:
    """Runs a program's function and records it; parameters in `absent` are None."""
    site = Site(inspect.getsourcefile(function) or "", function.__code__.co_firstlineno, f"def {function.__name__}")
    arguments: dict[str, TensorWord | None] = {}
    for p in inspect.signature(function, eval_str=True).parameters.values():
        if not isinstance(p.annotation, Declared):
            raise DimensionError(f"{p.name} of {function.__name__} needs tk.Local(...) or tk.Sharded(...)", site)
        if p.name in absent:
            arguments[p.name] = None
        else:
            declared = p.annotation
            arguments[p.name] = TensorWord(p.name, _names(declared.dims), declared.sharded, "input")
    given = [a for a in arguments.values() if a is not None]
    dims = frozenset(d for a in given for d in a.dims)
    recording = Recording(function.__name__, _buffer_names(function), dims, list(given))
    token = _recording.set(recording)
    try:
        function(**arguments)
    except (TypeError, AttributeError, NameError) as e:
        raise _located(e, function) from e
    finally:
        _recording.reset(token)
    if not recording.launches:
        raise NotUnderstoodError(f"{function.__name__} launches no tile function", site)
    for launch in recording.launches:
        for parameter in launch.function.written_parameters():
            word = launch.arguments.get(parameter)
            if isinstance(word, TensorWord) and word.kind == "input":
                word.kind = "output"
    return recording


def _located(e: Exception, function: Callable[..., Any]) -> TileLinkError:
    """An ordinary Python error of a program's body, with its line."""
    trace, site = e.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code is function.__code__:
            file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
            site = Site(file, line, linecache.getline(file, line).strip())
        trace = trace.tb_next
    kind = UndefinedNameError if isinstance(e, NameError) else NotUnderstoodError
    return kind(f"{function.__name__}: {e}", site)


def assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The single names that assignments give values to, with the values."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs: Iterable[tuple[ast.expr, ast.expr]] = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=False)
                yield from ((t.id, v) for t, v in pairs if isinstance(t, ast.Name))
