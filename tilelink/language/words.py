"""The words of programs (`tiles`, `local`, `sharded`, `each`) and of tile functions.

TileLink runs a program once to record it. It reads the source of tile functions; calling one of their words is an
error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilelink.errors import DimensionError, Site
from tilelink.language.declarations import (
    AxisWord,
    Dim,
    ExpertsWord,
    RanksWord,
    RouteWord,
    Space,
    TensorWord,
    axes_of,
    only_in_tile_functions,
)
from tilelink.language.recording import program_of

__all__ = [
    "claim", "copy", "each", "local", "node", "notify", "part", "place", "rank", "rank_at", "release", "sharded",
    "steps", "tiles", "wait", "world",
]  # fmt: skip


def tiles(*of: TensorWord | AxisWord | RouteWord | ExpertsWord, **axes: RanksWord) -> Space:
    """The tile space of a tensor (all its dimensions) or of single dimensions; `reader=tk.ranks` adds a rank axis.

    The home executes each tile of a sharded tensor (or of the dimension it is cut along) once. Every rank executes the
    tiles of a local tensor. If several tensors are cut along different dimensions, the first of these dimensions
    determines the home.

    The tiles of a route have three axes: `home`, the rank of the expert; `source`, the rank of the rows; `expert`, the
    number of the expert on its home. The tiles of `route.experts` have `home` and `expert`. Raises DimensionError.
    """
    site = Site.of_user()
    spanned: list[AxisWord] = []
    routed: RouteWord | ExpertsWord | None = None
    for o in of:
        if isinstance(o, RouteWord | ExpertsWord):
            if routed is not None:
                raise DimensionError(f"a tile space has the rows of one route, not of {routed} and {o}", site)
            routed = o
            spanned.append(AxisWord(o.route.rows, sharded=True))
        elif isinstance(o, TensorWord | AxisWord):
            spanned += axes_of(o) if isinstance(o, TensorWord) else [o]
        else:
            raise DimensionError(f"a tile space is made of tensors, their dimensions and routes, not of {o!r}", site)
    dims, sharded = [a.dim for a in spanned], [a.dim for a in spanned if a.sharded]
    if not dims or len(set(dims)) != len(dims):
        raise DimensionError(f"a tile space needs dimensions, each once; these are {tuple(dims)}", site)
    for name, axis in axes.items():
        if not isinstance(axis, RanksWord):
            raise DimensionError(f"{name}={axis!r}: a rank axis is tk.ranks, tk.nodes or tk.locals", site)
    if routed is not None and len(sharded) > 1:
        raise DimensionError(
            f"a tile space of {routed} can't have another dimension that is cut over the ranks, as {sharded} are", site
        )
    if routed is not None and axes:
        raise DimensionError(f"the tiles of {routed} have their own axes; {', '.join(axes)} can't be another", site)
    return Space(tuple(dims), next(iter(sharded), None), axes, routed)


def local(*dims: Dim, dtype: Any = None, buffers: int | None = None) -> TensorWord:
    """A separate buffer on every rank. `dtype`: a dtype, or a tensor whose dtype it takes; the default is the dtype of
    the program's first tensor. `buffers`: the number of buffers that the entries of the first dimension, tk.ranks,
    share. Entry e then lies where entry e - buffers was, and the tile that stores it must `claim` it first."""
    return program_of("local").buffer(dims, None, dtype, buffers)


def sharded(*dims: Dim, axis: int = 0, dtype: Any = None) -> TensorWord:
    """A buffer cut along dimension `axis` over the ranks."""
    return program_of("sharded").buffer(dims, axis, dtype)


def each(*lists: Any) -> Iterator[Any]:
    """The members of lists, member by member. Lists are parameters that are declared `tk.Each(...)`. A role or buffer
    made for one of several members has the member's number in its name. In a tile function, the loop is unrolled."""
    return program_of("each").each(lists, Site.of_user())


def rank() -> Any:
    """The rank that executes the tile."""
    only_in_tile_functions("rank()")


def world() -> Any:
    """The number of ranks."""
    only_in_tile_functions("world()")


def node(rank: Any = None) -> Any:
    """The node of a rank, by default of the executing rank. Ranks are numbered node by node."""
    only_in_tile_functions("node()")


def place(rank: Any = None) -> Any:
    """The number of a rank on its node, by default of the executing rank."""
    only_in_tile_functions("place()")


def rank_at(node: Any, place: Any) -> Any:
    """The rank at a place of a node."""
    only_in_tile_functions("rank_at()")


def steps(along: Any, *, stop: Any = None, by: int | None = None) -> Any:
    """Ranges along a dimension or range, each as long as the schedule's step (the last entry of the role's `tile`).

    `stop`: the end of the ranges, by default the end of `along`. `by`: the length of a range, a power of two; it
    replaces the schedule's step in this loop. If every loop of a role has `by`, `tile` has no step. A schedule can't
    tune such a loop, and fitting to small sizes does not shorten its steps."""
    only_in_tile_functions("steps()")


def part(rank: Any) -> Any:
    """As an entry of an index: the part of a rank, along a dimension that is cut over the ranks. For a local tensor
    `full`, `full[tk.part(r), :]` is this rank's memory for the rows of rank r."""
    only_in_tile_functions("part()")


def copy(source: Any, target: Any, *, where: Any = None) -> Any:
    """Copies a view to a view of the same shape, memory to memory; returns the target.

    `where`: a view of integers, one for each row, such as `wanted[t.rows, t.reader]`. A row whose integer is -1 is
    neither read nor written. `load` and `store` of a view take it, too; what is not loaded is zeros."""
    only_in_tile_functions("copy()")


def wait(*views: Any) -> Any:
    """Waits until every tile of this run that notifies a region of a view has done so. Returns the views, guarded.

    Read what tiles of this run write through a guarded view only. Raises UnguardedReadError for any other read."""
    only_in_tile_functions("wait()")


def claim(view: Any) -> Any:
    """The view of an entry, ready for stores: waits until every tile of this run that releases a region of the previous
    entry in the same buffer has released it."""
    only_in_tile_functions("claim()")


def release(view: Any) -> Any:
    """Releases a guarded view of an entry that this tile has read. A later entry may then claim its buffer."""
    only_in_tile_functions("release()")


def notify(*views: Any) -> Any:
    """Makes this tile's stores to the views visible to the tiles that wait for the views on their home rank.

    `views`: what `store` and `tk.copy` return. Call it after the stores, once for each region."""
    only_in_tile_functions("notify()")
