"""Programs that read ranks of their own node, which they name in different ways, and ranks that may be on another."""

from __future__ import annotations

import triton.language as tl

import tilelink as tk
from tests.programs.alone import MN, alone
from tilelink.language import TileFunction
from tilelink.programs.program import Program


@tk.tile
def of_all_places(t, x, out):
    acc = tl.zeros(t.shape, tl.float32)
    for p in tk.locals():
        acc += x[t].at(tk.rank_at(tk.node(), p)).load()
    out[t].store(acc)


@tk.tile
def of_all_places_by_number(t, x, out):
    """The same on nodes of two ranks."""
    acc = tl.zeros(t.shape, tl.float32)
    for p in range(2):
        acc += x[t].at(tk.rank() // 2 * 2 + p).load()
    out[t].store(acc)


@tk.tile
def of_both(t, x, out):
    """The same on nodes of two ranks."""
    out[t].store(x[t].load() + x[t].at(tk.rank_at(tk.node(), 1 - tk.place())).load())


@tk.tile
def of_the_next_place(t, x, out):
    """The same on nodes of two ranks."""
    out[t].store(x[t].load() + x[t].at(tk.rank_at(tk.node(), (tk.place() + 1) % 2)).load())


@tk.tile
def of_the_first_place(t, x, out):
    out[t].store(x[t].at(tk.rank_at(tk.node(), 0)).load())


@tk.tile
def of_a_place_behind(t, x, out):
    out[t].store(x[t].at(tk.rank_at(tk.node(), tk.place() + 1)).load())


@tk.tile
def of_the_first_node(t, x, out):
    out[t].store(x[t].at(tk.rank_at(0, tk.place())).load())


@tk.tile
def of_all_places_twice(t, x, out):
    """Its second loop has the variable of the first, and goes further."""
    acc = tl.zeros(t.shape, tl.float32)
    for p in tk.locals():
        acc += x[t].at(tk.rank_at(tk.node(), p)).load()
    for p in tk.ranks():
        acc += x[t].at(tk.rank_at(tk.node(), p)).load()
    out[t].store(acc)


def of(role: TileFunction) -> Program:
    return alone(role.name, role.named("read"), x=MN, out=MN)


READ = tk.Schedule(read=tk.SMs(2, tile=(16, 16)))
SUMS = [of(role) for role in (of_all_places, of_all_places_by_number, of_both, of_the_next_place)]
"""Sums over the ranks of a node: the first of any number, the others of two."""
first_of_node = of(of_the_first_place)
MAYBE_FAR = [of(role) for role in (of_a_place_behind, of_the_first_node, of_all_places_twice)]
