"""Words of programs (`tiles`, `local`, `sharded`), which are called when one is recorded, and those that stand inside
tile functions only, whose source is read: calling them is an error."""

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
    "claim", "copy", "each", "local", "node", "notify", "place", "rank", "rank_at", "release", "sharded", "steps",
    "tiles", "wait", "world",
]  # fmt: skip


def tiles(*of: TensorWord | AxisWord | RouteWord | ExpertsWord, **axes: RanksWord) -> Space:
    """The tile space of a tensor (all its dimensions) or of single dimensions; `reader=tk.ranks` adds a rank axis.

    The tiles of a sharded tensor (or of the dimension it is cut along) are executed once, at their home; those of a
    local one by every rank. With several that are cut along different dimensions, the first of these says which rank is
    the home. The tiles of a route have three axes: `home`, the rank of the expert, `source`, the rank that the rows
    come from, and `expert`, which of the home's; those of `route.experts` have home and expert.
    """
    site = Site.of_user()
    spanned: list[AxisWord] = []
    routed: RouteWord | ExpertsWord | None = None
    for o in of:
        if isinstance(o, RouteWord | ExpertsWord):
            if routed is not None:
                raise DimensionError(f"a tile space goes through the rows of one route, not of {routed} and {o}", site)
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
            f"a tile space of {routed} goes along no other dimension that is cut over the ranks, as {sharded} are", site
        )
    if routed is not None and axes:
        raise DimensionError(f"the tiles of {routed} have their own axes; {', '.join(axes)} can't be one too", site)
    return Space(tuple(dims), next(iter(sharded), None), axes, routed)


def local(*dims: Dim, dtype: Any = None, buffers: int | None = None) -> TensorWord:
    """A buffer of which every rank has its own. `dtype`: a dtype, or a tensor to be like; by default like the
    program's first tensor. `buffers`: the entries of the first dimension, which is tk.ranks, take turns in so many
    buffers: entry e lies where entry e - buffers was, and whoever stores it has to `claim` it."""
    return program_of("local").buffer(dims, None, dtype, buffers)


def sharded(*dims: Dim, axis: int = 0, dtype: Any = None) -> TensorWord:
    """A buffer cut along dimension `axis` over the ranks."""
    return program_of("sharded").buffer(dims, axis, dtype)


def each(*lists: Any) -> Iterator[Any]:
    """The members of lists, side by side: parameters that are declared `tk.Each(...)`. What is launched or made for one
    of several members has its number in its name; in a tile function, the loop is written out."""
    return program_of("each").each(lists, Site.of_user())


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


def steps(along: Any, *, stop: Any = None, by: int | None = None) -> Any:
    """Ranges along a dimension or range, each as long as the schedule's step: the last entry of the role's tile.

    `stop`: where they end, if not at the end of `along`. `by`: the length of a range, a power of two, in place of the
    schedule's step, which this loop then does not use; `tile=` needs none if every loop of the role says by=. A
    schedule can't tune such a loop, and fitting to small sizes does not shorten its steps."""
    only_in_tile_functions("steps()")


def copy(source: Any, target: Any) -> Any:
    """Copies a view to a view of the same shape, memory to memory; returns the target."""
    only_in_tile_functions("copy()")


def wait(*views: Any) -> Any:
    """Returns the views, guarded, once every tile of this run that notifies a region of them has done so."""
    only_in_tile_functions("wait()")


def claim(view: Any) -> Any:
    """Returns the view of an entry, to be stored to, once every tile of this run that releases a region of the entry
    that was in its buffer before has done so."""
    only_in_tile_functions("claim()")


def release(view: Any) -> Any:
    """Says that this tile has read a guarded view of an entry, so that its buffer may be claimed for a later one."""
    only_in_tile_functions("release()")


def notify(*views: Any) -> Any:
    """Makes this tile's stores to the views visible where the views live."""
    only_in_tile_functions("notify()")
