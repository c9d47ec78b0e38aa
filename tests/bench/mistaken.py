"""A program with a mistake that only its results show: it should give every rank the rows of all ranks."""

import tilelink as tk


@tk.tile
def bring_twice(t, x, out):
    """Bring one tile of x from its home to the reader, times two."""
    out[t].store(x[t].load() * 2)


@tk.program
def doubled(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    """out = twice the rows of x of all ranks."""
    bring_twice[tk.tiles(x, reader=tk.ranks)](x, out)


pull = tk.Schedule(bring_twice=tk.SMs(tile=(16, 16), at="reader"))
