"""Copies through registers: loads of as much as registers hold at a time, and stores of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from tilelink.backend.facts import copied_chunks
from tilelink.backend.kernel import Kind, Source, call
from tilelink.frontend import ir
from tilelink.frontend.expressions import of_dim, smaller
from tilelink.frontend.ir import Range, View

if TYPE_CHECKING:
    from tilelink.backend.emit import RoleEmitter


def through_registers(emitter: RoleEmitter, s: ir.Copy, put: Callable[[View, Source, Source | None], None]) -> None:
    """Writes a copy as loads and stores. `put` stores a block to a view; its last argument says which rows are moved. A
    row of the source that -1 picks is not stored: the target keeps its row."""
    source, target = s.source, s.target
    token = None if emitter.publishing else emitter.token(source)
    emitter.pick(source)
    loaded = emitter.moved(s.where)
    picked = f"({emitter.addresses.picked(source)} >= 0)" if source.picked_by else None
    stored = f"({loaded} & {picked})" if loaded and picked else loaded or picked
    with ExitStack() as opened:
        for a, n in copied_chunks(s.source.ranges):
            lo, bounds = of_dim(a.dim, "at"), (emitter.text(a.start), emitter.text(a.stop))
            opened.enter_context(emitter.write.loop(emitter.local(lo.name), *bounds, n))
            chunk = Range(a.dim, lo, smaller(lo + n, a.stop), n, a.part)
            source = with_range(source, a, chunk)
            b = next(r for r in s.target.ranges if r.dim == a.dim or a.same_rows(r))
            target = with_range(target, b, chunk if b.dim == a.dim else _shifted(chunk, a, b))
        here = emitter.addresses.block(source, token=token, published=not emitter.publishing, moved=loaded)
        block = call("tl.load", here.pointer, mask=here.mask)
        put(target, emitter.write.set(emitter.block_name(source), block, Kind.TEMPORARY), stored)


def with_range(view: View, old: Range, new: Range) -> View:
    """The view with one of its ranges replaced."""
    return replace(view, index=tuple(new if i == old else i for i in view.index))


def _shifted(chunk: Range, a: Range, b: Range) -> Range:
    """The chunk of the rows `a` of a route, as rows of the other side of the route, `b`."""
    lo = chunk.start - a.start + b.start
    return Range(b.dim, lo, smaller(lo + (chunk.extent or 0), b.stop), chunk.extent, b.part)
