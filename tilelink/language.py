"""The words of the language: what a tile function and a program may say.

A program is an ordinary function that is run once to record its buffers and roles. A tile function is never run:
its source is read (`frontend/elaboration/`), so the words used inside it are names, and calling them is an error.
"""

from __future__ import annotations

import ast
import contextvars
import inspect
import linecache
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tilelink.errors import DimensionError, NotUnderstoodError, Site, TileLinkError, UndefinedNameError

# ---- what a program declares -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RanksWord:
    """`tk.ranks`: all ranks of the world; `tk.nodes`: the nodes they are on; `tk.locals`: the places of a node. Each is
    a rank axis of a tile space, and a loop in a tile function, `for r in tk.ranks():`. `tk.ranks` is a dimension of a
    buffer and an argument of `.at()`, too."""

    name: str

    def __call__(self) -> NoReturn:
        only_in_tile_functions(f"{self.name}()")

    def __repr__(self) -> str:
        return f"tk.{self.name}"


RANKS_DIM = "ranks"
"""What dimensions with an entry a rank are called."""
ranks = RanksWord(RANKS_DIM)
nodes = RanksWord("nodes")
locals = RanksWord("locals")
Dim = str | RanksWord


@dataclass(frozen=True)
class Declared:
    """The declaration of a parameter: its dimensions by name, and which of them is cut over the ranks, if one is."""

    dims: tuple[Dim, ...]
    sharded: int | None


def Local(*dims: Dim) -> Declared:
    """A tensor of which every rank has its own: `tk.Local("K", "N")`."""
    return _declared(dims, None, Site.of_user())


def Sharded(*dims: Dim, axis: int = 0) -> Declared:
    """A tensor cut along dimension `axis` over the ranks, so that each element has one home."""
    return _declared(dims, axis, Site.of_user())


def _declared(dims: tuple[Dim, ...], sharded: int | None, site: Site) -> Declared:
    """Dimensions, checked. Raises DimensionError."""
    for k, d in enumerate(dims):
        if d != ranks and not (isinstance(d, str) and d.isidentifier() and d != RANKS_DIM):
            raise DimensionError(f"dimension {k}, {d!r}, has to be the name of a dimension, or tk.ranks", site)
        if d in dims[:k]:
            raise DimensionError(f"the dimensions {dims}: each has a name of its own", site)
    if sharded is not None and (not 0 <= sharded < len(dims) or isinstance(dims[sharded], RanksWord)):
        raise DimensionError(f"axis {sharded} is not a named dimension of {dims}", site)
    return Declared(dims, sharded)


@dataclass(frozen=True)
class AxisWord:
    """A dimension of a tensor, as in `full.cols` or `full.K`. `sharded`: the tensor is cut along it."""

    dim: str
    sharded: bool = False


@dataclass(eq=False)
class TensorWord:
    """A tensor as a program handles it. `kind` is "input", "output" or "buffer"; `site`: where a buffer is made."""

    name: str
    dims: tuple[str, ...]
    sharded: int | None
    kind: str
    dtype: Any = None
    site: Site | None = None

    def axis(self, dim: str) -> AxisWord:
        """The dimension of this name."""
        return AxisWord(dim, self.sharded is not None and dim == self.dims[self.sharded])

    @property
    def rows(self) -> AxisWord:
        """The first dimension with a name."""
        return self.axis(next(d for d in self.dims if d != RANKS_DIM))

    @property
    def cols(self) -> AxisWord:
        """The last dimension with a name."""
        return self.axis([d for d in self.dims if d != RANKS_DIM][-1])

    def __getattr__(self, name: str) -> AxisWord:
        if name != RANKS_DIM and name in self.__dict__.get("dims", ()):
            return self.axis(name)
        dims = ", ".join(self.__dict__.get("dims", ()))
        raise AttributeError(f"{self.__dict__.get('name')} has no {name}; its dimensions are {dims}")

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Space:
    """A tile space: dimensions that are cut into tiles, and rank axes with their names. `sharded`: the first dimension
    along which one of its tensors is cut over the ranks; in whose part of it a tile lies, that rank is its home."""

    dims: tuple[str, ...]
    sharded: str | None
    axes: Mapping[str, RanksWord]


def tiles(*of: TensorWord | AxisWord, **axes: RanksWord) -> Space:
    """The tile space of a tensor (all its dimensions) or of single dimensions; `reader=tk.ranks` adds a rank axis.

    The tiles of a sharded tensor (or of the dimension it is cut along) are executed once, at their home; those of a
    local one by every rank. With several that are cut along different dimensions, the first of these says which rank is
    the home.
    """
    site = Site.of_user()
    dims: list[str] = []
    sharded: list[str] = []
    for o in of:
        if isinstance(o, TensorWord):
            dims += [d for d in o.dims if d != RANKS_DIM]
            sharded += [] if o.sharded is None else [o.dims[o.sharded]]
        elif isinstance(o, AxisWord):
            dims.append(o.dim)
            sharded += [o.dim] if o.sharded else []
        else:
            raise DimensionError(f"a tile space is made of tensors and their dimensions, not of {o!r}", site)
    if not dims or len(set(dims)) != len(dims):
        raise DimensionError(f"a tile space needs dimensions, each once; these are {tuple(dims)}", site)
    for name, axis in axes.items():
        if not isinstance(axis, RanksWord):
            raise DimensionError(f"{name}={axis!r}: a rank axis is tk.ranks, tk.nodes or tk.locals", site)
    return Space(tuple(dims), next(iter(sharded), None), axes)


