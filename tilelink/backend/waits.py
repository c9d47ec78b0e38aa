"""Writes the waits of a tile: for one signal after the other, for many at once, or for the pieces that have come.

A wait for a view polls each cell that the view spans. A target with wide polls has two better ways:

- A tile needs all that several ranks send, each in its own cell. The wait polls a block of cells at once.
- A main loop needs one piece of its rows at a time. It waits for the next piece, and takes all pieces behind it that
  have come, in one pipelined loop. A tile whose rows are all here waits once; another tile is at most a piece behind
  its rows.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

import sympy

from tilelink.backend import pipelining
from tilelink.backend.addresses import arange
from tilelink.backend.facts import Facts
from tilelink.backend.kernel import ZERO, Body, Kind, Source, call
from tilelink.backend.parameters import CONTROL, RANK, WAIT_ALL, WAIT_SOME, WORKERS
from tilelink.backend.signals import cells_awaited, write_expected
from tilelink.backend.targets import Target
from tilelink.frontend import ir
from tilelink.frontend.expressions import Expr, of_dim, own, symbol
from tilelink.frontend.ir import RANKS_DIM, Role, Signals, TileProgram, View
from tilelink.frontend.schedule import SMs
from tilelink.frontend.walk import NUMBER

if TYPE_CHECKING:
    from tilelink.backend.emit import RoleEmitter

AT_ONCE = 32
"""Cells that a wait polls at once: one for each thread of a warp."""
FROM, UP_TO = own("from"), own("up_to")
"""The steps of a main loop whose pieces have come."""


def all_at_once(signals: Signals, view: View, target: Target, facts: Facts) -> bool:
    """Whether a wait for a view polls a block of cells. It does so for rows that several ranks send, each counted in
    its own cell, and for rows in the parts of several ranks. Other waits span two or three cells, which they poll in
    turn. A kernel that records times always polls in turn."""
    if not target.wide_polls or target.network or facts.timed or any(n.sums for n in signals.notifiers):
        return False
    _, _, loops = cells_awaited(signals, view)
    spanned = zip(signals.grid, signals.index(view), strict=True)
    of_ranks = any(name == of_dim(RANKS_DIM, "cell").name for name, _, _ in loops)
    across = any(c.cut and isinstance(i, ir.Range) and i.across_parts for c, i in spanned)
    return len(loops) == 1 and (of_ranks or across or any(c.route for c in signals.grid))


def in_pieces(role: Role, program: TileProgram, facts: Facts, target: Target) -> ir.For | None:
    """The main loop of a role, if it takes pieces as they come: it waits for one cell of a signal, a piece, and goes
    through its steps in a pipelined loop. Else, or where times are recorded, None. (Warps that only load have no such
    loop: they are ahead of the product anyway, and wait for one piece after the other.)"""
    if not target.waits_for_all or facts.timed:
        return None
    opening = list(takewhile(lambda s: isinstance(s, ir.Compute) and not s.loads, role.body))
    match role.body[len(opening) :]:
        case (ir.For(body=(ir.Wait(views=(view,)), ir.For() as inner)) as loop, *_):
            signals = program.signals_of(view.tensor)
            one = not cells_awaited(signals, view)[2] and not any(n.sums for n in signals.notifiers)
            alone = sum(x.name == loop.name for x in ir.every(ir.For, role.body)) == 1
            early = [hole for s in opening for code in s.codes for hole in code.holes]
            found = one and alone and not _of_tile(role, loop.start, *early)
            return loop if found and pipelining.pipelined(inner, role, program) else None
    return None


def _of_tile(role: Role, *values: object) -> bool:
    """Whether a value depends on the tile. The opening of a tile is written before the tile's coordinates are known."""
    names = {s.name for value in values for s in getattr(value, "free_symbols", ())}
    return not names.isdisjoint(name for name, _ in role.walk.coordinates)


