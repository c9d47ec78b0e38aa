"""Every rank gets the rows of all: one role brings them, others make the output of them."""

from typing import Any

import triton.language as tl

import tilelink as tk
from tilelink.kernels.all_gather_matmul import matmul
from tilelink.programs.program import Program


@tk.tile
def gather(t, x, full):
    """Brings a tile to a reader."""
    tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def take(t, full, out):
    """Waits for a tile."""
    out[t].store(tk.wait(full[t]).load())


def gathering(name: str, bring: Any = gather, *users: Any) -> Program:
    """A program: `bring` moves the tiles of x to all readers, and each of `users` (`take`, where none is given) goes
    over the tiles of out. No schedule of its file is beside it."""

    def program(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
        full = tk.local("M", "K")
        bring[tk.tiles(x, reader=tk.ranks)](x, full)
        for use in users or (take,):
            use[tk.tiles(out)](full, out)

    program.__name__ = name
    return tk.program(program)


gathered = gathering("gathered")


@tk.tile
def add_corner(t, full, out):
    rows = tk.wait(full[:, :])
    out[t].store(rows[t].load() + rows[0, 0].load())


corner = gathering("corner", gather, add_corner)
"""All rows are waited for, and one element is read alone."""


@tk.tile
def two_at_once(t, full, out):
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(full.cols):
        fixed, moving = tk.wait(full[t.rows, t.cols], full[t.rows, k])
        acc += fixed.load() + moving.load()
    out[t].store(acc)


waits_for_two = gathering("waits_for_two", gather, two_at_once)
"""Two views of one tensor are waited for together."""


# ---- products, whose loops wait in each step


@tk.tile
def whole_rows(t, full, weight, out):
    """Each step waits for what the first has waited for: the cell holds whole rows."""
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(full.cols):
        rows = tk.wait(full[t.rows])
        acc = tl.dot(rows[:, k].load(), weight[k, t.cols].load(), acc)
    out[t].store(acc)


@tk.program
def waits_in_each_step(x: tk.Sharded("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N")):
    full = tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    whole_rows[tk.tiles(out)](full, weight, out)


@tk.tile
def passes_on(t, full, weight, out, told):
    """Notifies before it waits, in every step: nothing may be waited for earlier than it says."""
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(full.cols):
        tk.notify(told[t.rows, k].store(weight[k, t.cols].load()))
        acc = tl.dot(tk.wait(full[t.rows, k]).load(), weight[k, t.cols].load(), acc)
    out[t].store(acc)


@tk.program
def notifies_in_each_step(x: tk.Sharded("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N")):
    full, told = tk.local("M", "K"), tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    passes_on[tk.tiles(out)](full, weight, out, told)


# ---- in two levels: once between nodes, then inside them; waits for another rank's memory

LOCAL = 2


@tk.tile
def across(t, x, full):
    if t.node < tk.world() // LOCAL:
        there = full[t].at(t.node * LOCAL + x[t].home % LOCAL)  # the rank of the same place on that node
        tk.notify(tk.copy(x[t], there))


@tk.tile
def inside(t, x, full):
    relay = t.reader // LOCAL * LOCAL + x[t].home % LOCAL
    if relay != t.reader:
        tk.notify(tk.copy(tk.wait(full[t].at(relay)), full[t].at(t.reader)))


@tk.program
def hierarchical_matmul(x: tk.Sharded("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N")):
    full = tk.local("M", "K")
    across[tk.tiles(x, node=tk.ranks)](x, full)
    inside[tk.tiles(x, reader=tk.ranks)](x, full)
    matmul[tk.tiles(out)](full, weight, out, None)


# ---- notifications that nobody waits for


@tk.tile
def lower(t, full, out):
    """A rank uses the tiles of lower ranks and its own only; zeros are instead of the others."""
    if t.home <= tk.rank():
        out[t].store(tk.wait(full[t]).load())
    else:
        out[t].store(tl.zeros(t.shape, tl.float32))


@tk.program
def lower_rows(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    lower[tk.tiles(out)](full, out)


push = tk.Schedule(gather=tk.SMs(2, tile=(16, 32), at="home"), lower=tk.SMs(2, tile=(16, 32)))
