"""Tile functions that read one tensor in several ways: blocks of several ranks, along other dimensions, one element."""

import triton.language as tl

import tilelink as tk


@tk.tile
def add3(t, x, out):
    out[t].store(x[t].at(0).load() + 10 * x[t].at(1).load() + 100 * x[t].at(2).load())


@tk.program
def three_loads(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    add3[tk.tiles(out)](x, out)


@tk.tile
def outer(t, x, out):
    out[t].store(x[t.A, 0].load()[:, None] * x[0, t.B].load()[None, :])


@tk.program
def row_and_column(x: tk.Local("A", "B"), out: tk.Local("A", "B")):
    outer[tk.tiles(out)](x, out)


@tk.tile
def both(t, x, out):
    acc = x[t.A, 0, t.C].load().to(tl.float32)
    for b in tk.steps(x.B):
        acc += tl.sum(x[0, b, t.C].load(), 0)[None, :]
    out[t].store(acc)


@tk.program
def two_planes(x: tk.Local("A", "B", "C"), out: tk.Local("A", "C")):
    both[tk.tiles(out)](x, out)


@tk.tile
def gather(t, x, full):
    tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def use(t, full, out):
    rows = tk.wait(full[:, :])
    out[t].store(rows[t].load() + rows[0, 0].load())


@tk.program
def corner(x: tk.Sharded("M", "K"), out: tk.Local("M", "K")):
    full = tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    use[tk.tiles(out)](full, out)


@tk.tile
def twice(t, x, y, out):
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(x.cols):
        acc = tl.dot(x[t.rows, k].load(), y[k, t.cols].load(), acc)
        acc = tl.dot(x[t.rows, k].load(), y[k, t.cols].load(), acc)
    out[t].store(acc)


@tk.program
def two_dots(x: tk.Local("M", "K"), y: tk.Local("K", "N"), out: tk.Local("M", "N")):
    twice[tk.tiles(out)](x, y, out)


tiles = {"add3": (16, 16), "outer": (16, 16), "both": (16, 16, 16), "use": (16, 16), "twice": (128, 128, 64)}
one_role = {name: tk.Schedule(**{name: tk.SMs(1, tile=tile)}) for name, tile in tiles.items()}
two_roles = tk.Schedule(gather=tk.SMs(1, tile=(16, 16), at="home"), use=tk.SMs(1, tile=(16, 16)))
