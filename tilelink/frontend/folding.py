"""Roles folded into the epilogue of the role that makes what they wait for, as a rewriting of the tile program.

What a producer's tile stores and notifies, the folded role waits for and copies on. Inside one tile the wait is
superfluous, and the copy is a store of the block that is still in registers, rounded to the dtype of the buffer that it
would have gone through, so that the bits are the same. The buffer disappears where nobody else waits for it.
FLUX (arXiv 2406.06858) does so by hand for GEMM-ReduceScatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from tilelink.errors import ScheduleError
from tilelink.frontend.ir import (
    Code,
    Compute,
    Copy,
    For,
    If,
    Notify,
    Role,
    Statement,
    Store,
    Tensor,
    Variable,
    View,
    Wait,
    rewritten,
    walk,
)
from tilelink.frontend.triton_calls import TRITON_DTYPES


def fold(producer: Role, ways: Sequence[Role], tensors: Sequence[Tensor]) -> Role:
    """The producer with a role in its epilogue. `ways`: that role in the producer's tiles, once for each answer to who
    executes it; it is folded in the way in which it waits for what the producer's tile notifies, on the rank that
    notifies. Raises ScheduleError."""
    alike = [way for way in ways if way.walk == producer.walk]
    if not alike:
        name, theirs, ours = ways[0].name, _space(ways[0]), _space(producer)
        raise ScheduleError(
            f"{name} can't be folded into {producer.name}: it runs over {theirs}, {producer.name} over {ours}; a "
            "folded role has the same tiles on the same rank, so its space has the same dimensions, and one rank axis "
            "for whoever makes the tile",
            ways[0].site,
        )
    found = next((way for way in alike if not _strangers(producer, way)), alike[0])
    return _Folding(producer, found, {t.name: t.dtype for t in tensors}).role()


def without_unread(
    tensors: Sequence[Tensor], roles: Sequence[Role]
) -> tuple[tuple[Tensor, ...], tuple[Role, ...]]:
    """Without buffers that only the folded roles read: they are neither stored nor notified."""
    awaited = {v.tensor for r in roles for s in walk(r.body) if isinstance(s, Wait) for v in s.views}
    kept = {s.target for r in roles if r.folded for s in walk(r.body) if isinstance(s, Store) and _is_kept(s)}
    gone = {v.tensor for v in kept} - awaited
    gone = {t.name for t in tensors if t.name in gone and t.kind == "buffer"}
    stored = tuple(replace(r, body=_without(r.body, gone)) if r.folded else r for r in roles)
    return tuple(t for t in tensors if t.name not in gone), stored


def _is_kept(s: Store) -> bool:
    """Whether what is stored is kept for a folded role, too."""
    return s.value == _kept(s.target)


def _without(body: tuple[Statement, ...], gone: set[str]) -> tuple[Statement, ...]:
    """The statements without stores to, and notifications of, the tensors that are gone."""

    def change(s: Statement) -> tuple[Statement, ...]:
        match s:
            case Store() if s.target.tensor in gone:
                return ()
            case Notify():
                views = tuple(v for v in s.views if v.tensor not in gone)
                return (replace(s, views=views),) if views else ()
        return (s,)

    return rewritten(body, change)


def _kept(view: View) -> Code:
    """The block in registers."""
    return Code("{0}", (Variable(f"{view.tensor}_kept"),))


def _space(role: Role) -> str:
    ranges = ", ".join(r.dim if r.extent is None else f"{r.dim} by {r.extent}" for r in role.walk.ranges)
    names = {n for r in role.walk.ranges for n in (f"{r.dim}_tile", f"{r.dim}_lo")} | {"tile"}
    axes = [n for n, _ in role.walk.coordinates if n not in names]
    return f"{ranges} ({', '.join(axes)} in turn on each rank)" if axes else ranges


def _awaited(folded: Role) -> list[View]:
    return [v for s in walk(folded.body) if isinstance(s, Wait) for v in s.views]


def _notified(producer: Role) -> list[View]:
    """What every tile notifies, once."""
    return [v for s in producer.body if isinstance(s, Notify) for v in s.views]


def _strangers(producer: Role, folded: Role) -> list[View]:
    """What the role waits for and the producer's tile does not notify."""
    notified = _notified(producer)
    return [v for v in _awaited(folded) if v not in notified]


class _Folding:
    """One role on its way into the epilogue of another."""

    def __init__(self, producer: Role, folded: Role, dtypes: dict[str, str]) -> None:
        self.producer, self.folded, self.dtypes = producer, folded, dtypes
        self.awaited = list(dict.fromkeys(_awaited(folded)))

    def role(self) -> Role:
        self.check()
        body: list[Statement] = []
        missing = list(self.awaited)
        for s in self.producer.body:
            if isinstance(s, Store) and s.target in self.awaited and not _is_kept(s):
                dtype = TRITON_DTYPES[self.dtypes[s.target.tensor]]
                kept, value = _kept(s.target), s.value
                text = value.text if value.text == "{0}" else f"({value.text})"
                body.append(Compute(s.site, replace(value, text=f"{text}.to(tl.{dtype})"), (str(kept),)))
                s = replace(s, value=kept)
            body.append(s)
            if isinstance(s, Notify) and missing:
                missing = [v for v in missing if v not in s.views]
                if not missing:
                    body += self.inside(self.folded.body)
        return replace(self.producer, body=tuple(body), folded=(*self.producer.folded, self.folded.name))

    def check(self) -> None:
        folded, producer = self.folded, self.producer
        notified = _notified(producer)
        if not self.awaited:
            self.fail(folded.body[0], f"it waits for nothing that {producer.name} makes; give it SMs of its own")
        for s in walk(folded.body):
            if not isinstance(s, Wait | Copy | Notify | For | If):
                self.fail(s, f"it computes; a role in an epilogue only copies what {producer.name} made")
        for s in (s for s in walk(folded.body) if isinstance(s, Wait)):
            for v in s.views:
                if v not in notified:
                    theirs = ", ".join(map(str, notified)) or "nothing in every tile"
                    self.fail(s, f"it waits for {v}, and a tile of {producer.name} notifies {theirs}; wait for exactly "
                              "what the tile notifies, on the rank that notifies it")
        for v in self.awaited:
            stores = [s for s in producer.body if isinstance(s, Store) and s.target == v]
            if len(stores) != 1 or notified.count(v) != 1:
                self.fail(producer, f"{producer.name} does not store and notify {v} once in each tile: a loop, a "
                          "branch or a copy is between; store the block and notify it, one after the other")
        for s in (s for s in walk(folded.body) if isinstance(s, Copy)):
            if s.source.guard is not None and replace(s.source, guard=None) not in self.awaited:
                self.fail(s, f"it copies {s.source}, a part of what it waits for; in registers is the whole block")

    def inside(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """The role's statements without its waits, copies of what is kept as stores."""

        def change(s: Statement) -> tuple[Statement, ...]:
            match s:
                case Wait():
                    return ()
                case Copy() if s.source.guard is not None:
                    return (Store(s.site, s.target, _kept(s.source)),)
            return (s,)

        return rewritten(body, change)

    def fail(self, where: Statement | Role, why: str) -> NoReturn:
        raise ScheduleError(f"{self.folded.name} can't be folded into {self.producer.name}: {why}", where.site)
