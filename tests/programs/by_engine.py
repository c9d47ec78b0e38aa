"""Programs whose roles store by the copy engine for tiles in ways in which no program of the library does."""

from __future__ import annotations

from typing import Any

import triton.language as tl

import tilelink as tk


@tk.tile
def sends(t, y, other):
    tk.notify(tk.copy(y[t], other[t].at(t.reader)))


@tk.tile
def fills_twice(t, x, other, rows):
    tk.copy(x[t], rows[t])
    tk.notify(tk.copy(tk.wait(other[t]), rows[t]))


@tk.tile
def keeps(t, rows, out):
    tk.copy(tk.wait(rows[t]), out[t])


@tk.program
def filled_twice(x: tk.Local("M", "K"), y: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    """A worker stores rows, waits, and stores other ones over them."""
    other, rows = tk.local("M", "K"), tk.local("M", "K")
    sends[tk.tiles(y, reader=tk.ranks)](y, other)
    fills_twice[tk.tiles(rows)](x, other, rows)
    keeps[tk.tiles(out)](rows, out)


@tk.tile
def stores_first(t, x, rows, told):
    rows[t].store(x[t].load() * 2)
    tk.notify(tk.copy(x[t], told[t]))


@tk.tile
def stores_over(t, y, told, rows):
    tk.wait(told[t])
    tk.notify(tk.copy(y[t], rows[t]))


@tk.tile
def keeps_both(t, rows, told, out):
    tk.copy(tk.wait(rows[t]), out[t])


@tk.program
def stored_over(x: tk.Local("M", "K"), y: tk.Local("M", "K"), out: tk.Local("M", "K")):
    """Threads store rows, and the engine stores others over them."""
    rows, told = tk.local("M", "K"), tk.local("M", "K")
    stores_first[tk.tiles(x)](x, rows, told)
    stores_over[tk.tiles(rows)](y, told, rows)
    keeps_both[tk.tiles(out)](rows, told, out)


@tk.tile
def leaves(t, y, box):
    tk.copy(y[t], box[t].at((tk.rank() + 1) % tk.world()))


@tk.program
def left_alone(y: tk.Local("M", "K")):
    """Nobody is told of what lies at a peer."""
    box = tk.local("M", "K")
    leaves[tk.tiles(y)](y, box)


@tk.tile
def spreads(t, row, out):
    out[t].store(row[t.cols].load()[None, :])


@tk.program
def spread(row: tk.Local("K"), out: tk.Local("M", "K")):
    """What is stored has fewer elements than its block."""
    spreads[tk.tiles(out)](row, out)


@tk.tile
def passes(t, y, box):
    tk.notify(tk.copy(y[t], box[t].at((tk.rank() + 1) % tk.world())))


@tk.program
def passed_each(y: tk.Each(tk.Local("M", "K")), out: tk.Each(tk.Local("M", "K"))):
    """Roles that take turns, of which each stores by the engine."""
    for own, kept in tk.each(y, out):
        box = tk.local("M", "K")
        passes[tk.tiles(own)](own, box)
        keeps[tk.tiles(kept)](box, kept)


@tk.tile
def gathers(t, x, full):
    tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def keeps_one(t, full, kept):
    one = t.S.start
    tk.copy(tk.wait(full[t.S, t.M, t.K])[one], kept[one, t.M, t.K])


@tk.tile
def multiplies(t, a, b, out):
    acc = tl.zeros((len(t.R), len(t.N)), tl.float32)
    for k in tk.steps(a.K):
        acc = tl.dot(a[t.R, k].load(), b[k, t.N].load(), acc)
    out[t].store(acc)


@tk.program
def kept_of_three(
    x: tk.Sharded("S", "M", "K", axis=1), a: tk.Local("R", "K"), b: tk.Local("K", "N", contiguous="K"),
    kept: tk.Local("S", "M", "K"), out: tk.Local("R", "N"),
):  # fmt: skip
    """Blocks that are copied have three dimensions, and another role multiplies."""
    full = tk.local("S", "M", "K")
    gathers[tk.tiles(x, reader=tk.ranks)](x, full)
    keeps_one[tk.tiles(kept)](full, kept)
    multiplies[tk.tiles(out)](a, b, out)


def _workers(number: int | None = 2, tile: tuple[int, ...] = (64, 64), **more: Any) -> tk.SMs:
    return tk.SMs(number, tile=tile, **more)


TWICE = tk.Schedule(sends=_workers(at="home"), fills_twice=_workers(via="tma"), keeps=_workers())
OVER = tk.Schedule(stores_first=_workers(), stores_over=_workers(via="tma"), keeps_both=_workers())
ALONE = tk.Schedule(leaves=_workers(via="tma"))
SPREAD = tk.Schedule(spreads=_workers(via="tma"))
EACH = tk.Schedule(passes=_workers(via="tma"), keeps=_workers(None, via="tma"))
OF_THREE = tk.Schedule(
    gathers=_workers(tile=(1, 128, 128), at="home"), keeps_one=_workers(tile=(1, 128, 128), via="tma"),
    multiplies=tk.SMs(tile=(128, 128, 64), warps=8),
)  # fmt: skip
