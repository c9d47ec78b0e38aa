"""Programs with a route: rows go by expert, on the way that makes them, on the one that takes them, or on both."""

from typing import Any

import triton.language as tl

import tilelink as tk
from tests.programs.gathered import take
from tilelink.programs.program import Program

ROWS = tk.Sharded("R", "K")


@tk.tile
def make(t, x, rows):
    tk.notify(rows[t].store(x[t].load()))


@tk.tile
def add_up(t, rows, out):
    """In each row of a tile, the sum of its rows."""
    total = tl.zeros(t.shape, tl.float32)
    for step in tk.steps(t.rows):
        total += tl.sum(tk.wait(rows[step, t.cols]).load(), 0)[None, :]
    out[t].store(total)


def by_experts(name: str, use: Any, made: bool, used: bool) -> Program:
    """A program that makes rows, and that uses them; each goes over the tiles of experts if it is told so."""

    def program(x: ROWS, sent: tk.Sharded("S", "K"), weight: tk.Local("E", "K"), out: ROWS):
        route, rows = tk.route("S", "R", "E"), tk.sharded("R", "K")
        of_experts = (route.experts, x.cols)
        make[tk.tiles(*(of_experts if made else (x,)))](x, rows)
        use[tk.tiles(*(of_experts if used else (out,)))](rows, out)

    program.__name__ = name
    return tk.program(program)


made_by_experts = by_experts("made_by_experts", take, made=True, used=False)
added_by_experts = by_experts("added_by_experts", add_up, made=False, used=True)
made_and_added_by_experts = by_experts("made_and_added_by_experts", add_up, made=True, used=True)


# ---- what programs with one role more launch first


@tk.tile
def move(t, x, rows):
    tk.notify(tk.copy(x[t], rows[t]))


@tk.tile
def by_expert(t, x, rows):
    tk.notify(tk.copy(x[t.rows], rows[t.rows]))