def local(*dims: Dim, dtype: Any = None) -> TensorWord:
    """A buffer of which every rank has its own. `dtype`: a dtype, or a tensor to be like; by default like the
    program's first tensor."""
    return _program("local").buffer(dims, None, dtype)


def sharded(*dims: Dim, axis: int = 0, dtype: Any = None) -> TensorWord:
    """A buffer cut along dimension `axis` over the ranks."""
    return _program("sharded").buffer(dims, axis, dtype)


# ---- tile functions ----------------------------------------------------------------------------------------------


class TileFunction:
    """A function of one tile; `function[space](tensors...)` in a program makes it a role."""

    def __init__(self, function: Callable[..., None], name: str | None = None) -> None:
        self.function, self.name = function, name or function.__name__
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
        if not self.parameters or node.args.vararg or node.args.kwarg or node.args.kwonlyargs:
            raise NotUnderstoodError(f"{self.name}: the parameters are the tile, then tensors", self.site(node))

    def site(self, node: ast.AST) -> Site:
        return Site(self.file, getattr(node, "lineno", self.first_line), ast.unparse(node).split("\n")[0])

    def names(self) -> dict[str, Any]:
        """What the function sees around it."""
        seen = inspect.getclosurevars(self.function)
        return {**self.function.__globals__, **seen.nonlocals}

    def named(self, name: str) -> TileFunction:
        """The same function under another role name, for programs that use it twice."""
        return TileFunction(self.function, name)

    def __getitem__(self, space: Space) -> Callable[..., None]:
        if not isinstance(space, Space):
            raise DimensionError(f"{self.name}[{space!r}]: a role runs over tk.tiles(...)", Site.of_user())

        def launch(*arguments: Any) -> None:
            _program(self.name).launch(self, space, arguments, Site.of_user())

        return launch

    def __call__(self, *arguments: Any) -> NoReturn:
        raise NotUnderstoodError(
            f"{self.name} is a tile function: a program launches it over a tile space, {self.name}[tk.tiles(...)](...)",
            Site.of_user(),
        )

    def written_parameters(self) -> frozenset[str]:
        """Parameters that the function stores or copies to (the elaboration checks that no other is)."""
        roots: dict[str, str] = {}

        def root(node: ast.AST) -> str | None:
            while isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
                node = node.func if isinstance(node, ast.Call) else node.value
            return roots.get(node.id, node.id) if isinstance(node, ast.Name) else None

        written: set[str | None] = set()
        for name, value in _assigned(self.node):
            if (r := root(value)) in self.parameters and isinstance(r, str):
                roots[name] = r
        for node in ast.walk(self.node):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "store":
                    written.add(root(node.func.value))
                elif node.func.attr == "copy":
                    written |= {root(a) for a in node.args[1:]}
                    written |= {root(k.value) for k in node.keywords if k.arg == "target"}
        return frozenset(p for p in self.parameters if p in written)


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The single names that assignments give values to, with the values."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs: Iterable[tuple[ast.expr, ast.expr]] = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=False)
                yield from ((t.id, v) for t, v in pairs if isinstance(t, ast.Name))


def tile(function: Callable[..., None]) -> TileFunction:
    """Declares a function of one tile. Its first parameter is the tile, the others are tensors of the program."""
    return TileFunction(function)


# ---- words inside tile functions ---------------------------------------------------------------------------------


def only_in_tile_functions(word: str) -> NoReturn:
    raise NotUnderstoodError(f"tk.{word} has a meaning only inside a tile function", Site.of_user())


def rank() -> Any:
    """The rank that executes the tile."""
    only_in_tile_functions("rank()")


def world() -> Any:
    """The number of ranks."""
    only_in_tile_functions("world()")


def node(rank: Any = None) -> Any:
    """The node that a rank is on, by default the executing one: ranks are numbered node by node."""
    only_in_tile_functions("node()")


def place(rank: Any = None) -> Any:
    """Which of the ranks of its node a rank is, by default the executing one."""
    only_in_tile_functions("place()")


def rank_at(node: Any, place: Any) -> Any:
    """The rank at a place of a node."""
    only_in_tile_functions("rank_at()")


def steps(along: Any, stop: Any = None) -> Any:
    """Ranges along a dimension or range, as long as the last entry of the role's tile in the schedule."""
    only_in_tile_functions("steps()")


def copy(source: Any, target: Any) -> Any:
    """Copies a view to a view of the same shape, memory to memory; returns the target."""
    only_in_tile_functions("copy()")


def wait(*views: Any) -> Any:
    """Returns the views, guarded, once every tile of this run that notifies a region of them has done so."""
    only_in_tile_functions("wait()")


def notify(*views: Any) -> Any:
    """Makes this tile's stores to the views visible where the views live."""
    only_in_tile_functions("notify()")


# ---- recording a program -----------------------------------------------------------------------------------------


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

    def buffer(self, dims: tuple[Dim, ...], axis: int | None, dtype: Any) -> TensorWord:
        site = Site.of_user()
        declared = _declared(dims, axis, site)
        for d in dims:
            if isinstance(d, str) and d not in self.dims:
                raise DimensionError(
                    f"no tensor of {self.name} has the dimension {d}; they have {', '.join(sorted(self.dims))}", site
                )
        names = self.buffer_names.get(site.line) or [f"buffer{sum(t.kind == 'buffer' for t in self.tensors)}"]
        name = names.pop(0)
        while any(t.name == name for t in self.tensors):
            name += "_"
        word = TensorWord(name, _names(declared.dims), declared.sharded, "buffer", dtype, site)
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


def _program(word: str) -> Recording:
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
    for name, value in _assigned(ast.parse(textwrap.dedent("".join(lines)))):
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
