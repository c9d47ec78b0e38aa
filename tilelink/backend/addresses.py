"""Addresses of views: base pointer, offset of the block's corner, offsets inside the block, mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sympy

from tilelink.backend.facts import Facts
from tilelink.frontend.expressions import RANK, WORLD, Expr, first_of, modulo, symbol, to_triton
from tilelink.frontend.ir import RANKS_DIM, Range, Tensor, TileProgram, View
from tilelink.frontend.triton_calls import TRITON_DTYPES
from tilelink.frontend.walk import longest_part

Hoist = Callable[[str, str], str]


@dataclass(frozen=True)
class Address:
    """The address of a block, as Triton source. `mask` is "" where the block fills its place."""

    pointer: str
    mask: str


class Addresses:
    """Makes addresses for one role. `hoist(name, source)` puts what does not change before the loop over tiles,
    `per_tile(name, source)` what does not change inside a tile after its coordinates. `homes`: of the role's walk.
    """

    def __init__(
        self, program: TileProgram, facts: Facts, hoist: Hoist, per_tile: Hoist, homes: Mapping[str, Expr]
    ) -> None:
        self.program, self.facts, self.hoist, self.per_tile, self.homes = program, facts, hoist, per_tile, homes
        self.heap = {t.name for t in program.on_heap}

    def text(self, e: Expr) -> str:
        """An integer in the kernel's arithmetic."""
        return to_triton(self.resolve(e))

    def resolve(self, e: Expr) -> Expr:
        """Beginnings of parts of one length become products; those of the role's own part have names."""
        equal = self.facts.equal

        def begin(dim: Expr, part: Expr) -> Expr:
            if str(dim) in equal:
                return part * longest_part(str(dim))
            home = self.homes.get(str(dim))
            if home is not None and part in (home, home + 1):
                name = f"{dim}_{'first' if part == home else 'end'}"
                return symbol(self.per_tile(name, to_triton(first_of(dim, part))))
            return first_of(dim, part)

        e = sympy.sympify(e)
        if isinstance(e, sympy.logic.boolalg.BooleanFunction):
            return e.func(*map(self.resolve, e.args))
        return sympy.expand_mul(e.replace(first_of, begin)) if e.has(first_of) else e

    def base(self, view: View, home: str | None = None, *, published: bool = True) -> str:
        """The base pointer of a view's tensor, at `home` (a name in the kernel; None: where the view says)."""
        tensor = self.program.tensor(view.tensor)
        if tensor.name not in self.heap or (tensor.kind == "input" and not published):
            return tensor.name
        assert home is not None or isinstance(view.home, Expr)
        where = home or self.text(view.home)
        pointer = f"peer(heaps, {where}, {tensor.name}_at, tl.{TRITON_DTYPES[tensor.dtype]})"
        if where == "rank":
            return self.hoist(f"{tensor.name}_here", pointer)
        return pointer

    def block(
        self,
        view: View,
        home: str | None = None,
        *,
        published: bool = True,
        token: str | None = None,
        hoisted: bool = True,
    ) -> Address:
        """The address of the block a view describes; all its ranges have extents. `hoisted`: offsets inside the block
        are made before the loop over tiles; else they are made where the block is, and take no registers elsewhere."""
        tensor = self.program.tensor(view.tensor)
        strides = self.strides(tensor, published)
        ranges = view.ranges
        corner: list[str] = []
        inside: list[str] = []
        masks: list[str] = []
        for k, (i, at) in enumerate(zip(view.index, self.corner(view, token), strict=True)):
            if not isinstance(i, Range):
                corner += [self.offset(at, strides[k])] if at != "0" else []
                continue
            spread, elements = along(ranges.index(i), len(ranges)), f"tl.arange(0, {i.extent})"
            if hoisted:
                corner += [self.offset(at, strides[k])] if at != "0" else []
                inside.append(_times(elements + spread, strides[k]))
            else:
                at = elements if at == "0" else f"{at} + {elements}"
                corner.append(_times(f"tl.cast({at}, tl.int64){spread}", strides[k]))
            if not fills(i, self.facts):
                masks.append(self.mask(i, spread))
        pointer = " + ".join([self.base(view, home, published=published), *corner])
        if inside:
            shape = "_by_".join(str(r.extent) for r in ranges)
            name = f"{tensor.name}_{'own_' if not published and tensor.name in self.heap else ''}{shape}"
            pointer += f" + {self.hoist(name, ' + '.join(inside))}"
        return Address(pointer, " & ".join(masks))

    def corner(self, view: View, token: str | None) -> list[str]:
        """Where a view begins in the memory of its home, along each dimension. The first range takes the token, or the
        first index where there is none."""
        tensor = self.program.tensor(view.tensor)
        takes_token = next((k for k, i in enumerate(view.index) if isinstance(i, Range)), 0)
        corner = []
        for k, i in enumerate(view.index):
            start = i.start if isinstance(i, Range) else i
            if k == 0 and tensor.buffers:
                start = modulo(start, tensor.buffers)
            if k == tensor.sharded:
                start = start - first_of(symbol(tensor.dims[k]), view.home if isinstance(view.home, Expr) else RANK)
            at = self.text(start)
            corner.append(f"{at} + {token}" if token and k == takes_token else at)
        return corner

    def strides(self, tensor: Tensor, published: bool = True) -> list[str]:
        """Strides in elements: arguments for tensors of the caller, products of sizes for what lies on the heap."""
        on_heap = tensor.name in self.heap and (tensor.kind != "input" or published)
        if not on_heap:
            return [f"{tensor.name}_stride_{d}" for d in tensor.dims]
        lengths = []
        for k, d in enumerate(tensor.dims):
            lengths.append(WORLD if d == RANKS_DIM else longest_part(d) if k == tensor.sharded else symbol(d))
        return [self.text(sympy.prod(lengths[k + 1 :])) for k in range(len(lengths))]

    def offset(self, at: str, stride: str) -> str:
        """A corner's offset, in 64 bits: tensors may have more than 2**31 elements, a row or a tile does not."""
        if stride == "1":
            return at
        factors = stride.split("*") if "(" not in stride else [_factor(stride)]
        return " * ".join([f"tl.cast({at}, tl.int64)", *factors])

    def mask(self, r: Range, spread: str) -> str:
        """Which elements of a block exist along one dimension."""
        source = f"{self.text(r.start)} + tl.arange(0, {r.extent}) < {self.text(r.limit)}"
        if str(r.start) == f"{r.dim}_lo":
            return f"{self.per_tile(f'{r.dim}_inside', source)}{spread}"
        return f"({source}){spread}"


def fills(r: Range, facts: Facts) -> bool:
    """Whether a block is always full, so that no mask is needed."""
    if r.extent == 1:
        return True
    if r.extent is None or r.bounded or (r.dim, r.extent) not in facts.exact:
        return False
    return r.inside is None or r.inside % r.extent == 0


def along(k: int, n: int) -> str:
    """The index by which a vector lies along dimension k of n."""
    return "" if n == 1 else "[" + ", ".join(":" if j == k else "None" for j in range(n)) + "]"


def _times(a: str, stride: str) -> str:
    return a if stride == "1" else f"{a} * {_factor(stride)}"


def _factor(text: str) -> str:
    return text if text.isidentifier() or (text.endswith(")") and text.startswith("(")) else f"({text})"
