"""Notifications under conditions and in loops, which nobody waits for: what is counted is still what is given."""

from typing import Any

import tilelink as tk
from tilelink.programs.program import Program


@tk.tile
def later(t, x, full):
    if t.reader >= t.home:
        tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def every_second(t, x, full):
    if (t.reader + t.home) % 2 == 0 and t.reader != 0:
        tk.notify(tk.copy(x[t], full[t].at(t.reader)))
    else:
        pass


@tk.tile
def one_or_two(t, x, full):
    there = full[t].at(t.reader)
    if t.reader == t.home or not t.home:
        tk.notify(tk.copy(x[t], there))
    else:
        tk.notify(tk.copy(x[t], there))
        tk.notify(tk.copy(x[t], there))


@tk.tile
def as_often_as_the_reader_says(t, x, full):
    for _ in range(t.reader % 3):
        tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def at_home_for_one_reader(t, x, full):
    if t.reader == 2:
        tk.notify(tk.copy(x[t], full[t].at(t.home)))


@tk.tile
def to_the_ranks_up_to_here(t, x, full):
    if t.reader == 0:
        for r in range(t.home + 1):
            tk.notify(tk.copy(x[t], full[t].at(r)))


@tk.tile
def to_all(t, x, full):
    if t.reader == t.home:
        tk.notify(tk.copy(x[t], full[t].at(tk.ranks)))


@tk.tile
def in_steps(t, x, full):
    for k in tk.steps(x.cols):
        tk.notify(tk.copy(x[t.rows, k], full[t.rows, k].at(t.reader)))


@tk.tile
def move(t, x, full):
    tk.copy(x[t], full[t].at(t.reader))


def notifying(function: Any) -> Program:
    """A program of this role alone, over tiles of x, or over its rows for `in_steps`."""

    @tk.program
    def program(x: tk.Sharded("M", "K")):
        full = tk.local("M", "K")
        function[tk.tiles(x.rows if function is in_steps else x, reader=tk.ranks)](x, full)

    return program


NOTIFYING = [
    notifying(f)
    for f in (
        later, every_second, one_or_two, as_often_as_the_reader_says, at_home_for_one_reader, to_the_ranks_up_to_here,
        to_all, in_steps,
    )
]  # fmt: skip
moves = notifying(move)
"""Every part goes to every rank, and nobody is told."""
