"""Tensors, their dimensions, routes and tile spaces, as a program declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from tilelink.errors import DimensionError, NotUnderstoodError, Site, public, similar


def only_in_tile_functions(word: str) -> NoReturn:
    raise NotUnderstoodError(f"tk.{word} has a meaning only inside a tile function", Site.of_user())


@dataclass(frozen=True)
class RanksWord:
    """`tk.ranks`: all ranks of the world. `tk.nodes`: their nodes. `tk.locals`: the places on a node.

    Each is a rank axis of a tile space, and a loop in a tile function, `for r in tk.ranks():`. `tk.ranks` can also be a
    dimension of a buffer and an argument of `.at()`."""

    name: str

    def __call__(self) -> NoReturn:
        only_in_tile_functions(f"{self.name}()")

    def __repr__(self) -> str:
        return f"tk.{self.name}"


RANKS_DIM = "ranks"
"""The name of a dimension with one entry for each rank."""
ranks = RanksWord(RANKS_DIM)
nodes = RanksWord("nodes")
locals = RanksWord("locals")
Dim = str | RanksWord


@dataclass(frozen=True)
class Declared:
    """The declaration of a parameter. `dims`: its dimensions by name. `sharded`: the dimension that is cut over the
    ranks, or None. `contiguous`: the dimension along which its elements are contiguous. `route`: the route whose counts
    it holds. `dtype`: the dtype if a call gives none."""

    dims: tuple[Dim, ...]
    sharded: int | None
    contiguous: int = -1
    route: RouteWord | None = None
    dtype: Any = None

    def __repr__(self) -> str:
        """As the user writes it: "tk.Sharded('M', 'N', axis=1)"."""
        if self.route is not None:
            return repr(self.route)
        said = [repr(d) for d in self.dims] + ([f"axis={self.sharded}"] if self.sharded else [])
        said += [f"contiguous={self.dims[self.contiguous]!r}"] if self.contiguous >= 0 else []
        said += [f"dtype={self.dtype}"] if self.dtype is not None else []
        return f"tk.{'Local' if self.sharded is None else 'Sharded'}({', '.join(said)})"


@public
def Local(*dims: Dim, contiguous: Dim | None = None, dtype: Any = None) -> Declared:
    """A separate tensor on every rank: `tk.Local("K", "N")`. Raises DimensionError.

    `contiguous`: the dimension along which elements usually are contiguous, by default the last. A weight of
    `torch.nn.Linear`, given as `weight.T`, is `tk.Local("K", "N", contiguous="K")`. Calls take any strides. TileLink
    uses `contiguous` to allocate results, and to compile without a tensor (`tilelink show`, the gates). `dtype`: a
    dtype for the same uses, by default the first tensor's. Calls take any dtype, except that a tensor
    declared `int32` must be int32 or int64, because its elements select rows."""
    return replace(declared_dims(dims, None, Site.of_user(), contiguous), dtype=dtype)


@public
def Sharded(*dims: Dim, axis: int = 0, contiguous: Dim | None = None, dtype: Any = None) -> Declared:
    """A tensor cut along dimension `axis` over the ranks; each element has one home. `contiguous` and `dtype` as in
    `Local`. Raises DimensionError."""
    return replace(declared_dims(dims, axis, Site.of_user(), contiguous), dtype=dtype)


def Route(sent: str, rows: str, experts: str) -> Declared:
    """Rows that are routed to experts; only the device knows their numbers. A call gives the counts: an integer tensor
    [experts of all ranks, world], the same on every rank, with the number of rows for each expert from each source.

    `sent`: the dimension of the rows at their source. `rows`: the dimension of the rows at the home of their expert.
    `experts`: the dimension with an entry for each expert of a rank. A program gets it as a `RouteWord`."""
    return Declared((f"{experts}.all", ranks), None, route=RouteWord(sent, rows, experts))


def declared_dims(dims: tuple[Dim, ...], sharded: int | None, site: Site, contiguous: Dim | None = None) -> Declared:
    """A declaration with these dimensions, which are checked. Raises DimensionError."""
    if not dims:
        raise DimensionError('a tensor has at least one dimension: name it, such as "M"', site)
    for k, d in enumerate(dims):
        if d != ranks and not (isinstance(d, str) and d.isidentifier() and d != RANKS_DIM):
            raise DimensionError(f"dimension {k}, {d!r}, must be the name of a dimension, or tk.ranks", site)
        if d in dims[:k]:
            raise DimensionError(
                f"two of the dimensions {dims} are {d!r}: give each dimension its own name, also if their sizes are "
                "equal",
                site,
            )
    if sharded is not None and (not 0 <= sharded < len(dims) or isinstance(dims[sharded], RanksWord)):
        raise DimensionError(f"axis {sharded} is not a named dimension of {dims}", site)
    if contiguous is not None and contiguous not in dims:
        raise DimensionError(f"contiguous={contiguous!r} is not one of the dimensions {dims}", site)
    return Declared(dims, sharded, -1 if contiguous is None else dims.index(contiguous))


@dataclass(frozen=True)
class AxisWord:
    """A dimension of a tensor, as in `full.cols` or `full.K`. `sharded`: whether the tensor is cut along it."""

    dim: str
    sharded: bool = False

    def __str__(self) -> str:
        return self.dim

    @property
    def size(self) -> NoReturn:
        """Raises NotUnderstoodError: only tile functions know sizes."""
        raise NotUnderstoodError(f"{self}.size: a program knows no sizes; tile functions do", Site.of_user())


@dataclass(eq=False)
class TensorWord:
    """A tensor in a program. `kind`: "input", "output" or "buffer". `site`: the line that makes a buffer. `buffers`:
    how many entries of the first dimension have memory at a time (None: all). `called`: the declared names of its
    dimensions, if it is a member of a list. `contiguous`: the position of the contiguous dimension."""

    name: str
    dims: tuple[str, ...]
    sharded: int | None
    kind: str
    dtype: Any = None
    site: Site | None = None
    buffers: int | None = None
    called: tuple[str, ...] = ()
    contiguous: int = -1

    def __getitem__(self, index: Any) -> NoReturn:
        """Raises NotUnderstoodError: only tile functions make views."""
        raise NotUnderstoodError(f"{self.name}[...]: a program makes no views; tile functions do", Site.of_user())

    def dim(self, name: str) -> str | None:
        """The dimension of this name, or None."""
        if name in self.dims:
            return name
        return self.dims[self.called.index(name)] if name in self.called else None

    def axis(self, dim: str) -> AxisWord:
        """The dimension of this name."""
        return AxisWord(dim, self.sharded is not None and dim == self.dims[self.sharded])

    @property
    def rows(self) -> AxisWord:
        """The first dimension with a name."""
        return axes_of(self)[0]

    @property
    def cols(self) -> AxisWord:
        """The last dimension with a name."""
        return axes_of(self)[-1]

    def __getattr__(self, name: str) -> AxisWord:
        if name != RANKS_DIM and "dims" in self.__dict__ and (dim := self.dim(name)) is not None:
            return self.axis(dim)
        dims = ", ".join(self.__dict__.get("dims", ()))
        meant = similar(name, self.__dict__.get("dims", ()))
        raise AttributeError(f"{self.__dict__.get('name')} has no {name}; its dimensions are {dims}{meant}")

    def __repr__(self) -> str:
        return self.name


def axes_of(word: TensorWord) -> list[AxisWord]:
    """The named dimensions of a tensor."""
    return [word.axis(d) for d in word.dims if d != RANKS_DIM]


@dataclass(frozen=True)
class RouteWord:
    """A parameter that is declared `tk.Route`: the two dimensions of the routed rows.

    `sent`: the dimension at the source, the rank that the rows come from, where they are ordered by expert. `rows`: the
    dimension at the home, the rank of their expert, where they are ordered by expert and then by source. `per_rank`:
    the dimension of the experts of a rank. `counts`: the parameter.

    A tile of `tk.tiles(route, x.cols)` has rows of one expert from one source. A tile of `tk.tiles(route.experts, ...)`
    has rows of one expert from any source."""

    sent: str
    rows: str
    per_rank: str
    counts: str = ""

    @property
    def everywhere(self) -> str:
        """The dimension of the experts of all ranks."""
        return f"{self.per_rank}.all"

    @property
    def sides(self) -> tuple[str, str]:
        """The dimensions of its rows, at the source and at the home."""
        return self.sent, self.rows

    @property
    def experts(self) -> ExpertsWord:
        """The experts of the route, for tile spaces."""
        return ExpertsWord(self)

    @property
    def route(self) -> RouteWord:
        return self

    def check(self, cut: frozenset[str], local: frozenset[str], site: Site) -> None:
        """Raises DimensionError for dimensions that do not fit. `cut`: the dimensions along which the program's tensors
        are cut over the ranks. `local`: their other dimensions."""
        for dim in (d for d in self.sides if d in local):
            raise DimensionError(
                f"{self}: tensors with dimension {dim} must be cut along it over the ranks, tk.Sharded({dim!r}, ...)",
                site,
            )
        if self.per_rank in cut or len({self.sent, self.rows, self.per_rank}) < 3:
            raise DimensionError(
                f"{self}: {self.per_rank} must be a separate dimension, of local tensors with an entry for each expert "
                f"of a rank, tk.Local({self.per_rank!r}, ...)",
                site,
            )

    def __repr__(self) -> str:
        return f"tk.Route({self.sent!r}, {self.rows!r}, {self.per_rank!r})"


@dataclass(frozen=True)
class ExpertsWord:
    """The experts of a route."""

    route: RouteWord

    def __repr__(self) -> str:
        return f"{self.route}.experts"


@dataclass(frozen=True)
class Space:
    """A tile space. `dims`: the dimensions that are cut into tiles. `axes`: rank axes by name. `sharded`: the first
    dimension along which one of its tensors is cut over the ranks; the rank of a tile's part of it is the tile's home.
    `routed`: the route whose rows, or whose experts, it covers."""

    dims: tuple[str, ...]
    sharded: str | None
    axes: Mapping[str, RanksWord]
    routed: RouteWord | ExpertsWord | None = None

    @property
    def route(self) -> RouteWord | None:
        """The route whose rows it goes through."""
        return None if self.routed is None else self.routed.route
