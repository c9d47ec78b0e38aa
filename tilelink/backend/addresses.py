"""Addresses of views: base pointer, offset of the block's corner, offsets inside the block, mask."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Set
from dataclasses import dataclass, replace

import sympy

from tilelink.backend.facts import fills
from tilelink.backend.kernel import ONE, ZERO, Scope, Source, call, grouped
from tilelink.backend.parameters import HEAPS, Names
from tilelink.backend.parameters import RANK as OWN
from tilelink.frontend.arithmetic import to_triton
from tilelink.frontend.expressions import (
    RANK,
    WORLD,
    Expr,
    begin_of,
    first_of,
    floor_div,
    modulo,
    of_dim,
    part_of,
    shown,
    symbol,
)
from tilelink.frontend.ir import RANKS_DIM, Range, Tensor, View
from tilelink.frontend.values import TRITON_DTYPES
from tilelink.frontend.views import Chosen
from tilelink.frontend.walk import longest_part


@dataclass(frozen=True)
class Stride:
    """A stride in elements, as one expression (`whole`) and as a product of factors (`factors`)."""

    whole: Source
    factors: Source


@dataclass(frozen=True)
class Address:
    """The address of a block. `mask` is None if all elements of the block always exist."""

    pointer: Source
    mask: Source | None


class Addresses:
    """Makes the names and addresses of one function. `hoisted`: values that are made before the loop over tiles.
    `bounds`: the bounds of the part that a tile lies in, made among the tile's coordinates. `of_tile`: values that stay
    the same in a tile, made after the coordinates. `homes`: the homes of the role's walk. `one_layout`: a mask is made
    once a tile, for all blocks along its dimension."""

    def __init__(self, names: Names, homes: Mapping[str, Expr] | None = None, *, one_layout: bool = True) -> None:
        self.names, self.program, self.facts, self.homes = names, names.program, names.facts, homes or {}
        self.one_layout = one_layout
        self.scope = Scope(names.module)
        self.hoisted: dict[str, Source] = {}
        self.bounds: dict[str, Source] = {}
        self.of_tile: dict[str, Source] = {}
        self.heap = {t.name for t in self.program.on_heap}

    def local(self, key: str) -> str:
        """The name in this function of a symbol of the tile program."""
        return self.scope.name(key, shown(key))

    def made(self, like: str, *meaning: Hashable) -> str:
        """The name of a value that the lowering makes in this function: one for each `meaning`, or for `like`."""
        return self.scope.name((meaning or like,), like)

    def hoist(self, like: str, value: Source) -> Source:
        """The name of a value that is made before the loop over tiles."""
        made = self.made(like, "before", like, value)
        self.hoisted[made] = value
        return made

    def per_tile(self, like: str, value: Source) -> Source:
        """The name of a value that is made once a tile."""
        made = self.made(like, "tile", value)
        self.of_tile[made] = value
        return made

    def text(self, e: Expr) -> Source:
        """An integer in the kernel's arithmetic."""
        return to_triton(self.resolve(e), self.local)

    def resolve(self, e: Expr) -> Expr:
        """The expression with beginnings of parts as products, where parts have one length, or as names."""
        equal = self.facts.equal

        def begin(dim: Expr, part: Expr) -> Expr:
            if str(dim) in equal:
                return part * longest_part(str(dim))
            home = self.homes.get(str(dim))
            if home is not None and part in (home, home + 1):
                bound = of_dim(str(dim), "first" if part == home else "end")
                self.bounds[self.local(bound.name)] = to_triton(first_of(dim, part), self.local)
                return bound
            return first_of(dim, part)

        def part(dim: Expr, at: Expr, count: Expr) -> Expr:
            return floor_div(at, longest_part(str(dim))) if str(dim) in equal else part_of(dim, at, count)

        e = sympy.sympify(e)
        e = e.replace(part_of, part) if e.has(part_of) else e
        if isinstance(e, sympy.logic.boolalg.BooleanFunction):
            return e.func(*map(self.resolve, e.args))
        return sympy.expand_mul(e.replace(first_of, begin)) if e.has(first_of) else e

    def peer(self, home: Source, at: Source, dtype: str) -> Source:
        """A pointer to a place in a rank's heap."""
        return call("peer", HEAPS, home, at, f"tl.{dtype}")

    def base(self, view: View, home: Source | None = None, *, published: bool = True) -> Source:
        """The base pointer of a view's tensor at `home`; None means the home of the view."""
        tensor = self.program.tensor(view.tensor)
        if not self.on_heap(tensor, published):
            return self.names.of("tensor", tensor.name)
        where = self.text(view.home) if home is None else home
        pointer = self.peer(where, self.names.of("at", tensor.name), TRITON_DTYPES[tensor.dtype])
        return self.hoist(f"{tensor.name}_here", pointer) if where == OWN else pointer

    def on_heap(self, tensor: Tensor, published: bool) -> bool:
        """Whether a tensor lies on the heap. `published`: for an input that peers read, ask for its copy there."""
        return tensor.name in self.heap and (tensor.kind != "input" or published)

    def block(
        self,
        view: View,
        home: Source | None = None,
        *,
        published: bool = True,
        token: Source | None = None,
        hoisted: bool = True,
        moved: Source | None = None,
    ) -> Address:
        """The address of the block that a view describes. All ranges of the view have extents. `hoisted`: offsets
        inside the block are made before the loop over tiles; else they are made where the block is, and take no
        registers elsewhere. `moved`: a vector of truths that says which of its rows are moved; None for all."""
        tensor, places = self.program.tensor(view.tensor), self.corner(view, token)
        if isinstance(view, Chosen):
            name, keep = f"{view.first.tensor}_or_{view.tensor}", self.per_tile if hoisted else _as_it_is
            base, strides = self._chosen(view, name, keep)
            index: tuple[Range | Expr, ...] = view.ranges
        else:
            name, keep = tensor.name, self.hoist
            if tensor.name in self.heap and not self.on_heap(tensor, published):
                name += "_own"
            base, strides = self.base(view, home, published=published), self.strides(tensor, published)
            index = view.index
        ranges = view.ranges
        corner: list[Source] = []
        inside: list[Source] = []
        masks: list[Source] = [] if moved is None else [f"{moved}{along(0, len(ranges))}"]
        for i, at, stride in zip(index, places, strides, strict=True):
            if not isinstance(i, Range):
                corner += [self.offset(at, stride)] if at != ZERO else []
                continue
            spread, elements = along(ranges.index(i), len(ranges)), arange(i.extent)
            if i.by is not None:
                rows = self.picked(view)
                corner += [self.offset(at, stride)] if at != ZERO else []
                corner.append(_times(f"tl.cast({rows}, tl.int64){spread}", stride))
                masks.append(f"({rows} >= 0){spread}")
                continue
            if hoisted:
                corner += [self.offset(at, stride)] if at != ZERO else []
                inside.append(_times(elements + spread, stride))
            else:
                at = elements if at == ZERO else f"{at} + {elements}"
                corner.append(_times(f"tl.cast({at}, tl.int64){spread}", stride))
            if not fills(i, self.facts):
                masks.append(self.mask(i, spread, hoisted))
        pointer = [base, *corner]
        if inside:
            shape = "_by_".join(str(r.extent) for r in ranges)
            pointer.append(keep(f"{name}_{shape}", " + ".join(inside)))
        return Address(" + ".join(pointer), " & ".join(masks) if masks else None)

    def _chosen(self, view: Chosen, name: str, keep: Callable[[str, Source], Source]) -> tuple[Source, list[Stride]]:
        """The chosen one of the origins of two places, and of their strides. `keep`: names a value."""
        condition, ((first, strides), (other, others)) = self.text(view.condition), map(self._origin, view.places)
        place = call("tl.where", condition, first, other)
        if self.facts.aligned is not None:  # as numbers: see `Facts`
            numbers = (f"({pointer}).to(tl.int64)" for pointer in (first, other))
            dtype = TRITON_DTYPES[self.program.tensor(view.tensor).dtype]
            place = f"{call('tl.where', condition, *numbers)}.to(tl.pointer_type(tl.{dtype}))"
            if all(v.tensor in self.facts.aligned for v in view.places):
                place = call("tl.multiple_of", place, 16)
        place, chosen = keep(name, place), list[Stride]()
        for i, a, b in zip(view.ranges, strides, others, strict=True):
            if a != b:
                one = keep(f"{name}_stride_{i.dim}", call("tl.where", condition, a.whole, b.whole))
                b = Stride(one, one)
            chosen.append(b)
        return place, chosen

    def _origin(self, view: View) -> tuple[Source, list[Stride]]:
        """A pointer to where the ranges of a view of the own rank would begin if they began at 0, and their strides."""
        strides = self.strides(self.program.tensor(view.tensor))
        index = [replace(i, start=sympy.S.Zero) if isinstance(i, Range) else i for i in view.index]
        places = zip(self.corner(replace(view, index=tuple(index)), None), strides, strict=True)
        pointer = [self.base(view), *(self.offset(at, stride) for at, stride in places if at != ZERO)]
        return " + ".join(pointer), [s for s, i in zip(strides, index, strict=True) if isinstance(i, Range)]

    def picked(self, view: View) -> str:
        """The variable with the numbers of the rows of a view that integers pick."""
        (by,) = view.picked_by
        return self.made(f"{view.tensor}_rows", "picked", view.tensor, by)

    def count(self, r: Range, loops: Set[Expr]) -> Source:
        """How many rows a range has; read from tables once a tile, unless a variable of `loops` decides it."""
        value, read = self.text(r.stop - r.start), r.stop.has(begin_of, first_of)
        return self.per_tile(f"{r.dim}_count", value) if read and not r.stop.free_symbols & loops else value

    def corner(self, view: View, token: Source | None) -> list[Source]:
        """Where a view begins in the memory of its home, along each dimension. The token is added to the first range,
        or to the first index if there is no range."""
        tensor = self.program.tensor(view.tensor)
        if isinstance(view, Chosen):
            starts = [self.text(i.start) for i in view.ranges]
            return [f"{starts[0]} + {token}" if token else starts[0], *starts[1:]]
        takes_token = next((k for k, i in enumerate(view.index) if isinstance(i, Range)), 0)
        corner = []
        for k, i in enumerate(view.index):
            start = i.start if isinstance(i, Range) else i
            if k == 0 and tensor.buffers:
                start = modulo(start, tensor.buffers)
            at = self.text(self.in_part(start, k, view))
            corner.append(f"{at} + {token}" if token and k == takes_token else at)
        return corner

    def end(self, view: View, r: Range) -> Source:
        """Where a range of a view ends in the memory of its home."""
        return self.text(self.in_part(r.limit, view.index.index(r), view))

    def in_part(self, at: Expr, k: int, view: View) -> Expr:
        """A place along dimension k of a view's tensor, counted from the beginning of the memory of the view's home."""
        tensor = self.program.tensor(view.tensor)
        if k != tensor.sharded:
            return at
        return at - first_of(symbol(tensor.dims[k]), view.home if isinstance(view.home, Expr) else RANK)

    def strides(self, tensor: Tensor, published: bool = True) -> list[Stride]:
        """Strides in elements: arguments for tensors of the caller, products of sizes for tensors on the heap."""
        if not self.on_heap(tensor, published):
            arguments = [self.names.of("stride", tensor.name, d) for d in tensor.dims]
            return [Stride(a, a) for a in arguments]
        return [Stride(self.text(p), " * ".join(map(self.text, p.as_ordered_factors()))) for p in heap_strides(tensor)]

    def offset(self, at: Source, stride: Stride) -> Source:
        """A corner's offset, in 64 bits: a tensor may have more than 2**31 elements; a row or a tile has fewer."""
        return at if stride.whole == ONE else f"tl.cast({at}, tl.int64) * {stride.factors}"

    def mask(self, r: Range, spread: str, hoisted: bool = True) -> Source:
        """Which elements of a block exist along one dimension."""
        holds = f"{self.text(r.start)} + {arange(r.extent)} < {self.text(r.limit)}"
        if hoisted and self.one_layout and r.start == of_dim(r.dim, "lo"):
            return self.per_tile(f"{r.dim}_inside", holds) + spread
        return f"({holds}){spread}"


def _as_it_is(_: str, value: Source) -> Source:
    return value


def arange(extent: int | None) -> Source:
    """The elements of a block along one dimension."""
    return f"tl.arange(0, {extent})"


def heap_strides(tensor: Tensor) -> list[Expr]:
    """The strides in elements of a tensor on the heap."""
    lengths = []
    for k, d in enumerate(tensor.dims):
        lengths.append(WORLD if d == RANKS_DIM else longest_part(d) if k == tensor.sharded else symbol(d))
    return [sympy.sympify(sympy.prod(lengths[k + 1 :])) for k in range(len(lengths))]


def along(k: int, n: int) -> str:
    """The index that lays a vector along dimension k of n."""
    return "" if n == 1 else "[" + ", ".join(":" if j == k else "None" for j in range(n)) + "]"


def _times(a: Source, stride: Stride) -> Source:
    return a if stride.whole == ONE else f"{a} * {grouped(stride.whole)}"
