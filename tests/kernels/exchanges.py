"""Programs that only move: one dimension and three, an entry a rank, parts that are columns, stores to all ranks."""

import tilelink as tk


@tk.tile
def fetch(t, x, out):
    """What every rank has for this one."""
    for source in tk.ranks():
        tk.copy(x[tk.rank(), t].at(source), out[source, t])


@tk.program
def all_to_all(x: tk.Local(tk.ranks, "M", "K"), out: tk.Local(tk.ranks, "M", "K")):
    fetch[tk.tiles(out)](x, out)


@tk.tile
def right(t, x, out):
    out[t].store(x[t].at((tk.rank() + 1) % tk.world()).load())


@tk.program
def from_the_right(x: tk.Local("A", "B", "C"), out: tk.Local("A", "B", "C")):
    right[tk.tiles(out)](x, out)


@tk.program
def vector_from_the_right(x: tk.Local("A"), out: tk.Local("A")):
    right.named("right_vector")[tk.tiles(out)](x, out)


@tk.tile
def send(t, x, full):
    """To all ranks at once."""
    tk.notify(full[t].at(tk.ranks).store(x[t].load()))


@tk.tile
def take(t, full, out):
    out[t].store(tk.wait(full[t]).load())


@tk.program
def broadcast(x: tk.Sharded("A", "B", axis=1), out: tk.Local("A", "B")):
    full = tk.local("A", "B")
    send[tk.tiles(x)](x, full)
    take[tk.tiles(out)](full, out)


by_rank = tk.Schedule(fetch=tk.SMs(tile=(16, 16)))
cubes = tk.Schedule(right=tk.SMs(tile=(1, 16, 16)))
pieces = tk.Schedule(right_vector=tk.SMs(tile=(16,)))
to_all = tk.Schedule(send=tk.SMs(2, tile=(16, 16)), take=tk.SMs(tile=(32, 16)))
