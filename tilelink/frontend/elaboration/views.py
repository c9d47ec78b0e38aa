"""Views: the meaning of an index of a tensor, whose memory it is, and whether it may be read or written."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from tilelink.errors import (
    DimensionError,
    DtypeError,
    HomeError,
    NotUnderstoodError,
    RankError,
    TileSizeError,
    UnguardedReadError,
    ViewError,
    counted,
)
from tilelink.frontend import ir
from tilelink.frontend.arithmetic import to_text
from tilelink.frontend.elaboration.source import Source
from tilelink.frontend.expressions import RANK, Expr, first_of, smaller, symbol
from tilelink.frontend.routes import end_of_rows
from tilelink.frontend.values import Block, Part, Static, TileValue, is_floating, not_converted
from tilelink.frontend.views import on_side
from tilelink.language import AxisWord, TensorWord, ranks

INDEX_DTYPES = ("int32", "int64")
"""The dtypes of integers that pick rows."""


class Views(Source):
    """Makes views from indices, and says what may be done with these views."""

    def view(self, node: ast.expr, tensor: TensorWord, entries: list[ast.expr]) -> ir.View:
        index: list[ir.Range | Expr] = []
        for k, v in enumerate(self.entries(entries, tensor)):
            if isinstance(v, ir.View):
                v = self.picked(node, v, tensor.name, index, self.picked_from(node, tensor, k, v))
            elif isinstance(v, Part):
                v = self.said_part(node, tensor, k, v)
            index.append(
                self.whole(tensor, k, node) if v is None else ir.whole_range(v.dim) if isinstance(v, AxisWord) else v
            )
        if len(index) > len(tensor.dims):
            self.fail(DimensionError, node, f"{tensor.name} has the dimensions {', '.join(tensor.dims)}; "
                      f"{len(index)} indices given: {', '.join(self.text(i) for i in index)}")
        for k, (dim, i) in enumerate(zip(tensor.dims, index, strict=False)):
            if isinstance(i, ir.Range) and i.dim != dim:
                self.fail(DimensionError, node, f"dimension {k} of {tensor.name} is {dim}; it is given {i}, a range "
                          f"along {i.dim}; write a range along {dim} there, or `:`")
            if isinstance(i, Expr) and k == tensor.sharded:
                self.fail(DimensionError, node, f"dimension {k} of {tensor.name}, {dim}, is spread over the ranks: it "
                          f"takes a range, which has a home, not the number {to_text(i)}; write t.{dim}, a range of "
                          f"tk.steps, or tk.part(rank)")
            if isinstance(i, Expr):
                self.one_entry(node, tensor, dim, i)
        index += [self.whole(tensor, k, node) for k in range(len(index), len(tensor.dims))]
        home: Expr | str | None = RANK
        if tensor.sharded is not None:
            cut = index[tensor.sharded]
            home = cut.part if isinstance(cut, ir.Range) else None
        return ir.View(tensor.name, tuple(index), home)

    def one_entry(self, node: ast.expr, tensor: TensorWord, dim: str, i: Expr) -> None:
        """Raises TileSizeError if an index takes the first entry of a longer tile along a dimension. The tiles would
        leave out the other entries, and a schedule would change the result."""
        if any((r.dim, r.start) == (dim, i) and r.extent != 1 for r in self.tile.ranges):
            self.fail(TileSizeError, node, f"{ast.unparse(node)} takes only the first entry that a tile has "
                      f"along {dim}: give {self.function.name} tiles of 1 along {dim} in the schedule, or index by "
                      f"t.{dim}")

    def entries(self, nodes: list[ast.expr], tensor: TensorWord) -> list[Any]:
        """The entries of an index of a tensor: ranges (a tile has several), dimensions, integers, parts, views of
        integers that pick rows, and None for `:`."""
        made: list[Any] = []
        for node in nodes:
            v = None if isinstance(node, ast.Slice) else self.value(node)
            if isinstance(node, ast.Slice) and (node.lower or node.upper or node.step):
                self.fail(ViewError, node, f"{ast.unparse(node)}: views are made of tiles and ranges of the schedule, "
                          "so that what is touched is known; write t.rows, a range of tk.steps, or :")
            if not isinstance(v, TileValue | ir.Range | AxisWord | ir.View | Part | Expr | None):
                self.fail(DimensionError, node, f"{self.text(v)} is no index of a view: use the tile, a range, a view "
                          "of integers or :")
            made += on_side(v.ranges, v.sent, tensor.dims) if isinstance(v, TileValue) else [v]
        return made

    def picked(
        self, node: ast.expr, by: ir.View, of: str, before: list[ir.Range | Expr], whole: ir.Range | Expr
    ) -> ir.Range:
        """The rows of a range that the integers of a view pick. `of`: the name of the tensor or view whose rows they
        are. `before`: the entries before them in the index."""
        integers = self.row_of_integers(node, by, f"picks rows of {of}", "rows are picked by")
        if not isinstance(whole, ir.Range) or any(isinstance(i, ir.Range) for i in before):
            self.fail(DimensionError, node, f"{by} is no index of dimension {len(before)} of {of}: integers pick along "
                      "the first dimension of a view")
        if whole.by is not None:
            self.fail(ViewError, node, f"{whole} picks rows of {of} already: rows are picked once")
        return replace(whole, extent=integers.ranges[0].extent, whole=False, by=integers)

    def row_of_integers(self, node: ast.expr, view: ir.View, does: str, rule: str) -> ir.View:
        """A view of integers, one for each row of a tile, as a block. `does`: their purpose, for errors."""
        dtype = self.dtypes[view.tensor]
        if dtype not in INDEX_DTYPES:
            self.fail(DtypeError, node, f"{view} {does}, and is {dtype}: {rule} {' or '.join(INDEX_DTYPES)}; declare "
                      f"{view.tensor} with dtype=tl.int32")
        if len(view.ranges) != 1 or view.picked_by:
            what = "itself picked by integers" if view.picked_by else f"of {len(view.ranges)} dimensions"
            self.fail(DimensionError, node, f"{view} {does}, and is {what}: {rule} one row of integers, such as "
                      "order[t.rows] or place[t.rows, k]")
        self.readable(node, view)
        return self.as_block(node, view)

    def as_block(self, node: ast.expr, view: ir.View) -> ir.View:
        """The view of a block that is loaded or stored: a block along every range."""
        return replace(view, index=tuple(self.blocked(node, i) if isinstance(i, ir.Range) else i for i in view.index))

    def moved(self, node: ast.expr, where: ast.expr | None, view: ir.View) -> ir.View | None:
        """The integers that say which rows of a view are moved (rows with -1 are not); None if all are."""
        value = Static(None) if where is None else self.value(where)
        if isinstance(value, Static) and value.value is None:
            return None
        if not isinstance(value, ir.View):
            self.fail(ViewError, node, f"where={self.text(value)}: it takes a view of integers, one for each row, such "
                      "as wanted[t.rows, t.reader]")
        integers = self.row_of_integers(node, value, f"says which rows of {view} are moved", "where= takes")
        along, rows = integers.ranges[0], next((r.walked for r in view.ranges), None)
        if rows is None or not (along.same_rows(rows) or _covers(along) == _covers(rows)):
            self.fail(DimensionError, node, f"{value} says which rows of {view} are moved, and goes along {along}, not "
                      f"along {rows}: where= takes an integer for each row")
        return integers

    def picked_from(self, node: ast.expr, tensor: TensorWord, k: int, by: ir.View) -> ir.Range | Expr:
        """The range that integers pick from if no view says it. For a tensor that is cut over the ranks, it is the part
        of the rank that has the integers."""
        self.one_home(node, by, "load of")
        cut = k == tensor.sharded and isinstance(by.home, Expr)
        return self.part(tensor.dims[k], by.home) if cut else self.whole(tensor, k, node)

    def said_part(self, node: ast.expr, tensor: TensorWord, k: int, part: Part) -> ir.Range:
        """The range for `tk.part(rank)` as entry k of an index."""
        whole = self.whole(tensor, k, node)
        if tensor.dims[k] not in self.cut or not isinstance(whole, ir.Range):
            self.fail(DimensionError, node, f"{part} of {tensor.name}: its dimension {k}, {tensor.dims[k]}, is not cut "
                      f"over the ranks in this program, so no rank has a part of it; cut are "
                      f"{', '.join(self.cut) or 'none'}")
        return self.part(whole.dim, part.rank)

    def part(self, dim: str, rank: Expr) -> ir.Range:
        """The part of a dimension that a rank has; for the rows of a route, only the rows that exist."""
        first, end = (first_of(symbol(dim), r) for r in (rank, rank + 1))
        route = next((r for r in self.routes if dim in r.sides), None)
        end = end if route is None else smaller(end, end_of_rows(route, dim, rank))
        return ir.Range(dim, first, end, None, rank)

    def whole(self, tensor: TensorWord, k: int, node: ast.expr) -> ir.Range | Expr:
        if k >= len(tensor.dims):
            self.fail(DimensionError, node, f"{tensor.name} has the dimensions {', '.join(tensor.dims)}, and no more")
        dim = tensor.dims[k]
        if dim == ir.RANKS_DIM:
            self.fail(DimensionError, node, f"dimension {k} of {tensor.name} has an entry for each rank; a view takes "
                      f"one of them, not `:`, as in for s in tk.ranks(): ... {tensor.name}[s, ...]")
        return ir.whole_range(dim)

    def narrow(self, node: ast.expr, view: ir.View, entries: list[ast.expr]) -> ir.View:
        """A view of a view: ranges take the place of wider ones. Unrolling checks that they lie inside."""
        tensor, index = self.tensors[view.tensor], list(view.index)
        places = [k for k, i in enumerate(index) if isinstance(i, ir.Range)]
        given = self.entries(entries, tensor)
        if len(given) > len(places):
            self.fail(DimensionError, node, f"{view} has {counted(len(places), 'dimension')}; {len(given)} indices "
                      "given")
        for k, v in zip(places, given, strict=False):
            old = index[k]
            v = self.said_part(node, tensor, k, v) if isinstance(v, Part) else v
            if isinstance(v, ir.View):
                v = self.picked(node, v, str(view), index[:k], old)
            elif isinstance(old, ir.Range) and old.by is not None and v is not None:
                self.fail(ViewError, node, f"{view} has the rows that {old} picks: they are taken whole, {view.tensor}"
                          f"[:, ...]")
            if v is None:
                continue
            if isinstance(v, Expr) and k != tensor.sharded:
                self.one_entry(node, tensor, tensor.dims[k], v)
                index[k] = v
                continue
            if not isinstance(v, ir.Range | AxisWord) or not isinstance(old, ir.Range) or v.dim != old.dim:
                self.fail(DimensionError, node, f"{view} has {old} there; it is given {self.text(v)}")
            if isinstance(v, ir.Range):
                index[k] = v if v.part is not None or old.part is None else replace(v, part=old.part)
        return replace(view, index=tuple(index))

    def at(self, node: ast.Call, view: ir.View) -> ir.View:
        tensor = self.tensors[view.tensor]
        where = self.value(*self.arguments(node, "rank", needed=1))
        cut = None if tensor.sharded is None else view.index[tensor.sharded]
        if cut is not None and not (isinstance(cut, ir.Range) and cut.whole and isinstance(where, Expr)):
            self.fail(HomeError, node, f"{view} is sharded, so it has its home already: .at() is for local tensors, "
                      f"and for the part that a rank has of one that is sharded, {view.tensor}[:, ...].at(rank)")
        if isinstance(where, Static) and where.value == ranks:
            return replace(view, home=ir.ALL_RANKS, guard=None)
        if not isinstance(where, Expr):
            self.fail(RankError, node, f".at() takes a rank or tk.ranks, not {self.text(where)}")
        if where.is_Integer and where < 0:
            self.fail(RankError, node, f".at({where}): there is no rank {where}; ranks go from 0 to tk.world() - 1")
        index = tuple(self.part(i.dim, where) if i is cut and isinstance(i, ir.Range) else i for i in view.index)
        guard = view.guard if where == view.home else None  # what was waited for elsewhere says nothing here
        return replace(view, index=index, home=where, guard=guard)

    def one_home(self, node: ast.AST, view: ir.View, what: str) -> None:
        if view.home is None:
            tensor = self.tensors[view.tensor]
            dim, cut = tensor.dims[tensor.sharded or 0], view.index[tensor.sharded or 0]
            across = isinstance(cut, ir.Range) and cut.across_parts
            self.fail(HomeError, node, f"{what} {view}: it has more than one home, because {dim} is spread over the "
                      f"ranks and {cut if across else f'{dim}[0:{dim}]'} crosses the parts; " + (
                      f"give the role an order of ranks in place of order={self.order}" if across else
                      "use a range of the tile, which lies in one part"))
        if view.home == ir.ALL_RANKS and what == "load of":
            self.fail(HomeError, node, f"load of {view}: name the rank, with .at(rank)")

    def writable(self, node: ast.AST, view: ir.View, what: str) -> None:
        self.one_home(node, view, what)
        if view.picked_by:
            self.fail(ViewError, node, f"{what} {view}: rows that integers pick are only read, since two may be one; "
                      f"write {view.tensor} in tiles, and let who reads pick")
        if view.tensor not in self.written:  # recording finds written tensors by the source alone
            self.fail(NotUnderstoodError, node, f"{what} {view}: write it so that the source shows which tensor it "
                      f"is, such as there = {view.tensor}[...]; there.store(...)")

    def stored_dtype(self, node: ast.AST, place: ir.View, value: Any) -> None:
        """Raises DtypeError if fractions are stored to integers: Triton would cut them off silently. Raises it, too, if
        Triton does not convert a block to the dtype of its tensor."""
        name, into = place.tensor, self.dtypes[place.tensor]
        if isinstance(value, Block) and (problem := not_converted(value.dtype, into)):
            self.fail(DtypeError, node, f"store to {name}: {problem}")
        if is_floating(into):
            return
        if isinstance(value, Block) and value.dtype is not None and is_floating(value.dtype):
            self.fail(DtypeError, node, f"a {value.dtype} block is stored to {name}, which is {into}: say that it is "
                      f"to be cut off, .to({name}.dtype), or give {name} a dtype with fractions")
        if isinstance(value, Static) and isinstance(value.value, float) and not value.value.is_integer():
            self.fail(DtypeError, node, f"{value.value} is stored to {name}, which is {into}")

    def readable(self, node: ast.AST, view: ir.View) -> None:
        self.one_home(node, view, "load of")
        if view.guard is None and view.tensor in self.written:
            self.fail(UnguardedReadError, node, f"{view} is written by tiles of this program "
                      f"({self.written[view.tensor]}) and read without a wait: read what "
                      f"tk.wait({view.tensor}[...]) returns")


def _covers(r: ir.Range) -> tuple[Any, ...]:
    """The values that are equal for two ranges with the same elements, as blocks of one length."""
    return r.dim, r.start, r.stop, r.extent