class Waits:
    """Writes the waits of a role."""

    def __init__(self, emitter: RoleEmitter) -> None:
        self.emitter, self.write, self.addresses = emitter, emitter.write, emitter.addresses
        self.text, self.local, self.made = emitter.text, emitter.local, emitter.made

    def wait(self, s: ir.Wait) -> Source:
        """Writes a wait for one or several views, and returns the sum of their tokens."""
        if self.emitter.settles(s):
            self.write.do(call("settle"))
        if len(s.views) == 1:
            return self._view(s, s.name, s.views[0])
        each = [self._view(s, f"{s.name}_{n}", view) for n, view in enumerate(s.views)]
        return self.write.set(self.made(s.name, "tokens", s.name), " + ".join(each), Kind.FIXED)

    def _tma(self, s: ir.Wait) -> Source | None:
        """The keyword that says whether the copy engine for tiles reads what a wait guards, or stores over it."""
        return "True" if s.name in self.emitter.fenced else None

    def _view(self, s: ir.Wait, guard: str, view: View) -> Source:
        """Writes a poll of one cell, or a loop over the cells of a view, and returns the token."""
        emitter, token, when, tma = self.emitter, self.made(guard, "token", guard), s.when, self._tma(s)
        signals = emitter.program.signals_of(view.tensor)
        cell, known, loops = cells_awaited(signals, view)
        once = not loops and when == sympy.true
        if not once:
            self.write.set(token, ZERO)
        with ExitStack() as opened:
            if when != sympy.true:
                opened.enter_context(self.write.branch(self.text(when)))
            if all_at_once(signals, view, emitter.target, emitter.facts):
                self._all(token, signals, cell, known, *loops, tma=tma)
                return token
            for counter, first, end in loops:
                opened.enter_context(self.write.loop(self.local(counter), self.text(first), self.text(end)))
            inside = not loops and not view.of_rank
            holds = emitter.holds | {when}
            expected = write_expected(self.write, self.addresses, signals, known, inside=inside, holds=holds)
            where = emitter.signal(signals, RANK, cell)
            emitter.stamp("WAIT_BEGINS")
            waited = call("wait", CONTROL, where, expected, f'"{signals.scope}"', tma=tma)
            self.write.set(token, waited, *((Kind.FIXED, "=") if once else (Kind.VARIABLE, "+=")))
            emitter.stamp("WAIT_ENDS")
        return token

    def _all(
        self, token: str, signals: Signals, cell: Expr, known: dict[Expr, Expr], cells: tuple[str, Expr, Expr], *,
        tma: Source | None,
    ) -> None:  # fmt: skip
        """Writes a wait for a row of cells, which polls `AT_ONCE` of them at a time."""
        counter, first, end = cells
        at, last = self.made("at", "cells from", token), self.made("last", "last cell", token)
        self.write.set(last, f"{self.text(end)} - 1", Kind.FIXED)
        with self.write.loop(at, self.text(first), f"{last} + 1", AT_ONCE):
            self.write.set(self.local(counter), f"tl.minimum({at} + {arange(AT_ONCE)}, {last})")
            expected = write_expected(self.write, self.addresses, signals, known, inside=False)
            where = self.emitter.signal(signals, RANK, cell)
            waited = call(WAIT_ALL, CONTROL, where, expected, f'"{signals.scope}"', tma=tma)
            self.write.set(token, waited, Kind.VARIABLE, "+=")

    def tile_in_pieces(self, s: ir.For) -> tuple[Body, Body]:
        """Writes a tile whose main loop takes pieces as they come. Returns what begins a tile, and what the worker
        repeats: it goes over the pieces that have come; behind the last piece it ends the tile and begins the next one.
        (A loop over pieces inside the loop over tiles means the same. But then ptxas no longer sees that all threads of
        a warp go the same way, and issues each matrix instruction of sm_100 in a loop.)"""
        emitter, write = self.emitter, self.write
        k = emitter.role.body.index(s)
        here, number = self.local(FROM.name), self.local(NUMBER.name)
        with write.inside([]) as begins:
            emitter.statements(emitter.role.body[:k])
            write.set(here, self.text(s.start))
        with write.inside([]) as repeated:
            stop = write.set(self.made("stop", "stop", s.name), self.text(s.stop), Kind.FIXED)
            self._pieces(s, here, stop)
            with write.branch(f"{here} >= {stop}"):
                emitter.statements(emitter.role.body[k + 1 :])
                write.body += begins
                write.set(number, WORKERS, operator="+=")
        return begins, repeated

    def _pieces(self, s: ir.For, here: str, stop: str) -> None:
        """Writes a wait for the next piece, and a loop over all pieces that have come from `here` on. Every thread of a
        worker looks at another piece."""
        emitter, write, (waited, inner) = self.emitter, self.write, s.body
        assert isinstance(waited, ir.Wait) and isinstance(inner, ir.For) and isinstance(emitter.role.resource, SMs)
        (view,) = waited.views
        signals = emitter.program.signals_of(view.tensor)
        cell, known, _ = cells_awaited(signals, view)
        token, came = self.made(waited.name, "token", waited.name), self.made("came", "came", s.name)
        up_to = self.local(UP_TO.name)
        next_one = {symbol(s.name): FROM}
        at_first = {k: v.xreplace(next_one) for k, v in known.items()}
        first = emitter.signal(signals, RANK, cell.xreplace(next_one))
        least = write_expected(write, self.addresses, signals, at_first, inside=True)
        each = f"{here} + {s.step}*{arange(emitter.target.warp_size * emitter.role.resource.warps)}"
        write.set(self.local(s.name), f"tl.minimum({each}, {stop} - 1)", Kind.FIXED)
        every = emitter.signal(signals, RANK, cell)
        expected = write_expected(write, self.addresses, signals, known, inside=True)
        # A tile may have no steps, or none to wait for, and then no cell. It looks at a word that is never negative.
        some = f"{here} < {stop}" if waited.when == sympy.true else f"({here} < {stop}) & ({self.text(waited.when)})"
        nothing = f"({CONTROL} + POISON).to(tl.pointer_type(tl.int32))"
        first, every = (call("tl.where", some, word, nothing) for word in (first, every))
        least = call("tl.where", some, least, 0)
        given = CONTROL, first, every, least, expected, f'"{signals.scope}"'
        write.assign((token, came), call(WAIT_SOME, *given, tma=self._tma(waited)))
        write.set(up_to, f"tl.minimum({here} + {s.step}*{came}, {stop})")
        emitter.tokens[waited.name] = token
        emitter.statement(replace(inner, start=FROM, stop=UP_TO))
        write.set(here, up_to)
