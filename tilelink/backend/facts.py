"""Facts about sizes that the source of a kernel depends on: everything else is an argument of the kernel."""

from __future__ import annotations

from dataclasses import dataclass

from tilelink.frontend.ir import RANKS_DIM, TileProgram
from tilelink.frontend.sizes import Sizes, extents

COPY_CHUNK = 128


@dataclass(frozen=True)
class Facts:
    """`equal`: dimensions that are cut into parts of one length, whose beginnings are a product and need no table.
    `exact`: (dimension, block) where blocks leave no rest, in the dimension or in each of its parts: no masks."""

    equal: frozenset[str]
    exact: frozenset[tuple[str, int]]

    @classmethod
    def of(cls, program: TileProgram, sizes: Sizes) -> Facts:
        blocks = {(d, COPY_CHUNK) for t in program.tensors for d in t.dims if d != RANKS_DIM}
        for role in program.roles:
            blocks |= extents(role)
        return cls(
            equal=frozenset(d for d in program.cut if sizes.equal(d)),
            exact=frozenset((d, n) for d, n in blocks if sizes.exact(d, n)),
        )

    def __str__(self) -> str:
        equal = ", ".join(sorted(self.equal)) or "none"
        exact = ", ".join(f"{d} by {n}" for d, n in sorted(self.exact)) or "none"
        return f"parts of one length: {equal}; no rest: {exact}"
