"""Rows that go to all ranks, in other ways than `gathered`: with schedules beside the programs."""

import triton.language as tl

import tilelink as tk
from tests.programs.gathered import gather, take


@tk.program
def gathered_bytes(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K", dtype=tl.int8)
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    take[tk.tiles(out)](full, out)


@tk.program
def readers_first(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    """out = all rows of x, by workers that take before they give: with too few of them nobody is left to give."""
    full = tk.local("M", "K")
    take[tk.tiles(out)](full, out)
    gather[tk.tiles(x, reader=tk.ranks)](x, full)


shared_workers = tk.Schedule(gather=tk.SMs(tile=(16, 16), at="home"), take=tk.SMs(tile=(16, 16)))
own_workers = tk.Schedule(gather=tk.SMs(1, tile=(16, 16), at="home"), take=tk.SMs(1, tile=(16, 16)))


@tk.tile
def send(t, x, full):
    """To all ranks at once."""
    tk.notify(full[t].at(tk.ranks).store(x[t].load()))


@tk.program
def broadcast(x: tk.Sharded("A", "B", axis=1), out: tk.Local("A", "B")):
    """The parts are columns."""
    full = tk.local("A", "B")
    send[tk.tiles(x)](x, full)
    take[tk.tiles(out)](full, out)


to_all = tk.Schedule(send=tk.SMs(2, tile=(16, 16)), take=tk.SMs(tile=(32, 16)))


@tk.tile
def tell(t, told):
    """A number of this rank's for each of its rows, to all."""
    tk.notify(told[tk.rank(), t].at(tk.ranks).store(tl.full((16,), 2.0, tl.float32) * tk.rank()))


@tk.tile
def add_told(t, told, out):
    acc = tl.zeros(t.shape, tl.float32)
    for source in tk.ranks():
        acc += tk.wait(told[source, t]).load()
    out[t].store(acc)


@tk.program
def telling(out: tk.Local("M")):
    told = tk.local(tk.ranks, "M", dtype="float32")
    tell[tk.tiles(out)](told)
    add_told[tk.tiles(out)](told, out)


@tk.tile
def bring_twice(t, x, out):
    """Bring one tile of x from its home to the reader, times two."""
    out[t].store(x[t].load() * 2)


@tk.program
def doubled(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    """Twice the rows of x of all ranks: a mistake that only the results show."""
    bring_twice[tk.tiles(x, reader=tk.ranks)](x, out)


pull = tk.Schedule(bring_twice=tk.SMs(tile=(16, 16), at="reader"))
