"""Roles of the specialised form, in Gluon."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from itertools import count

from tilelink.backend.bulk import Bulk, bulk_bytes, stages
from tilelink.backend.emit import RoleEmitter
from tilelink.backend.gluon.layouts import laid_out
from tilelink.backend.kernel import Source, call, grouped
from tilelink.backend.module import ALIVE
from tilelink.backend.reach import Corner, InBulk
from tilelink.frontend import ir
from tilelink.frontend.ir import Statement, View

LEAST_CARRIED = 2
"""The fewest blocks in the ring of a copy: one is loaded while another is stored."""


class Carried(InBulk):
    """Copies that pass no registers (`carry.py`)."""

    def copy(self, bulk: Bulk, token: Source | None) -> None:
        source, lines = bulk.source, bulk.lines
        assert source is not None and lines is not None
        first = [replace(p, view=p.view.moved_to(lines.at, lines.start)) for p in (source, bulk.target)]
        given = [i for p, t in zip(first, (token, None), strict=True) for i in _given(*self.described(p, t))]
        length = f"{self.text(lines.stop)} - {grouped(self.text(lines.start))}"
        number = max(LEAST_CARRIED, stages(bulk, self.emitter.role, self.program, self.emitter.target))
        size = bulk_bytes(bulk, self.program)
        self.write.do(call("carry", *given, length, lines.step, size, num_stages=number))


def _given(descriptor: Source, corner: Corner) -> tuple[Source, Source, Source]:
    """A descriptor, the lines where a block begins, and the place along these lines."""
    return descriptor, f"({''.join(f'{c}, ' for c in corner[:-1])})", corner[-1]


class GluonEmitter(RoleEmitter):
    """Writes a role in Gluon. It stores and notifies only while the lane is not poisoned, because aborted waits return.
    A bias and what is stored have different layouts, so each block has its own mask."""

    store = "store"
    one_layout = False
    in_bulk = Carried

    def statement(self, s: Statement) -> None:
        if isinstance(s, ir.Write | ir.Notify):
            with self.write.branch(ALIVE):
                super().statement(s)
        else:
            super().statement(s)

    @cached_property
    def load_numbers(self) -> Iterator[int]:
        """Numbers that make the names of loads differ."""
        return count()

    def block_name(self, view: View, number: int = 0) -> str:
        """A name that no other load has: Gluon finds no layout for a name that only a branch assigns anew."""
        return self.made(f"{view.tensor}_block", "block", next(self.load_numbers))

    def code(self, s: Statement, code: ir.Code) -> Source:
        return super().code(s, laid_out(code))

    def compute(self, s: ir.Compute) -> None:
        if len(s.targets) == 1:
            self.write.set(self.variable(s.targets[0]), call("laid", self.code(s, s.code)))
            return
        super().compute(s)
        for name in map(self.variable, s.targets):
            self.write.set(name, call("laid", name))

    def loop(self, s: ir.For) -> AbstractContextManager[None]:
        """Opens a plain loop: Gluon pipelines no loops."""
        return self.write.loop(self.local(s.name), self.text(s.start), self.text(s.stop), s.step)
