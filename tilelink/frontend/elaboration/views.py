"""Views: what an index of a tensor means, whose memory it is, and whether it may be read or written."""

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
    UnguardedReadError,
    ViewError,
)
from tilelink.frontend import ir
from tilelink.frontend.arithmetic import to_text
from tilelink.frontend.elaboration.source import Source
from tilelink.frontend.expressions import RANK, Expr
from tilelink.frontend.values import Block, Static, TileValue, is_floating
from tilelink.frontend.views import on_side
from tilelink.language import AxisWord, TensorWord, ranks


class Views(Source):
    """Makes views from indices, and says what may be done with them."""

    def view(self, node: ast.expr, tensor: TensorWord, entries: list[ast.expr]) -> ir.View:
        index: list[ir.Range | Expr] = [
            self.whole(tensor, k, node) if v is None else ir.whole_range(v.dim) if isinstance(v, AxisWord) else v
            for k, v in enumerate(self.entries(entries, tensor))
        ]
        if len(index) > len(tensor.dims):
            self.fail(DimensionError, node, f"{tensor.name} has the dimensions {', '.join(tensor.dims)}; "
                      f"{len(index)} indices given: {', '.join(self.text(i) for i in index)}")
        for k, (dim, i) in enumerate(zip(tensor.dims, index, strict=False)):
            if isinstance(i, ir.Range) and i.dim != dim:
                self.fail(DimensionError, node, f"dimension {k} of {tensor.name} is {dim}; it is given {i}, a range "
                          f"along {i.dim}")
            if isinstance(i, Expr) and k == tensor.sharded:
                self.fail(DimensionError, node, f"dimension {k} of {tensor.name}, {dim}, is spread over the ranks: it "
                          f"takes a range, which has a home, not the number {to_text(i)}")
        index += [self.whole(tensor, k, node) for k in range(len(index), len(tensor.dims))]
        home: Expr | str | None = RANK
        if tensor.sharded is not None:
            cut = index[tensor.sharded]
            home = cut.part if isinstance(cut, ir.Range) else None
        return ir.View(tensor.name, tuple(index), home)

    def entries(self, nodes: list[ast.expr], tensor: TensorWord) -> list[Any]:
        """The entries of an index of a tensor: ranges (a tile has several), dimensions, integers, and None for `:`."""
        made: list[Any] = []
        for node in nodes:
            v = None if isinstance(node, ast.Slice) else self.value(node)
            if isinstance(node, ast.Slice) and (node.lower or node.upper or node.step):
                self.fail(ViewError, node, f"{ast.unparse(node)}: views are made of tiles and ranges of the schedule, "
                          "so that what is touched is known; write t.rows, a range of tk.steps, or :")
            if not isinstance(v, TileValue | ir.Range | AxisWord | Expr | None):
                self.fail(DimensionError, node, f"{self.text(v)} is no index of a view: use the tile, a range or :")
            made += on_side(v.ranges, v.sent, tensor.dims) if isinstance(v, TileValue) else [v]
        return made

    def whole(self, tensor: TensorWord, k: int, node: ast.expr) -> ir.Range | Expr:
        if k >= len(tensor.dims):
            self.fail(DimensionError, node, f"{tensor.name} has the dimensions {', '.join(tensor.dims)}, and no more")
        dim = tensor.dims[k]
        if dim == ir.RANKS_DIM:
            self.fail(DimensionError, node, f"dimension {k} of {tensor.name} has an entry a rank: say which")
        return ir.whole_range(dim)

    def narrow(self, node: ast.expr, view: ir.View, entries: list[ast.expr]) -> ir.View:
        """A view of a view: ranges take the place of wider ones. The unrolling checks that they lie within."""
        tensor, index = self.tensors[view.tensor], list(view.index)
        places = [k for k, i in enumerate(index) if isinstance(i, ir.Range)]
        given = self.entries(entries, tensor)
        if len(given) > len(places):
            self.fail(DimensionError, node, f"{view} has {len(places)} dimensions; {len(given)} indices given")
        for k, v in zip(places, given, strict=False):
            old = index[k]
            if v is None:
                continue
            if isinstance(v, Expr) and k != tensor.sharded:
                index[k] = v
                continue
            if not isinstance(v, ir.Range | AxisWord) or not isinstance(old, ir.Range) or v.dim != old.dim:
                self.fail(DimensionError, node, f"{view} has {old} there; it is given {self.text(v)}")
            if isinstance(v, ir.Range):
                index[k] = v if v.part is not None or old.part is None else replace(v, part=old.part)
        return replace(view, index=tuple(index))

    def at(self, node: ast.Call, view: ir.View) -> ir.View:
        tensor = self.tensors[view.tensor]
        if tensor.sharded is not None:
            self.fail(HomeError, node, f"{view} is sharded, so it has its home already: .at() is for local tensors")
        where = self.value(*self.arguments(node, "rank", needed=1))
        if isinstance(where, Static) and where.value == ranks:
            return replace(view, home=ir.ALL_RANKS, guard=None)
        if not isinstance(where, Expr):
            self.fail(RankError, node, f".at() takes a rank or tk.ranks, not {self.text(where)}")
        if where.is_Integer and where < 0:
            self.fail(RankError, node, f".at({where}): there is no rank {where}; ranks go from 0 to tk.world() - 1")
        return replace(view, home=where, guard=None)  # what was waited for lies elsewhere

    def one_home(self, node: ast.AST, view: ir.View, what: str) -> None:
        if view.home is None:
            tensor = self.tensors[view.tensor]
            dim = tensor.dims[tensor.sharded or 0]
            self.fail(HomeError, node, f"{what} {view}: it has more than one home, because {dim} is spread over the "
                      f"ranks and {dim}[0:{dim}] crosses the parts; use a range of the tile, which lies in one part")
        if view.home == ir.ALL_RANKS and what == "load of":
            self.fail(HomeError, node, f"load of {view}: say of which rank, with .at(rank)")

    def writable(self, node: ast.AST, view: ir.View, what: str) -> None:
        self.one_home(node, view, what)
        if view.tensor not in self.written:  # what programs record goes by the source alone
            self.fail(NotUnderstoodError, node, f"{what} {view}: write it so that the source shows which tensor it "
                      f"is, such as there = {view.tensor}[...]; there.store(...)")

    def whole_numbers(self, node: ast.AST, place: ir.View, value: Any) -> None:
        """What is stored to integers has to be integers: Triton would cut off fractions without a word."""
        name, into = place.tensor, self.dtypes[place.tensor]
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

