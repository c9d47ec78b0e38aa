"""Tensors, their dimensions, routes and tile spaces, as a program declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tilelink.errors import DimensionError, NotUnderstoodError, Site, similar


def only_in_tile_functions(word: str) -> NoReturn:
    raise NotUnderstoodError(f"tk.{word} has a meaning only inside a tile function", Site.of_user())


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
    """The declaration of a parameter: its dimensions by name, which of them is cut over the ranks, if one is, and along
    which its elements are contiguous. `route`: the route whose counts it is."""

    dims: tuple[Dim, ...]
    sharded: int | None
    contiguous: int = -1
    route: RouteWord | None = None


def Local(*dims: Dim, contiguous: Dim | None = None) -> Declared:
    """A tensor of which every rank has its own: `tk.Local("K", "N")`.

    `contiguous`: the dimension along which neighbours usually lie side by side in memory, by default the last: a weight
    of `torch.nn.Linear`, given as `weight.T`, is `tk.Local("K", "N", contiguous="K")`. Calls take any strides; this is
    how results are allocated, and what is compiled where no tensor is at hand (`tilelink show`, the gates). Raises
    DimensionError."""
    return declared_dims(dims, None, Site.of_user(), contiguous)


def Sharded(*dims: Dim, axis: int = 0, contiguous: Dim | None = None) -> Declared:
    """A tensor cut along dimension `axis` over the ranks, so that each element has one home. `contiguous` as in
    `Local`. Raises DimensionError."""
    return declared_dims(dims, axis, Site.of_user(), contiguous)


def Route(sent: str, rows: str, experts: str) -> Declared:
    """Rows that go to experts, as only the device knows: what a call gives for it are the counts, an integer tensor
    [experts of all ranks, world], the same on every rank: rows of each expert from each source.

    `sent`: the dimension in which the rows lie at their source; `rows`: that in which they lie at the home of their
    expert; `experts`: that with an entry for each expert of a rank. In the program it is a `RouteWord`."""
    return Declared((f"{experts}.all", ranks), None, route=RouteWord(sent, rows, experts))


def declared_dims(dims: tuple[Dim, ...], sharded: int | None, site: Site, contiguous: Dim | None = None) -> Declared:
    """Dimensions, checked. Raises DimensionError."""
    for k, d in enumerate(dims):
        if d != ranks and not (isinstance(d, str) and d.isidentifier() and d != RANKS_DIM):
            raise DimensionError(f"dimension {k}, {d!r}, has to be the name of a dimension, or tk.ranks", site)
        if d in dims[:k]:
            raise DimensionError(f"the dimensions {dims}: each has a name of its own", site)
    if sharded is not None and (not 0 <= sharded < len(dims) or isinstance(dims[sharded], RanksWord)):
        raise DimensionError(f"axis {sharded} is not a named dimension of {dims}", site)
    if contiguous is not None and contiguous not in dims:
        raise DimensionError(f"contiguous={contiguous!r} is none of the dimensions {dims}", site)
    return Declared(dims, sharded, -1 if contiguous is None else dims.index(contiguous))


@dataclass(frozen=True)
class AxisWord:
    """A dimension of a tensor, as in `full.cols` or `full.K`. `sharded`: the tensor is cut along it."""

    dim: str
    sharded: bool = False

    def __str__(self) -> str:
        return self.dim


@dataclass(eq=False)
class TensorWord:
    """A tensor as a program handles it. `kind` is "input", "output" or "buffer"; `site`: where a buffer is made;
    `buffers`: how many of its entries of the first dimension have memory at a time (None: all); `called`: how its
    dimensions are declared, where these are a member's own; `contiguous`: the position of the dimension that is."""

    name: str
    dims: tuple[str, ...]
    sharded: int | None
    kind: str
    dtype: Any = None
    site: Site | None = None
    buffers: int | None = None
    called: tuple[str, ...] = ()
    contiguous: int = -1

    def dim(self, name: str) -> str | None:
        """The dimension of this name, None where there is none."""
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
    """The dimensions of a tensor that have a name."""
    return [word.axis(d) for d in word.dims if d != RANKS_DIM]


@dataclass(frozen=True)
class RouteWord:
    """A parameter that is declared `tk.Route`: a name for each side of the same rows. `sent`: the dimension in which
    they lie at the rank that they come from, their source, ordered by expert; `rows`: that in which they lie at the
    rank of their expert, their home, ordered by expert and then by source; `per_rank`: the dimension of the experts of
    a rank; `counts`: the parameter.

    A tile space over a route, `tk.tiles(route, x.cols)`, has tiles of rows that have one expert and one source; one
    over `route.experts` has tiles of the rows of one expert, whatever their source."""

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
        """The dimensions of its rows."""
        return self.sent, self.rows

    @property
    def experts(self) -> ExpertsWord:
        """The experts of the route, as a tile space goes through them."""
        return ExpertsWord(self)

    @property
    def route(self) -> RouteWord:
        return self

    def check(self, cut: frozenset[str], local: frozenset[str], site: Site) -> None:
        """Raises DimensionError. `cut`, `local`: the dimensions of a program's tensors that are cut over the ranks, and
        those that are not."""
        for dim in (d for d in self.sides if d in local):
            raise DimensionError(
                f"{self}: {dim} is no dimension along which a tensor is cut over the ranks, tk.Sharded({dim!r}, ...)",
                site,
            )
        if self.per_rank in cut or len({self.sent, self.rows, self.per_rank}) < 3:
            raise DimensionError(
                f"{self}: {self.per_rank} has to be a dimension of its own, of local tensors with an entry for each "
                f"expert of a rank, tk.Local({self.per_rank!r}, ...)",
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
    """A tile space: dimensions that are cut into tiles, and rank axes with their names. `sharded`: the first dimension
    along which one of its tensors is cut over the ranks; in whose part of it a tile lies, that rank is its home.
    `routed`: the route whose rows it goes through, or the experts of it."""

    dims: tuple[str, ...]
    sharded: str | None
    axes: Mapping[str, RanksWord]
    routed: RouteWord | ExpertsWord | None = None

    @property
    def route(self) -> RouteWord | None:
        """The route whose rows it goes through."""
        return None if self.routed is None else self.routed.route
