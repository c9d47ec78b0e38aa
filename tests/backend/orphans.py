"""A program in which notifications come that nobody waits for."""

from __future__ import annotations

import triton.language as tl

import tilelink as tk


@tk.tile
def gather(t, x, full):  # type: ignore[no-untyped-def]
    """Every rank gets all tiles."""
    tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def lower(t, full, out):  # type: ignore[no-untyped-def]
    """A rank uses the tiles of lower ranks and its own only; zeros are instead of the others."""
    if t.home <= tk.rank():
        out[t].store(tk.wait(full[t]).load())
    else:
        out[t].store(tl.zeros(t.shape, tl.float32))


@tk.program
def lower_rows(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):  # type: ignore[no-untyped-def, valid-type]
    full = tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    lower[tk.tiles(out)](full, out)


push = tk.Schedule(gather=tk.SMs(2, tile=(16, 32), at="home"), lower=tk.SMs(2, tile=(16, 32)))
