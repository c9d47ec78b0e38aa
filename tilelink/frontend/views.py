"""Tensors, ranges along their dimensions, and views, which are regions of a tensor that tiles read and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import sympy

from tilelink.frontend.arithmetic import to_text
from tilelink.frontend.expressions import RANK, Boolean, Expr, Min, first_of, smaller, symbol
from tilelink.frontend.routes import Segment

ALL_RANKS = "all ranks"


@dataclass(frozen=True)
class Tensor:
    """A tensor of the program. `dims`: names of dimensions, or "ranks" for a dimension with one entry for each rank.

    `sharded` is the position of the dimension that is cut over the ranks (each element has one home), or None if every
    rank has its own tensor. `kind` is "input", "output", "buffer" or "token". A token has only signals: they release
    regions of a tensor with `buffers`. `buffers`: the number of buffers that the entries of the first dimension share;
    entry e takes buffer e % buffers. `contiguous`: the dimension along which elements lie side by side, if nothing else
    is known.
    """

    name: str
    dims: tuple[str, ...]
    sharded: int | None
    kind: str
    dtype: str
    buffers: int | None = None
    contiguous: int = -1

    def __post_init__(self) -> None:
        object.__setattr__(self, "contiguous", self.contiguous % len(self.dims))

    @property
    def token(self) -> Tensor:
        """The token that releases the entries of this tensor."""
        return Tensor(token_name(self.name), self.dims, None, "token", self.dtype)

    def __str__(self) -> str:
        dims = ", ".join(f"{d}/world" if k == self.sharded else d for k, d in enumerate(self.dims))
        if self.kind == "token":
            return f"token {self.name}[{dims}]"
        turns = f" in {self.buffers} buffers" if self.buffers else ""
        turned = f", {self.dims[self.contiguous]} contiguous" if self.contiguous != len(self.dims) - 1 else ""
        return f"{self.kind} {self.name}: {self.dtype}[{dims}]{turns}{turned}"


def token_name(tensor: str) -> str:
    """The name of the token of a tensor with buffers."""
    return f"{tensor}.free"


@dataclass(frozen=True)
class Range:
    """[start, stop) along a named dimension, in global coordinates. Printed as D[start:+extent], cut off at the end.

    `extent`: how many elements a block in registers has along it (a power of two), None for the whole dimension or
    part.
    `part`: the rank whose part holds it, None if it may lie in several, or the dimension is not cut.
    `offset`: where it starts, counted from the beginning of its part (of the dimension, if that is not cut).
    `inside`: the extent of the block that it is a step of, None for a step or tile of the whole or of a part.
    `bounded`: it may end earlier than all that, at a bound of the user's.
    `segment`: the segment of its rows along a dimension of a route, None if unknown. `offset` then counts from the
    beginning of the segment.
    `by`: the integers that pick its elements from [start, stop), as many as `extent`, counted from `start`; -1 picks
    none. Only [start, stop) is known before the run.
    """

    dim: str
    start: Expr
    stop: Expr
    extent: int | None
    part: Expr | None = None
    offset: Expr = sympy.S.Zero
    whole: bool = False
    inside: int | None = None
    bounded: bool = False
    segment: Segment | None = None
    by: View | None = None

    @property
    def walked(self) -> Range:
        """The range that a tile goes along: if integers pick elements, the range of the integers."""
        return self if self.by is None else self.by.ranges[0]

    @property
    def of_rank(self) -> bool:
        """Whether it is all that a rank has of a dimension. It may then be empty."""
        return self.extent is None and self.part is not None and self.start == first_of(symbol(self.dim), self.part)

    @property
    def across_parts(self) -> bool:
        """Whether it may begin in one rank's part and end in another's, if the dimension is cut."""
        return self.part is None and not self.whole and self.by is None

    @property
    def limit(self) -> Expr:
        """Where its elements would end if the block itself had no end."""
        bounds = self.stop.args if isinstance(self.stop, Min) else (self.stop,)
        return smaller(*[b for b in bounds if b != self.start + (self.extent or 0)])

    @property
    def symbols(self) -> set[sympy.Basic]:
        """The symbols in its bounds."""
        own: set[sympy.Basic] = self.start.free_symbols | self.stop.free_symbols
        return own if self.by is None else own | self.by.symbols

    def same_rows(self, other: Range) -> bool:
        """Whether it holds the same rows on the other side of a route."""
        known = self.segment is not None and self.segment.source is not None and self.segment == other.segment
        return known and (self.offset, self.extent) == (other.offset, other.extent)

    def __str__(self) -> str:
        if self.whole or self.by is not None:
            return self.dim if self.by is None else str(self.by)
        return f"{self.dim}[{to_text(self.start)}:{f'+{self.extent}' if self.extent else to_text(self.stop)}]"


def whole_range(dim: str) -> Range:
    """The whole of a dimension."""
    return Range(dim, sympy.S.Zero, symbol(dim), None, whole=True)


def on_side(ranges: tuple[Range, ...], sent: Range | None, dims: Sequence[str]) -> tuple[Range, ...]:
    """The ranges of a tile for a tensor with the dimensions `dims`. If the tensor holds the rows of a route at their
    source, the rows are `sent`."""
    if sent is None or sent.dim not in dims:
        return ranges
    return tuple(sent if r.segment == sent.segment else r for r in ranges)


@dataclass(frozen=True)
class View:
    """A region of a tensor. `index`: for each dimension a range, or an integer if the dimension is dropped.

    `home` is the rank whose memory it is in, ALL_RANKS for every rank's memory, or None if it lies on several. `guard`
    names the wait that guards it.
    """

    tensor: str
    index: tuple[Range | Expr, ...]
    home: Expr | str | None
    guard: str | None = None

    @property
    def places(self) -> tuple[View, ...]:
        """The views that it may stand for in a kernel (`tilelink.backend.choices`)."""
        return (self,)

    @property
    def ranges(self) -> tuple[Range, ...]:
        return tuple(i for i in self.index if isinstance(i, Range))

    @property
    def of_rank(self) -> bool:
        """Whether it is all that a rank has along a dimension. It may then be empty."""
        return any(r.of_rank for r in self.ranges)

    @property
    def picking(self) -> str:
        """The tensor whose rows integers pick, with the views of these integers, as kernels write it."""
        return f"{self.tensor}[{', '.join(map(str, self.picked_by))}]"

    @property
    def picked_by(self) -> tuple[View, ...]:
        """The integers that pick its rows, if any do."""
        return tuple(r.by for r in self.ranges if r.by is not None)

    @property
    def remote(self) -> bool:
        """Whether it can be in another rank's memory."""
        return self.home != RANK

    @property
    def symbols(self) -> set[sympy.Basic]:
        """The symbols in its index and in its home."""
        index = (i.symbols if isinstance(i, Range) else i.free_symbols for i in self.index)
        return set(self.home.free_symbols if isinstance(self.home, Expr) else ()).union(*index)

    def moved_to(self, name: Expr, place: Expr) -> View:
        """The view with the symbol `name` replaced by `place` in the starts of its ranges."""
        moved = (replace(i, start=i.start.xreplace({name: place})) if isinstance(i, Range) else i for i in self.index)
        return replace(self, index=tuple(moved))

    @property
    def home_text(self) -> str:
        """Its home as text for a person."""
        return to_text(self.home) if isinstance(self.home, Expr) else str(self.home)

    @property
    def shape(self) -> tuple[int | None, ...]:
        return tuple(r.extent for r in self.ranges)

    def __str__(self) -> str:
        index = ", ".join(str(i) if isinstance(i, Range) else to_text(i) for i in self.index)
        home = "" if self.home in (RANK, None) else f".at({self.home_text})"
        return f"{self.tensor}[{index}]{home}"


@dataclass(frozen=True, kw_only=True)
class Chosen(View):
    """A view in one of two places: `first` if a condition holds, else `other`, whose tensor, home and guard it has.
    Only lowered programs have such views (`tilelink.backend.choices`)."""

    condition: Boolean
    first: View

    @property
    def other(self) -> View:
        return View(*(getattr(self, f.name) for f in fields(View)))

    @property
    def places(self) -> tuple[View, ...]:
        return (self.first, self.other)

    def __str__(self) -> str:
        return f"({self.first} if {to_text(self.condition)} else {super().__str__()})"
